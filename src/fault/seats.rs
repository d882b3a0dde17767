//! How many requests are worked on at the same time, and how many may wait: first come, first served.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::wire::FaultSpec;

/// The workers and their queue.
#[derive(Debug)]
pub struct Seats {
    free: Arc<Semaphore>,
    waiting: Arc<AtomicU64>,
    workers: u64,
    queue: u64,
}

/// A worker is taken until this drops.
#[derive(Debug)]
pub struct Seat {
    _permit: OwnedSemaphorePermit,
}

/// The right to a worker, now or in turn. Dropping it gives up the place in the queue.
pub enum Ticket {
    Now(Seat),
    InTurn(Turn),
}

/// A place in the queue.
pub struct Turn {
    permit: Permit,
    _place: Place,
}

type Permit = Pin<Box<dyn Future<Output = OwnedSemaphorePermit> + Send>>;

/// All workers are busy, and as many requests wait as may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

struct Place(Arc<AtomicU64>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl Seats {
    /// As many as `spec` asks for; `None` if it sets no limit.
    pub(super) fn of(spec: &FaultSpec) -> Option<Seats> {
        Some(Seats::new(spec.workers?, spec.queue.unwrap_or(u64::MAX)))
    }

    pub fn new(workers: u64, queue: u64) -> Seats {
        let free = Semaphore::new(usize::try_from(workers).unwrap_or(Semaphore::MAX_PERMITS));
        Seats { free: Arc::new(free), waiting: Arc::default(), workers, queue }
    }

    pub fn workers(&self) -> u64 {
        self.workers
    }

    /// Requests that a worker has.
    pub fn busy(&self) -> u64 {
        self.workers.saturating_sub(self.free.available_permits() as u64)
    }

    /// Requests that wait for one.
    pub fn waiting(&self) -> u64 {
        self.waiting.load(Relaxed)
    }

    /// A worker, or a place in the queue. The place counts from now on, not from when it is first waited for.
    ///
    /// # Errors
    /// [`Full`], at once.
    pub async fn enter(&self) -> Result<Ticket, Full> {
        if let Ok(permit) = Arc::clone(&self.free).try_acquire_owned() {
            return Ok(Ticket::Now(Seat { _permit: permit }));
        }
        let within = |waiting: u64| (waiting < self.queue).then_some(waiting + 1);
        self.waiting.fetch_update(Relaxed, Relaxed, within).map_err(|_| Full)?;
        let place = Place(Arc::clone(&self.waiting));
        let free = Arc::clone(&self.free);
        let mut permit: Permit =
            Box::pin(async move { free.acquire_owned().await.expect("the semaphore is never closed") });
        // The semaphore serves in the order of the first poll.
        tokio::select! {
            biased;
            permit = &mut permit => Ok(Ticket::Now(Seat { _permit: permit })),
            () = std::future::ready(()) => Ok(Ticket::InTurn(Turn { permit, _place: place })),
        }
    }
}

impl Turn {
    /// Waits until a worker is free and all who came before have had one.
    pub async fn seat(self) -> Seat {
        Seat { _permit: self.permit.await }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seats(workers: u64, queue: u64) -> Seats {
        Seats::new(workers, queue)
    }

    async fn turn(seats: &Seats) -> Turn {
        match seats.enter().await {
            Ok(Ticket::InTurn(turn)) => turn,
            Ok(Ticket::Now(_)) => panic!("a worker was free"),
            Err(Full) => panic!("the queue was full"),
        }
    }

    #[tokio::test]
    async fn beyond_workers_and_queue_a_request_is_refused_at_once() {
        let seats = seats(2, 1);
        let first = seats.enter().await;
        let _second = seats.enter().await;
        let third = turn(&seats).await;
        assert_eq!(seats.enter().await.err(), Some(Full));
        assert_eq!((seats.busy(), seats.waiting()), (2, 1));
        drop(first);
        third.seat().await;
        assert_eq!(seats.waiting(), 0);
    }

    #[tokio::test]
    async fn a_queue_of_none_refuses_when_all_are_busy() {
        let seats = seats(1, 0);
        let first = seats.enter().await;
        assert!(matches!(first, Ok(Ticket::Now(_))));
        assert_eq!(seats.enter().await.err(), Some(Full));
        drop(first);
        assert!(matches!(seats.enter().await, Ok(Ticket::Now(_))));
    }

    #[tokio::test]
    async fn the_order_is_that_of_coming_not_that_of_asking() {
        let seats = seats(1, 10);
        let first = seats.enter().await;
        let (second, third) = (turn(&seats).await, turn(&seats).await);
        let (sender, mut order) = tokio::sync::mpsc::unbounded_channel();
        for (name, turn) in [("third", third), ("second", second)] {
            let sender = sender.clone();
            tokio::spawn(async move {
                let seat = turn.seat().await;
                sender.send(name).expect("the test listens");
                drop(seat);
            });
        }
        drop(first);
        assert_eq!((order.recv().await, order.recv().await), (Some("second"), Some("third")));
    }

    #[tokio::test]
    async fn who_gives_up_its_turn_leaves_no_gap() {
        let seats = seats(1, 2);
        let first = seats.enter().await;
        let (second, third) = (turn(&seats).await, turn(&seats).await);
        drop(second);
        assert_eq!(seats.waiting(), 1);
        drop(first);
        let _seat = third.seat().await;
        assert_eq!((seats.busy(), seats.waiting()), (1, 0));
    }
}
