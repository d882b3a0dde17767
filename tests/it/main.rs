//! All tests that run the built binary, as one binary.

mod budget;
mod contract;
mod failure_policy;
mod ids;
mod loops;
mod reasons;
mod support;
