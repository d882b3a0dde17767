//! The `stress` command against real nodes and scripted targets.

mod ab;
mod counts;
mod loops;
mod outputs;
mod refused;

use serde_json::Value;

use crate::support::{Refusal, Start};

fn stress(flags: &str, url: impl AsRef<str>) -> Start {
    Start::node().flags("stress").flags(flags).arg(url.as_ref())
}

/// The figures of a load, and its exit code.
#[track_caller]
fn figures(flags: &str, url: impl AsRef<str>) -> (Value, i32) {
    read(&stress(flags, url).arg("--json").run())
}

#[track_caller]
fn read(ended: &Refusal) -> (Value, i32) {
    let figures = serde_json::from_str(&ended.stdout).unwrap_or_else(|error| panic!("{error}: {ended:?}"));
    (figures, ended.code.expect("it ended by itself"))
}

/// `ok`, `partial`, `ko`.
fn counts(figures: &Value) -> [u64; 3] {
    ["ok", "partial", "ko"].map(|name| figures[name].as_u64().unwrap_or_else(|| panic!("no {name} in {figures}")))
}
