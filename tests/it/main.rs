//! All tests that run the built binary, as one binary.

mod budget;
mod cluster;
mod connections;
mod contract;
mod edge;
mod failure_policy;
mod faults;
mod fuzz;
mod guard;
mod healthcheck;
mod ids;
mod layers;
mod lifecycle;
mod loops;
mod names;
mod observation;
mod openapi;
mod probes;
mod reasons;
mod settings;
mod support;
mod tiers;
mod tls;
mod tools;
mod up;
mod up_support;
