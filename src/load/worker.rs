//! What the workers of one load share, and what each has of its own. Sends nothing itself.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::aim::Aim;
use super::connection::{Ask, Connection, Reply};
use super::outcome::{Cause, Verdict};
use super::tally::{Exchange, Tally};
use super::{Options, Plan};
use crate::wire::Reason;

/// The same for all workers of a load.
pub(super) struct Shared {
    pub(super) aim: Aim,
    pub(super) plan: Plan,
    pub(super) options: Options,
    pub(super) start: Instant,
    /// Requests of a closed loop that were taken by a worker.
    pub(super) taken: AtomicU64,
    pub(super) counters: Vec<Counters>,
    pub(super) stop: CancellationToken,
}

/// What can be watched while a worker works. Each has its own, so that they do not wait for each other's cache line.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Counters {
    pub(super) sent: AtomicU64,
    pub(super) ok: AtomicU64,
    pub(super) partial: AtomicU64,
    pub(super) ko: AtomicU64,
    pub(super) most_in_flight: AtomicU64,
    /// Of an open loop: times that a request had to wait for a connection to become free.
    pub(super) waited: AtomicU64,
}

impl Counters {
    pub(super) fn ended(&self) -> u64 {
        self.ok.load(Relaxed) + self.partial.load(Relaxed) + self.ko.load(Relaxed)
    }

    pub(super) fn in_flight(&self) -> u64 {
        self.sent.load(Relaxed).saturating_sub(self.ended())
    }
}

/// One thread's part of a load. Clones are the same.
#[derive(Clone)]
pub(super) struct Worker {
    pub(super) shared: Arc<Shared>,
    pub(super) number: usize,
    request: Rc<[u8]>,
    tally: Rc<RefCell<Tally>>,
}

impl Worker {
    pub(super) fn new(shared: Arc<Shared>, number: usize) -> Worker {
        let request = shared.aim.request(shared.options.keep_alive).into();
        let tally = Rc::new(RefCell::new(Tally::new(shared.options.speed, shared.options.samples)));
        Worker { shared, number, request, tally }
    }

    pub(super) fn counters(&self) -> &Counters {
        &self.shared.counters[self.number]
    }

    /// A span of the plan's time on the clock.
    pub(super) fn on_the_clock(&self, time: Duration) -> Duration {
        time.div_f64(self.shared.options.speed)
    }

    pub(super) fn since_start(&self, moment: Instant) -> Duration {
        moment.saturating_duration_since(self.shared.start)
    }

    pub(super) async fn open(&self, until: Instant) -> Result<Connection, Reason> {
        let opened = Connection::open(&self.shared.aim, until).await;
        self.tally.borrow_mut().opened += u64::from(opened.is_ok());
        opened
    }

    /// One request, on `connection` or a new one; gives back how it ended, and the connection if it can be used again.
    /// `due` is when an open loop wanted it to go.
    pub(super) async fn request(
        &self,
        connection: Option<Connection>,
        due: Option<Instant>,
    ) -> (Verdict, Option<Connection>) {
        let sent = Instant::now();
        let counters = self.counters();
        counters.sent.fetch_add(1, Relaxed);
        counters.most_in_flight.fetch_max(counters.in_flight(), Relaxed);
        if let Some(due) = due {
            self.tally.borrow_mut().lateness.add(sent.saturating_duration_since(due));
        }
        let until = sent + self.on_the_clock(self.shared.options.time_out);
        let (opened, connect) = match connection {
            Some(connection) => (Ok(connection), None),
            None => {
                let opened = self.open(until).await;
                (opened, Some(sent.elapsed()))
            }
        };
        let (connection, verdict, reply) = match opened {
            Ok(mut connection) => {
                let ask = Ask {
                    request: &self.request,
                    to_head: self.shared.aim.is_head(),
                    wants_server: self.tally.borrow().server.is_none(),
                };
                let (verdict, reply) = connection.exchange(ask, until).await;
                (Some(connection), verdict, reply)
            }
            Err(reason) => (None, Verdict::Failed(Cause::Broken(reason)), Reply::default()),
        };
        let ended = Instant::now();
        let kept = reply.keeps && self.shared.options.keep_alive;
        self.count(verdict);
        let open = sent + connect.unwrap_or_default();
        self.tally.borrow_mut().add(&Exchange {
            due: self.since_start(due.unwrap_or(sent)),
            sent: self.since_start(sent),
            ended: self.since_start(ended),
            opened: connection.is_some(),
            connect,
            waiting: reply.first_byte.map(|first| first.saturating_duration_since(open)),
            verdict,
            status: reply.status,
            flag: reply.flag,
            kept,
            body: reply.body,
            received: connection.as_ref().map_or(0, |connection| connection.received),
        });
        if let Some(server) = reply.server {
            self.tally.borrow_mut().server.get_or_insert(server);
        }
        (verdict, connection.filter(|_| kept))
    }

    fn count(&self, verdict: Verdict) {
        let counters = self.counters();
        let counter = match verdict {
            Verdict::Complete => &counters.ok,
            Verdict::Partial(_) => &counters.partial,
            Verdict::Failed(_) => &counters.ko,
        };
        counter.fetch_add(1, Relaxed);
    }

    /// All that was counted; what is still under way never will be.
    pub(super) fn counted(self) -> Tally {
        let speed = self.shared.options.speed;
        self.tally.replace(Tally::new(speed, false))
    }
}
