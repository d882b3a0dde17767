//! Load: sends requests as a [`Plan`] says and tells what became of them. Knows a node by its HTTP answers alone.
//!
//! A generator that waits for slow answers before it sends the next request measures a load that nobody has
//! ("coordinated omission"): an open loop sends when it is time, and every latency counts from when a request was due.

mod aim;
mod answer;
pub mod charts;
mod clock;
mod closed;
mod connection;
mod open;
mod outcome;
mod plan;
mod run;
mod spread;
pub mod stress;
mod summary;
mod tally;
mod worker;

use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::{Resource, getrlimit, setrlimit};

pub use aim::{Aim, AimError, Method};
pub use outcome::{Cause, Flag, Sample, Verdict};
pub use plan::{Plan, Schedule};
pub use run::{Progress, Results, Run, StartError, start};
pub use spread::{Spread, Times};
pub use summary::{Lateness, PerSecond, Summary};

/// How a plan is carried out. Times are the plan's, as in [`Plan`].
#[derive(Clone, Debug)]
pub struct Options {
    /// Connections are used again; else each request has its own.
    pub keep_alive: bool,
    /// How long a request may take, counted from when it goes.
    pub time_out: Duration,
    /// How many of the plan's seconds go by in one on the clock.
    pub speed: f64,
    /// Requests without an answer when an open plan ends are not counted, as in Gatling; else they are awaited.
    pub cut_off: bool,
    /// Requests of an open loop that may be unanswered at one time; further ones wait, and are late.
    pub max_in_flight: usize,
    /// Threads that send. One is good for about 200,000 requests a second, and leaves the rest of a small machine to
    /// the target.
    pub threads: usize,
    /// Keep every single [`Sample`], at 100 bytes each.
    pub samples: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            keep_alive: false,
            time_out: Duration::from_secs(30),
            speed: 1.0,
            cut_off: false,
            max_in_flight: 4096,
            threads: 1,
            samples: false,
        }
    }
}

/// Raises this process's limit of open files, and that of its children, as far as it may be; what it is then.
///
/// # Errors
/// If the system does not allow what it says it would.
pub fn raise_file_limit() -> Result<u64> {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        limit.current = limit.maximum;
        setrlimit(Resource::Nofile, limit).context("the limit of open files cannot be raised")?;
    }
    Ok(limit.maximum.unwrap_or(u64::MAX))
}
