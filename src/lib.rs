//! rest-cascade: a small service that is chained, loaded, broken and watched.
//!
//! From the top down; a module uses only what is below it (`tests/it/layers.rs` holds the arrows):
//!
//! | module | what it is for |
//! |---|---|
//! | [`cli`] | the command line |
//! | [`serve`] | one node: puts the parts together, runs and drains them |
//! | [`settings`] | one node's settings, and the environment |
//! | [`lab`] | the articles' experiments, replayed |
//! | [`stub`] | stands in for WireMock |
//! | [`up`] | a cascade on this machine |
//! | [`cluster`] | child processes of this binary |
//! | [`load`] | sends requests, and tells what became of them |
//! | [`server`] | accept loop, limits, drain |
//! | [`web`] | the way in: routes, layers, errors |
//! | [`downstream`] | the way out: one call to the next node |
//! | [`health`] | alive? ready? |
//! | [`fault`] | decides a fault; makes none |
//! | [`telemetry`] | log lines and metrics |
//! | [`manifest`] | files of Kubernetes and Istio as data |
//! | [`wire`] | all that crosses the network |
//! | [`chart`] | charts as SVG, and the page around them |
//! | [`signals`] | what asks a process to stop |
//! | [`tls`] | whom a client trusts |
//! | [`secret`] | keeps passwords out of messages |
//! | [`units`] | durations as people write them |

pub mod chart;
pub mod cli;
pub mod cluster;
pub mod downstream;
pub mod fault;
pub mod health;
pub mod lab;
pub mod load;
pub mod manifest;
pub mod secret;
pub mod serve;
pub mod server;
pub mod settings;
pub mod signals;
pub mod stub;
pub mod telemetry;
pub mod tls;
pub mod units;
pub mod up;
pub mod web;
pub mod wire;
