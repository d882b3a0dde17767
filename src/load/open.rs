//! The open loop: a request goes when it is due, whatever is still unanswered.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::clock::Clock;
use super::connection::Connection;
use super::worker::Worker;

/// Requests that go one after the other when the loop is late. The runtime polls 61 tasks before it looks for answers,
/// and each request is polled two or three times: with more, answers would wait for requests, and all get later.
const TURN: u32 = 16;
/// What is due sooner than this goes together: to wake up for each would cost more than to send it.
const TOGETHER: Duration = Duration::from_micros(50);

/// With kept connections, as many as this time has requests are opened beforehand. Opening one costs a target many
/// times what an answer does: else a high rate begins with a jam of its own making.
const OPEN_FOR: f64 = 1e-3;
/// A target that takes longer to take connections gets its load all the same.
const OPENING: Duration = Duration::from_millis(100);

/// What the requests under way share.
struct Flight {
    worker: Worker,
    idle: RefCell<Vec<Connection>>,
    count: Cell<u64>,
    landed: Notify,
}

/// Sends every `of`-th request of the plan, with at most `most` unanswered at one time.
pub(super) async fn run(worker: &Worker, of: usize, most: u64) -> io::Result<()> {
    let clock = Clock::new()?;
    let (idle, count, landed) = (RefCell::default(), Cell::new(0), Notify::new());
    let flight = Rc::new(Flight { worker: worker.clone(), idle, count, landed });
    if worker.shared.options.keep_alive {
        flight.open_some(of, most).await;
    }
    // The opening is no part of the plan.
    let start = Instant::now();
    let end = start + worker.on_the_clock(worker.shared.plan.length().unwrap_or_default());
    let mut turn = 0;
    for due in worker.shared.plan.schedule().skip(worker.number).step_by(of) {
        let due = start + worker.on_the_clock(due);
        let now = Instant::now();
        if due > now {
            clock.until(due.max(now + TOGETHER)).await?;
            turn = 0;
        }
        if flight.count.get() >= most {
            worker.counters().waited.fetch_add(1, Relaxed);
            tokio::select! {
                () = flight.until(|count| count < most) => {}
                ended = clock.until(end) => {
                    ended?;
                    break;
                }
            }
        }
        flight.count.set(flight.count.get() + 1);
        tokio::task::spawn_local(Rc::clone(&flight).request(due));
        turn += 1;
        if turn % TURN == 0 {
            tokio::task::yield_now().await;
        }
    }
    if worker.shared.options.cut_off {
        return clock.until(end).await;
    }
    flight.until(|count| count == 0).await;
    Ok(())
}

impl Flight {
    async fn request(self: Rc<Self>, due: Instant) {
        let (_, kept) = self.worker.request(self.idle_connection(), Some(due)).await;
        self.idle.borrow_mut().extend(kept);
        self.count.set(self.count.get() - 1);
        self.landed.notify_one();
    }

    async fn open_some(self: &Rc<Self>, of: usize, most: u64) {
        let wanted = self.worker.shared.plan.rate() * self.worker.shared.options.speed * OPEN_FOR / of as f64;
        let until = Instant::now() + OPENING;
        let mut opening = JoinSet::new();
        for _ in 0..most.min(wanted as u64) {
            let flight = Rc::clone(self);
            // One that fails is not counted: the requests will find out, and they are.
            opening.spawn_local(async move {
                let opened = flight.worker.open(until).await;
                flight.idle.borrow_mut().extend(opened.ok());
            });
        }
        while opening.join_next().await.is_some() {}
    }

    /// The connection that was used last and is still open.
    fn idle_connection(&self) -> Option<Connection> {
        let mut idle = self.idle.borrow_mut();
        std::iter::from_fn(|| idle.pop()).find(Connection::is_open)
    }

    /// Waits until the number of requests under way is as wanted.
    async fn until(&self, wanted: impl Fn(u64) -> bool) {
        while !wanted(self.count.get()) {
            self.landed.notified().await;
        }
    }
}
