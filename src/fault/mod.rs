//! Which faults are in force on this node, until when, and what became of them. Decides; makes none.

mod machine;
mod report;
mod seats;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::SystemTime;

use clap::Args;
use serde::Serialize;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::info;

pub use machine::{Ending, Verdict, normal};
pub use report::{Count, Counts, Report};
pub use seats::{Full, Seat, Seats, Ticket};

use crate::wire::{Abort, DeadWork, FaultSpec};
use machine::Machine;
use report::{Observed, Requested};

#[derive(Args, Clone, Debug, Serialize)]
#[command(next_help_heading = "Faults")]
#[group(skip)]
pub struct Settings {
    /// Faults to inject from the start, as the JSON that PUT /faults takes
    #[arg(long, value_name = "JSON")]
    pub faults: Option<FaultSpec>,
    /// The node's number among the replicas of its service ({{.Task.Slot}} in Swarm): faults can name it
    #[arg(long, value_name = "SLOT", value_parser = slot)]
    pub slot: Option<String>,
}

fn slot(text: &str) -> Result<String, String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if text.is_empty() || text.len() > 64 || !text.bytes().all(plain) {
        return Err("must be 1 to 64 letters, digits, '-', '_' or '.'".to_owned());
    }
    Ok(text.to_owned())
}

/// The faults of one node; clones are the same node's.
#[derive(Clone, Debug)]
pub struct Faults(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    name: String,
    slot: Option<String>,
    /// Read before all else: a node without faults pays for no more than this.
    applies: AtomicBool,
    state: RwLock<State>,
    /// Only one specification's memory is held at a time: what was replaced is given back first.
    holding: Arc<Semaphore>,
}

#[derive(Debug)]
enum State {
    Nothing,
    InForce(Arc<InForce>),
    Expired(Arc<InForce>, SystemTime),
}

/// What one `PUT` put in force, until it is replaced, cleared or expires.
#[derive(Debug)]
pub struct InForce {
    spec: FaultSpec,
    seed: u64,
    applies: bool,
    set_at: SystemTime,
    machine: Mutex<Machine>,
    seats: Option<Seats>,
    burners: Arc<Semaphore>,
    holding: Arc<Semaphore>,
    counts: Counts,
    ended: CancellationToken,
}

/// Mark on a response that is not to be sent: its connection is to be broken instead. Whoever owns the connection
/// carries it out, and counts it.
#[derive(Clone, Debug)]
pub struct ToAbort {
    pub abort: Abort,
    pub carried_out: Count,
    /// What is written before the end on HTTP/1, in place of what `abort` would write.
    pub raw: Option<Vec<u8>>,
}

impl Faults {
    pub fn new(name: &str, slot: Option<String>) -> Faults {
        Faults(Arc::new(Shared {
            name: name.to_owned(),
            slot,
            applies: AtomicBool::new(false),
            state: RwLock::new(State::Nothing),
            holding: Arc::new(Semaphore::new(1)),
        }))
    }

    /// Whether there are faults to inject at all.
    pub fn apply(&self) -> bool {
        self.0.applies.load(Ordering::Acquire)
    }

    /// The faults to inject into a request that has just come in.
    pub fn for_request(&self) -> Option<Arc<InForce>> {
        if !self.apply() {
            return None;
        }
        match &*self.0.state.read().unwrap_or_else(PoisonError::into_inner) {
            State::InForce(faults) => Some(Arc::clone(faults)),
            State::Nothing | State::Expired(..) => None,
        }
    }

    /// Puts `spec` in force instead of what was; counts start anew. Runs on a tokio runtime, which sees to the end.
    pub fn put(&self, spec: FaultSpec) -> Arc<InForce> {
        let faults = Arc::new(InForce::new(spec, &self.0, |name| self.is_meant(name)));
        info!(
            applies = faults.applies,
            seed = faults.seed,
            "faults set: {}",
            serde_json::to_string(&faults.spec).unwrap_or_default()
        );
        self.replace_by(State::InForce(Arc::clone(&faults)));
        if let Some(life) = faults.spec.expires_after {
            let (node, faults) = (self.clone(), Arc::clone(&faults));
            tokio::spawn(async move {
                tokio::select! {
                    () = tokio::time::sleep(*life) => node.expire(faults),
                    () = faults.ended.cancelled() => {}
                }
            });
        }
        faults
    }

    /// Ends what is in force; requests that are held go on as if there had been none.
    pub fn clear(&self) {
        self.replace_by(State::Nothing);
        info!("faults cleared");
    }

    fn expire(&self, faults: Arc<InForce>) {
        let mut state = self.0.state.write().unwrap_or_else(PoisonError::into_inner);
        // A successor may have come at the same moment.
        if matches!(&*state, State::InForce(now) if Arc::ptr_eq(now, &faults)) {
            self.0.applies.store(false, Ordering::Release);
            faults.ended.cancel();
            *state = State::Expired(faults, SystemTime::now());
            info!("faults expired");
        }
    }

    fn replace_by(&self, next: State) {
        let mut state = self.0.state.write().unwrap_or_else(PoisonError::into_inner);
        let applies = matches!(&next, State::InForce(faults) if faults.applies);
        self.0.applies.store(applies, Ordering::Release);
        if let State::InForce(before) = std::mem::replace(&mut *state, next) {
            before.ended.cancel();
        }
    }

    /// Whether `only` names this node: by its name, by name and slot, or by its slot.
    fn is_meant(&self, only: &str) -> bool {
        let Shared { name, slot, .. } = &*self.0;
        only == name || slot.as_ref().is_some_and(|slot| only == slot || only == format!("{name}-{slot}"))
    }

    pub fn report(&self) -> Report<'_> {
        let state = self.0.state.read().unwrap_or_else(PoisonError::into_inner);
        let (in_force, last, expired_at) = match &*state {
            State::Nothing => (None, None, None),
            State::InForce(faults) => (Some(faults), Some(faults), None),
            State::Expired(faults, at) => (None, Some(faults), Some(*at)),
        };
        let (requested, observed) = last.map(|faults| faults.figures()).unwrap_or_default();
        Report {
            host: &self.0.name,
            enabled: in_force.is_some(),
            applies: in_force.is_some_and(|faults| faults.applies),
            spec: in_force.map(|faults| faults.spec.clone()),
            seed: in_force.map(|faults| faults.seed),
            set_at: in_force.map(|faults| faults.set_at),
            expires_at: in_force.and_then(|faults| Some(faults.set_at + *faults.spec.expires_after?)),
            expired_at,
            requested,
            observed,
        }
    }
}

impl InForce {
    fn new(spec: FaultSpec, node: &Shared, is_meant: impl FnOnce(&str) -> bool) -> InForce {
        // A drawn seed is short enough to be typed.
        let seed = spec.seed.unwrap_or_else(|| u64::from(rand::random::<u32>()));
        InForce {
            seed,
            applies: spec.only.as_deref().is_none_or(is_meant),
            set_at: SystemTime::now(),
            machine: Mutex::new(Machine::new(&spec, seed, Instant::now())),
            seats: Seats::of(&spec),
            burners: Arc::new(Semaphore::new(std::thread::available_parallelism().map_or(1, usize::from))),
            holding: Arc::clone(&node.holding),
            counts: Counts::default(),
            ended: CancellationToken::new(),
            spec,
        }
    }

    pub fn decide(&self, now: Instant) -> Verdict {
        self.machine.lock().unwrap_or_else(PoisonError::into_inner).decide(now)
    }

    pub fn spec(&self) -> &FaultSpec {
        &self.spec
    }

    /// Whether they are meant for this node.
    pub fn applies(&self) -> bool {
        self.applies
    }

    pub fn seats(&self) -> Option<&Seats> {
        self.seats.as_ref()
    }

    /// The right to burn CPU time, for as many requests as there are CPUs.
    pub fn burners(&self) -> &Arc<Semaphore> {
        &self.burners
    }

    /// The one place for memory that is held on this node.
    pub fn holding(&self) -> &Arc<Semaphore> {
        &self.holding
    }

    pub fn dead_work(&self) -> DeadWork {
        self.spec.dead_work.unwrap_or_default()
    }

    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Completes when these faults have been replaced or cleared, or have expired.
    pub fn ended(&self) -> &CancellationToken {
        &self.ended
    }

    fn figures(&self) -> (Requested, Observed) {
        let (tally, abort_rate) = {
            let machine = self.machine.lock().unwrap_or_else(PoisonError::into_inner);
            (machine.tally(), machine.abort_rate())
        };
        let counts = &self.counts;
        let observed = Observed {
            requests: counts.requests.get(),
            injected: counts.injected.get(),
            delayed: counts.delayed.get(),
            failed: some(self.spec.status.unwrap_or(503), &counts.failed),
            aborted: self.spec.abort.map(Abort::as_str).map(|kind| some(kind, &counts.aborted)).unwrap_or_default(),
            burned: counts.burned.get(),
            dribbled: counts.dribbled.get(),
            queued: counts.queued.get(),
            rejected: counts.rejected.get(),
            skipped: counts.skipped.get(),
            dead_work: counts.dead_work.get(),
            held_mib: counts.held_mib.get(),
            working: self.seats.as_ref().map_or(0, Seats::busy),
            waiting: self.seats.as_ref().map_or(0, Seats::waiting),
        };
        (Requested::new(&self.spec, abort_rate, &tally), observed)
    }
}

/// A map of one entry, or of none for a count of nothing.
fn some<K: Ord>(key: K, count: &Count) -> BTreeMap<K, u64> {
    Some(count.get()).filter(|count| *count > 0).map(|count| (key, count)).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn put(faults: &Faults, json: &str) -> Arc<InForce> {
        faults.put(json.parse().expect(json))
    }

    #[tokio::test]
    async fn faults_can_name_the_node_its_slot_or_both() {
        for (name, slot, only, applies) in [
            ("service-2", None, "service-2", true),
            ("service-2", None, "service-2-1", false),
            ("service-2", Some("1"), "service-2-1", true),
            ("service-2", Some("1"), "1", true),
            ("service-2", Some("1"), "2", false),
            ("service-2", Some("1"), "service-2-2", false),
            ("service-2-1", Some("1"), "service-2-1", true),
            ("service-2", None, "", false),
        ] {
            let faults = Faults::new(name, slot.map(str::to_owned));
            assert_eq!(faults.is_meant(only), applies, "{only} on {name} {slot:?}");
        }
    }

    #[tokio::test]
    async fn faults_for_another_node_are_kept_and_shown_but_not_injected() {
        let faults = Faults::new("a", None);
        put(&faults, r#"{"error_rate":1,"only":"b"}"#);
        assert!(faults.for_request().is_none());
        let report = faults.report();
        assert!(report.enabled && !report.applies && report.spec.is_some());
        put(&faults, r#"{"error_rate":1,"only":"a"}"#);
        assert!(faults.for_request().is_some() && faults.report().applies);
    }

    #[tokio::test]
    async fn a_successor_ends_what_was_and_starts_its_counts_anew() {
        let faults = Faults::new("a", None);
        let first = put(&faults, r#"{"error_rate":1}"#);
        first.counts().requests.add();
        assert_eq!(faults.report().observed.requests, 1);
        let second = put(&faults, r#"{"error_rate":1}"#);
        assert!(first.ended().is_cancelled() && !second.ended().is_cancelled());
        assert_eq!(faults.report().observed.requests, 0);
        faults.clear();
        assert!(second.ended().is_cancelled() && faults.for_request().is_none());
        assert!(!faults.report().enabled);
    }

    #[tokio::test(start_paused = true)]
    async fn faults_expire_by_themselves_and_say_when() {
        let faults = Faults::new("a", None);
        let first = put(&faults, r#"{"error_rate":1,"expires_after":"60s"}"#);
        tokio::time::sleep(Duration::from_millis(59_900)).await;
        assert!(faults.report().enabled && faults.report().expires_at.is_some());
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert!(first.ended().is_cancelled() && faults.for_request().is_none());
        let report = faults.report();
        assert!(!report.enabled && report.spec.is_none() && report.expired_at.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_of_what_was_replaced_does_not_end_its_successor() {
        let faults = Faults::new("a", None);
        put(&faults, r#"{"error_rate":1,"expires_after":"1s"}"#);
        put(&faults, r#"{"error_rate":1}"#);
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(faults.for_request().is_some() && faults.report().expired_at.is_none());
    }

    #[tokio::test]
    async fn a_seed_that_was_not_given_is_drawn_and_shown() {
        let faults = Faults::new("a", None);
        let drawn = put(&faults, r#"{"error_rate":0.5}"#);
        assert_eq!(faults.report().seed, Some(drawn.seed));
        assert_eq!(put(&faults, r#"{"error_rate":0.5,"seed":7}"#).seed, 7);
    }
}
