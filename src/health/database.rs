//! The pool through which business requests reach the database. The checks have connections of their own: a pool that
//! is used up says nothing about the database.

use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};
use std::time::Duration;

use thiserror::Error;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::dependency::{Backend, Connection};
use super::verdict::Failure;
use crate::units::Span;

/// What a pool allows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) connections: usize,
    /// How long a request waits for one of them.
    pub(super) wait: Span,
    /// How long its query may then take, with the connecting.
    pub(super) timeout: Span,
}

/// Why a query gave nothing.
#[derive(Debug, Error, PartialEq)]
pub enum QueryError {
    #[error("all {0} connections of --db-pool are in use, none came free within {1}")]
    Full(usize, Span),
    #[error("the database did not answer within {0}")]
    Timeout(Span),
    #[error("the database: {0}")]
    Failed(Failure),
}

/// Handle to the pool; clones share its connections.
#[derive(Clone)]
pub(super) struct Database(Arc<Inner>);

struct Inner {
    backend: Backend,
    limits: Limits,
    seats: Semaphore,
    idle: Mutex<Vec<Idle>>,
}

/// A connection that waits. Its bytes are moved by the worker that opened it.
struct Idle {
    connection: Connection,
    home: ThreadId,
}

impl Database {
    pub(super) fn new(backend: Backend, limits: Limits) -> Database {
        let (seats, idle) = (Semaphore::new(limits.connections), Mutex::default());
        Database(Arc::new(Inner { backend, limits, seats, idle }))
    }

    /// One question that keeps its connection busy for `time`.
    pub(super) async fn query(&self, time: Duration) -> Result<(), QueryError> {
        let Inner { limits, seats, .. } = &*self.0;
        let seat = timeout(*limits.wait, seats.acquire()).await;
        let _seat = seat.map_err(|_| QueryError::Full(limits.connections, limits.wait))?.expect("never closed");
        match timeout(*limits.timeout, self.work(time)).await {
            Ok(result) => result.map_err(QueryError::Failed),
            Err(_) => Err(QueryError::Timeout(limits.timeout)),
        }
    }

    /// With a connection that waited, else with a new one. A connection whose query fails or is given up is closed.
    async fn work(&self, time: Duration) -> Result<(), Failure> {
        if let Some(mut waited) = self.0.take() {
            // It may have died while it waited, which says nothing about the database.
            if waited.connection.ask().await.is_ok() {
                if !time.is_zero() {
                    waited.connection.work(time).await?;
                }
                self.0.give(waited);
                return Ok(());
            }
        }
        let mut connection = self.0.backend.open().await?;
        connection.work(time).await?;
        if connection.lasts() {
            self.0.give(Idle { connection, home: thread::current().id() });
        }
        Ok(())
    }
}

impl Inner {
    fn take(&self) -> Option<Idle> {
        let mut idle = self.idle.lock().expect("nobody panics with the lock held");
        let home = thread::current().id();
        // One of this worker's own needs no other worker to move its bytes.
        match idle.iter().rposition(|idle| idle.home == home) {
            Some(place) => Some(idle.swap_remove(place)),
            None => idle.pop(),
        }
    }

    fn give(&self, connection: Idle) {
        self.idle.lock().expect("nobody panics with the lock held").push(connection);
    }
}

#[cfg(test)]
mod tests {
    use super::super::dependency::{Mode, Sim};
    use super::*;

    fn pool(mode: Mode, connections: usize) -> Database {
        let limits = Limits { connections, wait: Span::millis(100), timeout: Span::secs(2) };
        Database::new(Backend::Sim(Sim::new(mode)), limits)
    }

    #[tokio::test(start_paused = true)]
    async fn a_pool_that_is_used_up_is_refused_after_the_wait() {
        let pool = pool(Mode::Slow { ms: 500 }, 2);
        let busy: Vec<_> = (0..2)
            .map(|_| {
                let pool = pool.clone();
                tokio::spawn(async move { pool.query(Duration::ZERO).await })
            })
            .collect();
        tokio::task::yield_now().await;
        assert_eq!(pool.query(Duration::ZERO).await, Err(QueryError::Full(2, Span::millis(100))));
        for query in busy {
            assert_eq!(query.await.expect("no panic"), Ok(()));
        }
        assert_eq!(pool.query(Duration::ZERO).await, Ok(()), "the seats are given back");
    }

    #[tokio::test(start_paused = true)]
    async fn a_database_that_hangs_gives_its_seats_back_at_the_time_out() {
        let pool = pool(Mode::Hang, 1);
        assert_eq!(pool.query(Duration::ZERO).await, Err(QueryError::Timeout(Span::secs(2))));
        assert_eq!(pool.query(Duration::ZERO).await, Err(QueryError::Timeout(Span::secs(2))));
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_that_leaves_gives_its_seat_back() {
        let pool = pool(Mode::Hang, 1);
        let caller = tokio::spawn({
            let pool = pool.clone();
            async move { pool.query(Duration::ZERO).await }
        });
        tokio::task::yield_now().await;
        caller.abort();
        assert!(caller.await.is_err_and(|error| error.is_cancelled()));
        assert_eq!(pool.0.seats.available_permits(), 1);
    }
}
