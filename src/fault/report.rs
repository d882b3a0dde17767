//! What was asked for and what was done, as `GET /faults` shows it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::SystemTime;

use serde::{Serialize, Serializer};
use utoipa::ToSchema;

use super::machine::{Share, Tally};
use crate::wire::FaultSpec;

/// A count that many tasks add to; clones are the same count.
#[derive(Clone, Debug, Default)]
pub struct Count(Arc<AtomicU64>);

impl Count {
    pub fn add(&self) {
        self.0.fetch_add(1, Relaxed);
    }

    pub fn set(&self, value: u64) {
        self.0.store(value, Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// What was carried out, counted where it happened.
#[derive(Debug, Default)]
pub struct Counts {
    pub requests: Count,
    /// Requests to which anything was done.
    pub injected: Count,
    /// Delays that were waited for to their end.
    pub delayed: Count,
    pub failed: Count,
    /// Connections (HTTP/2: streams) that were broken.
    pub aborted: Count,
    pub burned: Count,
    pub dribbled: Count,
    /// Requests that had to wait for a worker.
    pub queued: Count,
    /// Requests that found the queue full.
    pub rejected: Count,
    /// Requests in the queue that were skipped, as their client had gone.
    pub skipped: Count,
    /// Requests that were worked on to their end though their client had gone.
    pub dead_work: Count,
    /// MiB of memory held just now.
    pub held_mib: Count,
}

/// The answer of `GET /faults`.
#[derive(Debug, Serialize, ToSchema)]
pub struct Report<'a> {
    pub host: &'a str,
    /// Faults are in force, on this node or another.
    pub enabled: bool,
    /// They are meant for this node.
    pub applies: bool,
    pub spec: Option<FaultSpec>,
    pub seed: Option<u64>,
    #[serde(serialize_with = "rfc3339")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub set_at: Option<SystemTime>,
    #[serde(serialize_with = "rfc3339")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub expires_at: Option<SystemTime>,
    /// When the last faults ended by themselves.
    #[serde(serialize_with = "rfc3339")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub expired_at: Option<SystemTime>,
    /// What the draws and counters decided.
    pub requested: Requested,
    /// What was carried out. It is less where a client went away first, or the faults were cleared.
    pub observed: Observed,
}

#[derive(Debug, Default, Serialize, ToSchema)]
pub struct Requested {
    pub delayed: u64,
    pub failed: u64,
    pub aborted: u64,
    pub error_rate: Option<Rate>,
    pub abort_rate: Option<Rate>,
}

/// A rate as it was asked for and as it turned out.
#[derive(Debug, Serialize, ToSchema)]
pub struct Rate {
    requested: f64,
    /// `null` before the first request.
    observed: Option<f64>,
    of: u64,
}

#[derive(Debug, Default, Serialize, ToSchema)]
pub struct Observed {
    pub requests: u64,
    /// Requests to which something was done.
    pub injected: u64,
    pub delayed: u64,
    /// By status.
    #[schema(value_type = BTreeMap<String, u64>)]
    pub failed: BTreeMap<u16, u64>,
    /// By kind.
    pub aborted: BTreeMap<&'static str, u64>,
    pub burned: u64,
    pub dribbled: u64,
    pub queued: u64,
    pub rejected: u64,
    pub skipped: u64,
    pub dead_work: u64,
    pub held_mib: u64,
    /// Just now.
    pub working: u64,
    pub waiting: u64,
}

impl Requested {
    pub(super) fn new(spec: &FaultSpec, abort_rate: Option<f64>, tally: &Tally) -> Requested {
        let rate = |requested: Option<f64>, share: Share| {
            let observed = (share.of > 0).then(|| share.hit as f64 / share.of as f64);
            Some(Rate { requested: requested?, observed, of: share.of })
        };
        Requested {
            delayed: tally.delayed,
            failed: tally.failed,
            aborted: tally.aborted,
            error_rate: rate(spec.error_rate, tally.errors),
            abort_rate: rate(abort_rate, tally.aborts),
        }
    }
}

fn rfc3339<S: Serializer>(time: &Option<SystemTime>, serializer: S) -> Result<S::Ok, S::Error> {
    match time {
        Some(time) => serializer.collect_str(&humantime::format_rfc3339_millis(*time)),
        None => serializer.serialize_none(),
    }
}
