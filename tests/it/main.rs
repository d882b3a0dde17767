//! All tests that run the built binary, as one binary.

mod budget;
mod connections;
mod contract;
mod edge;
mod failure_policy;
mod fuzz;
mod healthcheck;
mod ids;
mod layers;
mod lifecycle;
mod loops;
mod names;
mod observation;
mod reasons;
mod settings;
mod support;
mod tls;
mod tools;
