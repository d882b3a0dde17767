//! All tests that run the built binary, as one binary.

mod cluster;
mod faults;
mod up;
mod up_support;
