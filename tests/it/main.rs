//! All tests that run the built binary, as one binary.

mod cluster;
mod faults;
mod guard;
mod openapi;
mod probes;
#[expect(dead_code, unused_imports, reason = "a language has more words than one book uses")]
mod support;
mod up;
mod up_support;
