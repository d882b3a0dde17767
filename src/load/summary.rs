//! What a load gave, as data: one step of a report. Draws and prints nothing.

use std::collections::BTreeMap;

use serde::Serialize;

use super::spread::Times;
use super::tally::{Second, Tally};
use crate::wire::{Failure, Reason};

/// The figures of one load. Times are the plan's: on the clock, times the speed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    pub name: String,
    /// Requests that ended: `ok`, `ko` and `partial` together.
    pub total: u64,
    /// Answered whole, by a whole cascade.
    pub ok: u64,
    /// Not answered whole, or with another status than 2xx.
    pub ko: u64,
    /// Answered by a node whose cascade ended early.
    pub partial: u64,
    /// The failed ones by status, or by reason where there was no whole answer.
    pub errors: BTreeMap<String, u64>,
    /// The partial ones by where the cascade ended and why: `refused; hop=3`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub partials: BTreeMap<String, u64>,
    /// By the flag of an answer, in Envoy's letters.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub flags: BTreeMap<String, u64>,
    /// From due to done, of all that ended; `null` if none did.
    pub ms: Option<Times>,
    /// The same of the complete ones alone.
    pub ms_ok: Option<Times>,
    pub per_second: Vec<PerSecond>,
    /// From the first request to the end.
    pub seconds: f64,
    /// Answers of any kind a second.
    pub per_second_mean: f64,
    /// Sent, and without an answer when the load ended; not part of `total`.
    pub unanswered: u64,
    /// Due, and never sent: the load was stopped, or no connection became free in time.
    pub unsent: u64,
    /// Connections that were opened.
    pub connects: u64,
    pub most_in_flight: u64,
    /// How much later than due the requests of an open loop went; on the clock.
    pub lateness_ms: Option<Lateness>,
    /// What makes these figures doubtful.
    pub warnings: Vec<String>,
}

/// One second's answers.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PerSecond {
    pub t: u64,
    pub ok: u64,
    pub ko: u64,
    pub partial: u64,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub errors: BTreeMap<String, u64>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub flags: BTreeMap<String, u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Lateness {
    pub p50: f64,
    pub p99: f64,
    pub max: f64,
}

impl From<Times> for Lateness {
    fn from(times: Times) -> Lateness {
        Lateness { p50: times.p50, p99: times.p99, max: times.max }
    }
}

impl Summary {
    /// Of `tally`; what only its caller knows is left at nothing.
    pub(super) fn of(tally: &Tally, seconds: f64) -> Summary {
        let all = PerSecond::of(0, &tally.all);
        let partials = tally.places.iter().map(|(place, count)| {
            let failure = place.map(|(reason, hop)| Failure { reason, hop }.to_string());
            (failure.unwrap_or_else(|| "unknown".to_owned()), *count)
        });
        Summary {
            name: "stress".to_owned(),
            total: tally.all.total(),
            ok: all.ok,
            ko: all.ko,
            partial: all.partial,
            errors: all.errors,
            partials: partials.collect(),
            flags: all.flags,
            ms: tally.latency.times(),
            ms_ok: tally.latency_ok.times(),
            per_second: (0..).zip(&tally.seconds).map(|(t, second)| PerSecond::of(t, second)).collect(),
            seconds: rounded(seconds),
            per_second_mean: rounded(if seconds > 0.0 { tally.all.total() as f64 / seconds } else { 0.0 }),
            unanswered: 0,
            unsent: 0,
            connects: tally.opened,
            most_in_flight: 0,
            lateness_ms: tally.lateness.times().map(Lateness::from),
            warnings: Vec::new(),
        }
    }

    /// What these figures say against themselves; a generator that is later than `late_ms` is named.
    pub(super) fn doubts(&self, late_ms: f64) -> Vec<String> {
        let mut doubts = Vec::new();
        if let Some(late) = self.lateness_ms.filter(|late| late.p99 > late_ms) {
            let Lateness { p99, max, .. } = late;
            doubts.push(format!(
                "the generator was late: one request in a hundred by {p99:.1} ms or more, one by {max:.1} ms; \
                 this machine has no time for this rate"
            ));
        }
        let exhausted = self.errors.get(Reason::Overflow.as_str()).copied().unwrap_or_default();
        if exhausted > 0 {
            doubts.push(format!(
                "{exhausted} requests failed here, not at the target: this machine is out of ports or descriptors; \
                 -k uses connections again"
            ));
        }
        doubts
    }
}

impl PerSecond {
    fn of(t: u64, second: &Second) -> PerSecond {
        PerSecond {
            t,
            ok: second.ok,
            ko: second.ko,
            partial: second.partial,
            errors: second.errors.iter().map(|(cause, count)| (cause.to_string(), *count)).collect(),
            flags: second.flags.iter().map(|(flag, count)| (flag.as_str().to_owned(), *count)).collect(),
        }
    }
}

fn rounded(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}
