//! Keeps one dependency's snapshot fresh: one task, one attempt in flight, a hard time-out. A probe only reads.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use clap::ValueEnum;
use serde::Serialize;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::task::AbortOnDropHandle;
use tracing::{info, warn};

use super::news::News;
use super::pace::{Limits, Pace};
use super::verdict::{Failure, Snapshot};

/// When the dependencies are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum CheckMode {
    /// All the time, in the background; a probe reads what is known and waits for nothing
    Background,
    /// When a probe comes; its answer is kept for 1 s, failures too, and serves all probes of that time
    OnDemand,
}

/// Beyond the time-out, what a probe on demand grants for the way to the refresher and back.
const GRACE: Duration = Duration::from_millis(200);

/// The reading end; clones watch the same dependency.
#[derive(Clone, Debug)]
pub(super) struct Watched {
    mode: CheckMode,
    limits: Limits,
    snapshot: watch::Receiver<Snapshot>,
    calls: Arc<Calls>,
}

/// Calls for an attempt before its time.
#[derive(Debug, Default)]
struct Calls {
    count: AtomicU64,
    bell: Notify,
}

/// Starts to ask on the current runtime, at once and then as `mode` says, for as long as somebody watches.
pub(super) fn watch<A, F>(name: String, mode: CheckMode, limits: Limits, ask: A) -> Watched
where
    A: Fn() -> F + Send + Sync + 'static,
    F: Future<Output = Result<(), Failure>> + Send + 'static,
{
    let (tell, snapshot) = watch::channel(Snapshot::unchecked(Instant::now()));
    let calls = Arc::new(Calls::default());
    tokio::spawn(Refresher { name, mode, limits, ask, tell, calls: Arc::clone(&calls) }.run());
    Watched { mode, limits, snapshot, calls }
}

struct Refresher<A> {
    name: String,
    mode: CheckMode,
    limits: Limits,
    ask: A,
    tell: watch::Sender<Snapshot>,
    calls: Arc<Calls>,
}

impl<A, F> Refresher<A>
where
    A: Fn() -> F,
    F: Future<Output = Result<(), Failure>> + Send + 'static,
{
    async fn run(self) {
        let mut pace = Pace::new(self.limits);
        let mut news = News::new(Instant::now());
        while !self.tell.is_closed() {
            let calls = self.calls.count.load(Ordering::Acquire);
            let start = Instant::now();
            let result = attempt(self.limits.timeout, (self.ask)()).await;
            let at = Instant::now();
            if let Some(line) = news.observe(&result, at) {
                let name = &self.name;
                match line.is_bad() {
                    true => warn!(check = name, "{name} is {line}"),
                    false => info!(check = name, "{name} is {line}"),
                }
            }
            let next = pace.next(result.is_ok(), start, rand::random());
            self.tell.send_replace(Snapshot { result, at, took: at - start, calls });
            tokio::select! {
                () = self.due(next) => {}
                () = self.tell.closed() => return,
            }
        }
    }

    /// Waits until the next attempt is wanted.
    async fn due(&self, next: Instant) {
        match self.mode {
            CheckMode::Background => tokio::select! {
                () = sleep_until(next) => {}
                () = self.calls.bell.notified() => {}
            },
            CheckMode::OnDemand => loop {
                self.calls.bell.notified().await;
                // Whoever rang during the last attempt has its answer already.
                let calls = self.calls.count.load(Ordering::Acquire);
                let served = self.tell.borrow().serves(Instant::now(), calls);
                if !served {
                    return;
                }
            },
        }
    }
}

/// One attempt in a task of its own: neither its panic nor its endless wait is ours. Past the limit it is aborted.
async fn attempt(
    limit: Duration,
    ask: impl Future<Output = Result<(), Failure>> + Send + 'static,
) -> Result<(), Failure> {
    match timeout(limit, AbortOnDropHandle::new(tokio::spawn(ask))).await {
        Ok(Ok(result)) => result,
        Ok(Err(_)) => Err(Failure::Panicked),
        Err(_) => Err(Failure::Timeout(limit)),
    }
}

impl Watched {
    /// What is known now. In background mode this waits for nothing.
    pub(super) async fn current(&self) -> (Snapshot, Result<(), Failure>) {
        if self.mode == CheckMode::OnDemand {
            self.asked_for().await;
        }
        self.known()
    }

    pub(super) fn known(&self) -> (Snapshot, Result<(), Failure>) {
        let snapshot = self.snapshot.borrow().clone();
        let verdict = snapshot.verdict(Instant::now(), &self.limits);
        (snapshot, verdict)
    }

    /// Has an attempt made, or joins the one under way, unless the last answer still serves.
    async fn asked_for(&self) {
        let mut snapshot = self.snapshot.clone();
        let calls = self.calls.count.load(Ordering::Acquire);
        if snapshot.borrow_and_update().serves(Instant::now(), calls) {
            return;
        }
        self.calls.bell.notify_one();
        // If nothing comes, the refresher is stuck; what was known last then counts, as old as it is.
        let _ = timeout(self.limits.timeout + GRACE, snapshot.changed()).await;
    }

    /// Calls for an attempt now, and waits for one that began after the call, at most `limit`.
    pub(super) async fn look_again(&self, limit: Duration) {
        let call = self.calls.count.fetch_add(1, Ordering::AcqRel) + 1;
        self.calls.bell.notify_one();
        let mut snapshot = self.snapshot.clone();
        let _ = timeout(limit, snapshot.wait_for(|snapshot| snapshot.calls >= call)).await;
    }

    /// Waits for the first verdict.
    pub(super) async fn first(&self) {
        let mut snapshot = self.snapshot.clone();
        let _ = snapshot.wait_for(|snapshot| snapshot.result != Err(Failure::Unchecked)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use tokio::time::sleep;

    const LIMITS: Limits = Limits { interval: Duration::from_secs(1), timeout: Duration::from_millis(800) };

    /// What a scripted dependency does when it is asked.
    #[derive(Clone, Copy)]
    enum Act {
        Up,
        Down,
        Hang,
        Panic,
    }

    #[derive(Clone)]
    struct Script {
        act: Arc<Mutex<Act>>,
        asked: Arc<AtomicU64>,
        in_flight: Arc<AtomicU64>,
    }

    impl Script {
        fn new(act: Act) -> Script {
            Script { act: Arc::new(Mutex::new(act)), asked: Arc::default(), in_flight: Arc::default() }
        }

        fn watch(&self, mode: CheckMode) -> Watched {
            let script = self.clone();
            watch("db".to_owned(), mode, LIMITS, move || script.clone().ask())
        }

        async fn ask(self) -> Result<(), Failure> {
            struct Leave(Arc<AtomicU64>);
            impl Drop for Leave {
                fn drop(&mut self) {
                    self.0.fetch_sub(1, Ordering::SeqCst);
                }
            }
            self.asked.fetch_add(1, Ordering::SeqCst);
            assert_eq!(self.in_flight.fetch_add(1, Ordering::SeqCst), 0, "two attempts at once");
            let _leave = Leave(Arc::clone(&self.in_flight));
            let act = *self.act.lock().expect("no panic while it is held");
            match act {
                Act::Up => sleep(Duration::from_millis(5)).await,
                Act::Down => return Err(Failure::said("refused")),
                Act::Hang => std::future::pending().await,
                Act::Panic => panic!("as the script says"),
            }
            Ok(())
        }

        fn act(&self, act: Act) {
            *self.act.lock().expect("no panic while it is held") = act;
        }

        fn asked(&self) -> u64 {
            self.asked.load(Ordering::SeqCst)
        }
    }

    async fn after(ms: u64) {
        sleep(Duration::from_millis(ms)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn it_asks_once_an_interval_however_many_read() {
        let script = Script::new(Act::Up);
        let watched = script.watch(CheckMode::Background);
        for _ in 0..1000 {
            after(10).await;
            let _ = watched.current().await;
        }
        assert_eq!(script.asked(), 10);
        assert_eq!(watched.known().1, Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_hanging_attempt_ends_at_the_time_out_and_nothing_of_it_stays() {
        let script = Script::new(Act::Hang);
        let watched = script.watch(CheckMode::Background);
        after(799).await;
        assert_eq!(watched.known().1, Err(Failure::Unchecked));
        after(10).await;
        assert_eq!(watched.known().1, Err(Failure::Timeout(LIMITS.timeout)));
        script.act(Act::Up);
        after(1810).await;
        assert_eq!(watched.known().1, Ok(()));
        // An attempt that was given up and still ran would be counted.
        assert_eq!(script.in_flight.load(Ordering::SeqCst), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_is_seen_within_interval_and_time_out_both_ways() {
        for failing in [Act::Down, Act::Hang, Act::Panic] {
            for phase in [0, 130, 400, 790, 990] {
                let script = Script::new(Act::Up);
                let watched = script.watch(CheckMode::Background);
                after(3000 + phase).await;
                script.act(failing);
                after(1801).await;
                assert!(watched.known().1.is_err(), "down, phase {phase}");
                after(7000 + phase).await;
                script.act(Act::Up);
                after(1810).await;
                assert_eq!(watched.known().1, Ok(()), "up, phase {phase}");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_panic_is_a_verdict_and_the_next_attempt_comes() {
        let script = Script::new(Act::Panic);
        let watched = script.watch(CheckMode::Background);
        after(1).await;
        assert_eq!(watched.known().1, Err(Failure::Panicked));
        script.act(Act::Up);
        after(1010).await;
        assert_eq!(watched.known().1, Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_is_answered_by_an_attempt_that_began_after_it() {
        for mode in [CheckMode::Background, CheckMode::OnDemand] {
            let script = Script::new(Act::Up);
            let watched = script.watch(mode);
            watched.first().await;
            script.act(Act::Down);
            watched.look_again(Duration::from_millis(100)).await;
            assert_eq!(watched.known().1, Err(Failure::said("refused")), "{mode:?}");
            assert_eq!(script.asked(), 2);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn on_demand_many_probes_share_one_attempt_and_failures_are_kept() {
        for act in [Act::Up, Act::Down, Act::Hang] {
            let script = Script::new(act);
            let watched = script.watch(CheckMode::OnDemand);
            watched.first().await;
            after(5000).await;
            assert_eq!(script.asked(), 1, "nobody probed, so nobody was asked");
            let probes: Vec<_> = (0..200)
                .map(|_| {
                    let watched = watched.clone();
                    tokio::spawn(async move { watched.current().await.1.is_ok() })
                })
                .collect();
            for probe in probes {
                assert_eq!(probe.await.expect("no panic"), matches!(act, Act::Up));
            }
            assert_eq!(script.asked(), 2);
            after(900).await;
            let _ = watched.current().await;
            assert_eq!(script.asked(), 2, "kept for a second");
            after(150).await;
            let _ = watched.current().await;
            assert_eq!(script.asked(), 3);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn it_ends_with_its_last_watcher() {
        let script = Script::new(Act::Up);
        let watched = script.watch(CheckMode::Background);
        after(10).await;
        drop(watched);
        after(10_000).await;
        assert_eq!(script.asked(), 1);
    }
}
