//! Whether this node is alive, and ready for work. Knows no HTTP.

pub mod ask;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use clap::Args;
use serde::Serialize;

#[derive(Args, Clone, Debug, Serialize)]
#[command(next_help_heading = "Probes")]
#[group(skip)]
pub struct Settings {}

/// The node's state; clones are the same node's.
#[derive(Clone, Debug, Default)]
pub struct Health(Arc<AtomicBool>);

/// A probe's answer in MicroProfile Health's form.
#[derive(Debug, Serialize)]
pub struct Report {
    status: Status,
    checks: Vec<Check>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Status {
    Up,
    Down,
}

#[derive(Debug, Serialize)]
pub struct Check {
    name: &'static str,
    status: Status,
}

impl Health {
    /// From now on the node is not ready: it is about to stop.
    pub fn drain(&self) {
        self.0.store(true, Relaxed);
    }

    /// The process itself, nothing else.
    pub fn live(&self) -> Report {
        Report::of(vec![Check { name: "process", status: Status::Up }])
    }

    /// Whether traffic should come here.
    pub fn ready(&self) -> Report {
        let status = if self.0.load(Relaxed) { Status::Down } else { Status::Up };
        Report::of(vec![Check { name: "not-draining", status }])
    }
}

impl Report {
    fn of(checks: Vec<Check>) -> Report {
        let up = checks.iter().all(|check| check.status == Status::Up);
        Report { status: if up { Status::Up } else { Status::Down }, checks }
    }

    pub fn is_up(&self) -> bool {
        self.status == Status::Up
    }
}
