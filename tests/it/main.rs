//! All tests that run the built binary, as one binary.

mod faults;
