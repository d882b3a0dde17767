//! Who gets a connection, who waits, who is refused. Takes what happened and says what is to be done; does no I/O.
//!
//! The rules are those of Envoy's `conn_pool_base.cc`: a request takes the idle connection that was used last, else it
//! waits, first come first served, and a connection is opened for it if none is being opened already and the cap
//! allows one. Generic over the connection `C` and over `W`, by which whoever waits is told.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use crate::downstream::hosts::Key;
use crate::manifest::{ConnectionPool, PoolRule};
use crate::telemetry::PoolFigures;

/// Idle connections to one endpoint that are kept for a next burst, and how long after one the others are closed.
const KEPT: usize = 32;
const BURST_OVER: Duration = Duration::from_secs(2);

/// Counts that may not be exceeded, all endpoints together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Connections being opened, busy and idle. An endpoint that has none may open one all the same.
    pub(crate) connections: usize,
    /// Requests that wait, also for a connection that is being opened for them.
    pub(crate) pending: usize,
    /// Requests that have a connection.
    pub(crate) requests: usize,
    pub(crate) rule: PoolRule,
}

impl Limits {
    pub(crate) fn new(pool: &ConnectionPool, rule: PoolRule) -> Limits {
        let limit = |count: Option<u32>| count.map_or(usize::MAX, |count| count as usize);
        Limits {
            connections: limit(pool.tcp.max_connections),
            pending: limit(pool.http.http1_max_pending_requests),
            requests: limit(pool.http.http2_max_requests),
            rule,
        }
    }
}

/// Which limit refused a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Full {
    Pending,
    Requests,
}

/// What a request got that asked for a connection.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Asked<C> {
    Ready(C),
    /// It waits under this number; where `connect` is set, a connection to its endpoint is to be opened.
    Waits {
        ticket: u64,
        connect: bool,
    },
    Refused(Full),
}

/// A connection, with the endpoint for which it is counted; or none.
type Handed<C> = Result<(Key, C), Full>;

/// What is to be done after something has happened.
#[derive(Debug)]
pub(crate) struct Orders<C, W> {
    /// Those that wait no more, and what each gets.
    pub(crate) served: Vec<(W, Handed<C>)>,
    /// Endpoints to which a connection is to be opened.
    pub(crate) connect: Vec<Key>,
}

impl<C, W> Default for Orders<C, W> {
    fn default() -> Orders<C, W> {
        Orders { served: Vec::new(), connect: Vec::new() }
    }
}

#[derive(Debug)]
struct Idle<C> {
    connection: C,
    since: Instant,
}

/// The connections to one endpoint, and who waits for one. There are few endpoints: looking through them beats hashing.
#[derive(Debug)]
struct Lane<C, W> {
    key: Key,
    idle: Vec<Idle<C>>,
    waiting: VecDeque<(u64, W)>,
    connecting: usize,
    busy: usize,
}

impl<C, W> Lane<C, W> {
    fn open(&self) -> usize {
        self.connecting + self.busy + self.idle.len()
    }
}

#[derive(Debug)]
pub(crate) struct Core<C, W> {
    limits: Limits,
    lanes: Vec<Lane<C, W>>,
    open: usize,
    pending: usize,
    active: usize,
    tickets: u64,
    tally: PoolFigures,
}

impl<C, W> Core<C, W> {
    pub(crate) fn new(limits: Limits) -> Core<C, W> {
        Core { limits, lanes: Vec::new(), open: 0, pending: 0, active: 0, tickets: 0, tally: PoolFigures::default() }
    }

    /// Other limits from now on. Idle connections beyond a lower cap are closed now, busy ones when their request is
    /// done; who waits already goes on waiting.
    pub(crate) fn set_limits(&mut self, limits: Limits) -> Orders<C, W> {
        self.limits = limits;
        for Lane { idle, .. } in &mut self.lanes {
            let surplus = self.open.saturating_sub(self.limits.connections).min(idle.len());
            idle.drain(..surplus);
            self.open -= surplus;
        }
        Orders { connect: self.connect_for_waiting(), ..Orders::default() }
    }

    fn lane(&mut self, key: Key) -> usize {
        self.lanes.iter().position(|lane| lane.key == key).unwrap_or_else(|| {
            self.lanes.push(Lane { key, idle: Vec::new(), waiting: VecDeque::new(), connecting: 0, busy: 0 });
            self.lanes.len() - 1
        })
    }

    /// A request asks for a connection to `key`; `usable` says of an idle one whether its peer still keeps it.
    pub(crate) fn ask(
        &mut self,
        key: Key,
        waiter: impl FnOnce() -> W,
        mut usable: impl FnMut(&mut C) -> bool,
    ) -> Asked<C> {
        let lane = self.lane(key);
        while let Some(mut idle) = self.lanes[lane].idle.pop() {
            if !usable(&mut idle.connection) {
                self.open -= 1;
                continue;
            }
            if self.active >= self.limits.requests {
                self.lanes[lane].idle.push(idle);
                self.tally.request_overflow += 1;
                return Asked::Refused(Full::Requests);
            }
            self.active += 1;
            self.lanes[lane].busy += 1;
            return Asked::Ready(idle.connection);
        }
        if self.pending >= self.limits.pending {
            self.tally.pending_overflow += 1;
            return Asked::Refused(Full::Pending);
        }
        self.tickets += 1;
        self.pending += 1;
        self.lanes[lane].waiting.push_back((self.tickets, waiter()));
        let wanted = match self.limits.rule {
            PoolRule::Modern => self.lanes[lane].waiting.len() > self.lanes[lane].connecting,
            PoolRule::Envoy113 => true,
        };
        Asked::Waits { ticket: self.tickets, connect: wanted && self.connect(lane) }
    }

    /// Takes a place for one more connection, if there is one.
    fn connect(&mut self, lane: usize) -> bool {
        let lane = &mut self.lanes[lane];
        let allowed = self.open < self.limits.connections || lane.open() == 0;
        if allowed {
            lane.connecting += 1;
            self.open += 1;
        } else {
            self.tally.connection_overflow += 1;
        }
        allowed
    }

    /// Whoever waited under `ticket` waits no more.
    pub(crate) fn cancel(&mut self, key: Key, ticket: u64) {
        let lane = self.lane(key);
        let waiting = &mut self.lanes[lane].waiting;
        if let Ok(place) = waiting.binary_search_by_key(&ticket, |(ticket, _)| *ticket) {
            waiting.remove(place);
            self.pending -= 1;
        }
    }

    /// Whether nothing but attempts to connect is known of this endpoint.
    pub(crate) fn is_only_connecting(&self, key: Key) -> bool {
        let lane = self.lanes.iter().find(|lane| lane.key == key);
        lane.is_some_and(|lane| lane.connecting > 0 && lane.busy == 0 && lane.idle.is_empty())
    }

    /// A connection that was to be opened stands.
    pub(crate) fn connected(&mut self, key: Key, connection: C, now: Instant) -> Orders<C, W> {
        let lane = self.lane(key);
        self.lanes[lane].connecting -= 1;
        self.tally.connections_opened += 1;
        self.offer(lane, connection, now)
    }

    /// A connection that was to be opened does not stand. All that wait for its endpoint have failed with it.
    pub(crate) fn not_connected(&mut self, key: Key) -> (Vec<W>, Orders<C, W>) {
        let lane = self.lane(key);
        self.lanes[lane].connecting -= 1;
        self.open -= 1;
        self.tally.connect_failures += 1;
        let failed: Vec<W> = self.lanes[lane].waiting.drain(..).map(|(_, waiter)| waiter).collect();
        self.pending -= failed.len();
        (failed, Orders { connect: self.connect_for_waiting(), ..Orders::default() })
    }

    /// A request is done, and its connection can carry another.
    pub(crate) fn give(&mut self, key: Key, connection: C, now: Instant) -> Orders<C, W> {
        let lane = self.lane(key);
        self.lanes[lane].busy -= 1;
        self.active -= 1;
        self.offer(lane, connection, now)
    }

    /// The same where the connection turned out to lead to another endpoint than was asked for.
    pub(crate) fn give_at(&mut self, asked: Key, key: Key, connection: C, now: Instant) -> Orders<C, W> {
        if asked != key {
            let (from, to) = (self.lane(asked), self.lane(key));
            self.lanes[from].busy -= 1;
            self.lanes[to].busy += 1;
        }
        self.give(key, connection, now)
    }

    /// A request is done, and its connection with it.
    pub(crate) fn closed(&mut self, key: Key) -> Orders<C, W> {
        let lane = self.lane(key);
        self.lanes[lane].busy -= 1;
        self.active -= 1;
        self.open -= 1;
        Orders { connect: self.connect_for_waiting(), ..Orders::default() }
    }

    fn offer(&mut self, lane: usize, connection: C, now: Instant) -> Orders<C, W> {
        let mut orders = Orders::default();
        if self.open > self.limits.connections && self.lanes[lane].open() > 0 {
            // The cap was lowered meanwhile.
            drop(connection);
            self.open -= 1;
            orders.connect = self.connect_for_waiting();
            return orders;
        }
        while let Some((_, waiter)) = self.lanes[lane].waiting.pop_front() {
            self.pending -= 1;
            if self.active < self.limits.requests {
                self.active += 1;
                self.lanes[lane].busy += 1;
                orders.served.push((waiter, Ok((self.lanes[lane].key, connection))));
                return orders;
            }
            self.tally.request_overflow += 1;
            orders.served.push((waiter, Err(Full::Requests)));
        }
        self.lanes[lane].idle.push(Idle { connection, since: now });
        orders
    }

    /// Where a place has become free, for whom it is used.
    fn connect_for_waiting(&mut self) -> Vec<Key> {
        let mut keys = Vec::new();
        if self.pending == 0 {
            return keys;
        }
        for lane in 0..self.lanes.len() {
            loop {
                let Lane { waiting, connecting, busy, idle, .. } = &self.lanes[lane];
                let wanted = match self.limits.rule {
                    PoolRule::Modern => waiting.len() > *connecting,
                    // What strands the one that waits for 190 to close: they count as its hope.
                    PoolRule::Envoy113 => waiting.len() > connecting + busy + idle.len(),
                };
                if !wanted || !self.connect(lane) {
                    break;
                }
                keys.push(self.lanes[lane].key);
            }
        }
        keys
    }

    /// Closes idle connections that have waited longer than `limit`, that `keep` does not want, what a burst has left
    /// behind, and all to an endpoint that is not `current`.
    pub(crate) fn sweep(
        &mut self,
        now: Instant,
        limit: Duration,
        current: impl Fn(Key) -> bool,
        mut keep: impl FnMut(&mut C) -> bool,
    ) -> Orders<C, W> {
        for Lane { key, idle, .. } in &mut self.lanes {
            let current = current(*key);
            let before = idle.len();
            // The oldest come first. All but a few of a burst go soon.
            let mut surplus = before.saturating_sub(KEPT);
            idle.retain_mut(|idle| {
                let waited = now.duration_since(idle.since);
                let left_behind = surplus > 0 && waited > BURST_OVER;
                surplus = surplus.saturating_sub(1);
                current && !left_behind && waited < limit && keep(&mut idle.connection)
            });
            self.open -= before - idle.len();
        }
        self.lanes.retain(|lane| lane.open() > 0 || !lane.waiting.is_empty());
        Orders { connect: self.connect_for_waiting(), ..Orders::default() }
    }

    /// Closes the idle connections to an endpoint that is out of use.
    pub(crate) fn drain(&mut self, key: Key) -> Orders<C, W> {
        let lane = self.lane(key);
        self.open -= self.lanes[lane].idle.drain(..).count();
        Orders { connect: self.connect_for_waiting(), ..Orders::default() }
    }

    pub(crate) fn figures(&self) -> PoolFigures {
        PoolFigures {
            connections: self.open,
            connecting: self.lanes.iter().map(|lane| lane.connecting).sum(),
            idle: self.lanes.iter().map(|lane| lane.idle.len()).sum(),
            pending: self.pending,
            active: self.active,
            ..self.tally
        }
    }

    /// Whether the caps on connections, on who waits and on requests are reached.
    pub(crate) fn full(&self) -> [bool; 3] {
        let Limits { connections, pending, requests, .. } = self.limits;
        [self.open >= connections, self.pending >= pending, self.active >= requests]
    }

    /// Requests under way and waiting: what a retry budget is a share of.
    pub(crate) fn load(&self) -> usize {
        self.active + self.pending
    }
}
