//! Runs a plan on threads of its own, so that whoever starts it cannot make it late; lets it be watched and stopped.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use thiserror::Error;
use tokio::sync::mpsc;
use tokio::task::LocalSet;
use tokio_util::sync::CancellationToken;

use super::aim::Aim;
use super::outcome::Sample;
use super::spread::Spread;
use super::summary::Summary;
use super::tally::Tally;
use super::worker::{Counters, Shared, Worker};
use super::{Options, Plan, closed, open};

/// A generator that is later than this, one request in a hundred, is named in the summary.
const LATE_MS: f64 = 20.0;

/// A load that is under way. Dropping it stops it.
pub struct Run {
    shared: Arc<Shared>,
    done: mpsc::UnboundedReceiver<Part>,
    parts: Vec<Part>,
}

/// What one worker counted, and whether it came to its end.
type Part = (Tally, io::Result<()>);

#[derive(Debug, Error)]
pub enum StartError {
    #[error("no thread for the load: {0}")]
    Thread(io::Error),
}

/// Where a load is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Progress {
    /// On the clock.
    pub elapsed: Duration,
    pub sent: u64,
    pub ok: u64,
    pub partial: u64,
    pub ko: u64,
    pub in_flight: u64,
}

/// What a load gave.
#[derive(Clone, Debug)]
pub struct Results {
    pub summary: Summary,
    /// From due to done, in the plan's times: of all that ended, and of the complete ones.
    pub latency: Spread,
    pub latency_ok: Spread,
    /// Every single request in the order in which they ended, if [`Options::samples`] asked for them.
    pub samples: Vec<Sample>,
    pub(super) tally: Tally,
    pub(super) elapsed: Duration,
}

/// Starts a load; its first request is due at once.
///
/// # Errors
/// If the system gives no thread for it.
pub fn start(plan: Plan, aim: Aim, options: Options) -> Result<Run, StartError> {
    let threads = match plan {
        Plan::Closed { connections, .. } => options.threads.min(connections),
        Plan::Open { .. } => options.threads.min(options.max_in_flight),
    };
    let threads = threads.max(1);
    let shared = Arc::new(Shared {
        aim,
        plan,
        options,
        start: Instant::now(),
        taken: AtomicU64::new(0),
        counters: (0..threads).map(|_| Counters::default()).collect(),
        stop: CancellationToken::new(),
    });
    let (tell, done) = mpsc::unbounded_channel();
    for number in 0..threads {
        let (shared, tell) = (Arc::clone(&shared), tell.clone());
        let named = thread::Builder::new().name(format!("load-{number}"));
        let work = move || {
            // Whoever started it may be gone.
            let _ = tell.send(work(shared, number, threads));
        };
        named.spawn(work).map_err(StartError::Thread)?;
    }
    Ok(Run { shared, done, parts: Vec::new() })
}

fn work(shared: Arc<Shared>, number: usize, threads: usize) -> Part {
    let (stop, worker) = (shared.stop.clone(), Worker::new(shared, number));
    let ended = tokio::runtime::Builder::new_current_thread().enable_all().build().and_then(|runtime| {
        let local = LocalSet::new();
        // What is still under way then is dropped with the set: its connections close.
        runtime.block_on(local.run_until(async {
            tokio::select! {
                () = stop.cancelled() => Ok(()),
                ended = play(&worker, threads) => ended,
            }
        }))
    });
    (worker.counted(), ended)
}

async fn play(worker: &Worker, threads: usize) -> io::Result<()> {
    let share = |all: usize| all / threads + usize::from(worker.number < all % threads);
    match worker.shared.plan {
        Plan::Closed { requests, connections } => {
            closed::run(worker, requests, share(connections)).await;
            Ok(())
        }
        Plan::Open { .. } => open::run(worker, threads, share(worker.shared.options.max_in_flight) as u64).await,
    }
}

impl Run {
    pub fn progress(&self) -> Progress {
        // In this order: a request that is sent meanwhile is not taken for one that has ended.
        let (ok, partial) = (self.sum(|counters| &counters.ok), self.sum(|counters| &counters.partial));
        let ko = self.sum(|counters| &counters.ko);
        let sent = self.sum(|counters| &counters.sent);
        let in_flight = sent.saturating_sub(ok + partial + ko);
        Progress { elapsed: self.shared.start.elapsed(), sent, ok, partial, ko, in_flight }
    }

    /// Sends no more and waits for nothing: [`Run::finish`] then gives what there is.
    pub fn stop(&self) {
        self.shared.stop.cancel();
    }

    /// Waits for the end. May be given up and called again.
    pub async fn finish(&mut self) -> Results {
        while let Some(part) = self.done.recv().await {
            self.parts.push(part);
        }
        let elapsed = self.shared.start.elapsed();
        let mut tally = Tally::new(self.shared.options.speed, self.shared.options.samples);
        let mut warnings = self.doubts();
        for (part, ended) in self.parts.drain(..) {
            tally.merge(part);
            warnings.extend(ended.err().map(|error| format!("the load broke off: {error}")));
        }
        tally.samples.sort_by_key(|sample| sample.ended);
        let Progress { sent, .. } = self.progress();
        let mut summary = Summary::of(&tally, elapsed.as_secs_f64() * self.shared.options.speed);
        summary.unanswered = sent.saturating_sub(summary.total);
        summary.unsent = self.shared.plan.total().saturating_sub(sent);
        summary.most_in_flight = self.sum(|counters| &counters.most_in_flight);
        warnings.extend(summary.doubts(LATE_MS));
        summary.warnings = warnings;
        Results {
            summary,
            latency: tally.latency.clone(),
            latency_ok: tally.latency_ok.clone(),
            samples: std::mem::take(&mut tally.samples),
            tally,
            elapsed,
        }
    }

    fn sum(&self, counter: fn(&Counters) -> &AtomicU64) -> u64 {
        self.shared.counters.iter().map(|counters| counter(counters).load(Relaxed)).sum()
    }

    /// What only the run knows that makes its figures doubtful.
    fn doubts(&self) -> Vec<String> {
        let mut doubts = Vec::new();
        if self.shared.stop.is_cancelled() {
            doubts.push("stopped before its end: these are the figures so far".to_owned());
        }
        let waited = self.sum(|counters| &counters.waited);
        if waited > 0 {
            let most = self.shared.options.max_in_flight;
            doubts
                .push(format!("{waited} requests were late because {most} were unanswered already, the most allowed"));
        }
        doubts
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.stop();
    }
}
