//! The connections to the next hop: hands them out, opens, keeps and closes them as [`core`] says.
//!
//! There is one pool for the whole process, so that its caps hold over all workers (Envoy has one for each worker: a
//! freed connection of one does not help a request that waits at another, and the cap is exceeded by races). A
//! connection stays registered with the runtime that opened it, which lives as long as the process, and is driven by
//! whichever request uses it.

pub(super) mod core;

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use self::core::{Asked, Core, Full, Limits, Orders};
use super::connection::Connection;
use super::dial::Dialer;
use super::error::CallError;
use super::hosts::Key;
use crate::telemetry::PoolFigures;

/// Why there is no connection.
#[derive(Debug)]
pub(super) enum Miss {
    Full(Full),
    Failed(CallError),
}

/// With the endpoint for which the pool counts it.
type Handed = Result<(Key, Connection), Miss>;
type Waiter = oneshot::Sender<Handed>;

/// Clones are the same pool.
#[derive(Clone)]
pub(super) struct Pool {
    core: Arc<Mutex<Core<Connection, Waiter>>>,
    dialer: Arc<Dialer>,
}

/// How long a connection may be used.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wear {
    pub(super) requests: u32,
    pub(super) age: Duration,
}

impl Wear {
    fn spares(self, connection: &Connection, now: Instant) -> bool {
        connection.served < self.requests && now.duration_since(connection.born) < self.age
    }
}

impl Pool {
    pub(super) fn new(limits: Limits, dialer: Arc<Dialer>) -> Pool {
        Pool { core: Arc::new(Mutex::new(Core::new(limits))), dialer }
    }

    fn core(&self) -> MutexGuard<'_, Core<Connection, Waiter>> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_limits(&self, limits: Limits) {
        let orders = self.core().set_limits(limits);
        self.carry_out(orders);
    }

    /// A connection to `key`: one that waits, else the next one that becomes free or is opened. Dropping the future
    /// gives the place in the queue up.
    ///
    /// # Errors
    /// If the queue is full, or the connection that was opened for it failed.
    pub(super) async fn checkout(&self, key: Key, wear: Wear) -> Result<Lease, Miss> {
        let now = Instant::now();
        let mut receiver = None;
        let asked = self.core().ask(
            key,
            || {
                let (tell, told) = oneshot::channel();
                receiver = Some(told);
                tell
            },
            |connection| wear.spares(connection, now) && connection.is_usable(),
        );
        let connection = match asked {
            Asked::Ready(connection) => connection,
            Asked::Refused(full) => return Err(Miss::Full(full)),
            Asked::Waits { ticket, connect } => {
                if connect {
                    self.dial(key);
                }
                let receiver = receiver.expect("whoever waits has left a way to be told");
                let mut waiting = Waiting { pool: self, key, ticket, receiver };
                match (&mut waiting.receiver).await {
                    Ok(handed) => handed?.1,
                    // Its runtime has ended, and this one is about to.
                    Err(_) => return Err(Miss::Full(Full::Pending)),
                }
            }
        };
        Ok(Lease { pool: self.clone(), key, connection: Some(connection) })
    }

    /// Opens a connection for whoever waits then. No request owns the attempt: the one that made it necessary may be
    /// served by another connection, or leave.
    fn dial(&self, key: Key) {
        let pool = self.clone();
        tokio::spawn(async move {
            let orders = match pool.dialer.open(key).await {
                Ok(connection) => pool.core().connected(key, connection, Instant::now()),
                Err(error) => {
                    let (failed, orders) = pool.core().not_connected(key);
                    for waiter in failed {
                        // It may have left just now.
                        let _ = waiter.send(Err(Miss::Failed(error.clone())));
                    }
                    orders
                }
            };
            pool.carry_out(orders);
        });
    }

    fn carry_out(&self, mut orders: Orders<Connection, Waiter>) {
        loop {
            for key in orders.connect.drain(..) {
                self.dial(key);
            }
            let Some((waiter, handed)) = orders.served.pop() else { return };
            // Whoever left in the meantime gives it back, for the next one.
            if let Err(Ok((key, connection))) = waiter.send(handed.map_err(Miss::Full)) {
                let more = self.core().give(key, connection, Instant::now());
                orders.served.extend(more.served);
                orders.connect.extend(more.connect);
            }
        }
    }

    /// Whether nothing but attempts to connect is known of this endpoint.
    pub(super) fn is_only_connecting(&self, key: Key) -> bool {
        self.core().is_only_connecting(key)
    }

    /// Closes what has waited too long, is too old, was closed by its peer, or leads to nobody in use.
    pub(super) fn sweep(&self, idle: Duration, wear: Wear, current: impl Fn(Key) -> bool) {
        let now = Instant::now();
        let usable = |connection: &mut Connection| wear.spares(connection, now) && connection.is_usable();
        let orders = self.core().sweep(now, idle, current, usable);
        self.carry_out(orders);
    }

    pub(super) fn drain(&self, key: Key) {
        let orders = self.core().drain(key);
        self.carry_out(orders);
    }

    pub(super) fn figures(&self) -> PoolFigures {
        self.core().figures()
    }

    /// Whether the caps on connections, on who waits and on requests are reached.
    pub(super) fn full(&self) -> [bool; 3] {
        self.core().full()
    }

    pub(super) fn load(&self) -> usize {
        self.core().load()
    }
}

/// A place in the queue. On drop it is given up, and a connection that was handed over just then goes to the next one.
struct Waiting<'a> {
    pool: &'a Pool,
    key: Key,
    ticket: u64,
    receiver: oneshot::Receiver<Handed>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.receiver.close();
        match self.receiver.try_recv() {
            Ok(Ok((_, connection))) => {
                let orders = self.pool.core().give(self.key, connection, Instant::now());
                self.pool.carry_out(orders);
            }
            Ok(Err(_)) => {}
            Err(_) => self.pool.core().cancel(self.key, self.ticket),
        }
    }
}

/// A connection in use by one request. On drop it is closed, unless it was given back.
pub(super) struct Lease {
    pool: Pool,
    key: Key,
    connection: Option<Connection>,
}

impl Lease {
    /// The request is done, and the answer was read to its end.
    pub(super) fn give_back(mut self, wear: Wear) {
        let now = Instant::now();
        if let Some(connection) = &mut self.connection
            && wear.spares(connection, now)
            && connection.is_usable()
            && let Some(connection) = self.connection.take()
        {
            let orders = self.pool.core().give_at(self.key, connection.endpoint, connection, now);
            self.pool.carry_out(orders);
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // Closed before its place is free: the target must not see one connection too many.
        if let Some(connection) = self.connection.take() {
            drop(connection);
            let orders = self.pool.core().closed(self.key);
            self.pool.carry_out(orders);
        }
    }
}

impl Deref for Lease {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        self.connection.as_ref().expect("taken only when the lease ends")
    }
}

impl DerefMut for Lease {
    fn deref_mut(&mut self) -> &mut Connection {
        self.connection.as_mut().expect("taken only when the lease ends")
    }
}
