//! The second article's seven experiments as events on a clock of their own: the pool and the breaker as they are, a
//! load and servers as the article had them. Exact, and over in a moment.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

use super::hosts::{Event, Hosts, Key, NoHost, Outcome, Pick, What};
use super::pool::core::{Asked, Core, Limits, Orders};
use crate::manifest::{OutlierDetection, PoolRule, Simple};
use crate::units::Span;

/// The article's time-out, and the end of its load.
const TIMEOUT: Duration = Duration::from_secs(10);
const END: Duration = Duration::from_secs(130);
/// A new connection, and the way to the server and back: enough that nothing happens at the same time.
const CONNECT: Duration = Duration::from_micros(300);
const WAY: Duration = Duration::from_micros(100);
const UNLIMITED: u32 = u32::MAX;

/// What a server does with a request.
#[derive(Clone, Copy)]
struct Server {
    takes: Duration,
    /// How many it works on at the same time; it works on for clients that have gone.
    workers: usize,
}

struct Experiment {
    servers: Vec<Server>,
    limits: Limits,
    per_connection: u32,
    outliers: Option<OutlierDetection>,
    /// When the first look comes after the load has begun.
    phase: f64,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Happens {
    Arrival(usize),
    Connected(usize),
    ServerGets(usize),
    ServerDone { server: usize, request: usize },
    Answer(usize),
    TooLate(usize),
    Look,
}

/// A request on its way.
struct Request {
    arrived: Duration,
    pick: Option<Pick>,
    ticket: Option<u64>,
    connection: Option<Connection>,
    done: bool,
}

#[derive(Clone, Copy, Debug)]
struct Connection {
    served: u32,
}

#[derive(Default)]
struct Queue {
    busy: usize,
    waiting: VecDeque<usize>,
}

struct Run {
    experiment: Experiment,
    start: Instant,
    now: Duration,
    to_come: BinaryHeap<Reverse<(Duration, u64, Happens)>>,
    number: u64,
    core: Core<Connection, usize>,
    hosts: Hosts,
    requests: Vec<Request>,
    queues: Vec<Queue>,
    /// Answers until the end of the load, by status.
    answers: BTreeMap<u16, usize>,
    total_time: Duration,
    connects: usize,
    events: Vec<(f64, Event)>,
    last_ok: Duration,
    /// Requests that a server worked on though nobody waited any more.
    dead_work: usize,
}

fn key(server: usize) -> Key {
    (server, std::net::SocketAddr::from(([127, 0, 0, 1], 8081 + server as u16)))
}

/// Second `i` of the first ten has 5 (i + 1) requests, each later one 50, evenly spaced.
fn arrivals() -> impl Iterator<Item = Duration> {
    (0..130u64).flat_map(|second| {
        let count = (5 * (second + 1)).min(50);
        (0..count).map(move |n| Duration::from_secs_f64(second as f64 + n as f64 / count as f64))
    })
}

impl Run {
    fn of(experiment: Experiment) -> Run {
        let start = Instant::now() + Duration::from_secs(100);
        let interval = Duration::from_secs(10);
        let begun = start + Duration::from_secs_f64(experiment.phase) - interval * 5;
        let mut hosts = Hosts::new(experiment.outliers.clone(), Simple::RoundRobin, begun, 1);
        hosts.set_members(&(0..experiment.servers.len()).map(key).collect::<Vec<_>>(), begun);
        for looks in 1..5 {
            hosts.look(begun + interval * looks);
        }
        let mut run = Run {
            core: Core::new(experiment.limits),
            queues: experiment.servers.iter().map(|_| Queue::default()).collect(),
            experiment,
            start,
            now: Duration::ZERO,
            to_come: BinaryHeap::new(),
            number: 0,
            hosts,
            requests: Vec::new(),
            answers: BTreeMap::new(),
            total_time: Duration::ZERO,
            connects: 0,
            events: Vec::new(),
            last_ok: Duration::ZERO,
            dead_work: 0,
        };
        for (number, at) in arrivals().enumerate() {
            run.requests.push(Request { arrived: at, pick: None, ticket: None, connection: None, done: false });
            run.at(at, Happens::Arrival(number));
        }
        run.next_look();
        while let Some(Reverse((at, _, what))) = run.to_come.pop() {
            // Looks would go on for ever.
            if at > END * 3 {
                break;
            }
            run.now = at;
            run.happen(what);
        }
        run
    }

    fn at(&mut self, at: Duration, what: Happens) {
        self.number += 1;
        self.to_come.push(Reverse((at, self.number, what)));
    }

    fn clock(&self) -> Instant {
        self.start + self.now
    }

    fn next_look(&mut self) {
        if let Some(due) = self.hosts.due() {
            self.at(due.saturating_duration_since(self.start), Happens::Look);
        }
    }

    fn happen(&mut self, what: Happens) {
        match what {
            Happens::Arrival(request) => self.arrive(request),
            Happens::Connected(server) => {
                let orders = self.core.connected(key(server), Connection { served: 0 }, self.clock());
                self.carry_out(orders);
            }
            Happens::ServerGets(request) => {
                let server = self.server_of(request);
                self.queues[server].waiting.push_back(request);
                self.work(server);
            }
            Happens::ServerDone { server, request } => {
                self.queues[server].busy -= 1;
                self.dead_work += usize::from(self.requests[request].done);
                self.at(self.now + WAY, Happens::Answer(request));
                self.work(server);
            }
            Happens::Answer(request) if !self.requests[request].done => self.finish(request, 200),
            Happens::TooLate(request) if !self.requests[request].done => self.finish(request, 504),
            Happens::Answer(_) | Happens::TooLate(_) => {}
            Happens::Look => {
                let events = self.hosts.look(self.clock());
                let at = self.now.as_secs_f64();
                self.events.extend(events.into_iter().map(|event| (at, event)));
                self.next_look();
            }
        }
    }

    fn server_of(&self, request: usize) -> usize {
        self.requests[request].pick.expect("it was sent").key.0
    }

    fn arrive(&mut self, request: usize) {
        let pick = match self.hosts.pick(self.clock(), &[]) {
            Ok(pick) => pick,
            Err(NoHost::AllEjected | NoHost::Empty) => return self.finish(request, 503),
        };
        self.requests[request].pick = Some(pick);
        match self.core.ask(pick.key, || request, |_| true) {
            Asked::Ready(connection) => self.send(request, connection),
            Asked::Refused(_) => return self.finish(request, 503),
            Asked::Waits { ticket, connect } => {
                self.requests[request].ticket = Some(ticket);
                if connect {
                    self.connect(pick.key);
                }
            }
        }
        self.at(self.now + TIMEOUT, Happens::TooLate(request));
    }

    fn connect(&mut self, key: Key) {
        self.connects += 1;
        self.at(self.now + CONNECT, Happens::Connected(key.0));
    }

    fn send(&mut self, request: usize, connection: Connection) {
        self.requests[request].connection = Some(Connection { served: connection.served + 1 });
        self.requests[request].ticket = None;
        self.at(self.now + WAY, Happens::ServerGets(request));
    }

    fn work(&mut self, server: usize) {
        let Server { takes, workers } = self.experiment.servers[server];
        while self.queues[server].busy < workers
            && let Some(request) = self.queues[server].waiting.pop_front()
        {
            self.queues[server].busy += 1;
            self.at(self.now + takes, Happens::ServerDone { server, request });
        }
    }

    fn finish(&mut self, number: usize, status: u16) {
        let now = self.clock();
        let request = &mut self.requests[number];
        request.done = true;
        let (pick, connection, ticket) = (request.pick, request.connection.take(), request.ticket.take());
        if self.now <= END {
            *self.answers.entry(status).or_default() += 1;
            self.total_time += self.now - request.arrived;
            if status == 200 {
                self.last_ok = self.now;
            }
        }
        let Some(pick) = pick else { return };
        let mut outcome = Outcome::Cancelled;
        let orders = match (connection, ticket) {
            (Some(connection), _) if status == 200 && connection.served < self.experiment.per_connection => {
                outcome = Outcome::Status(200);
                self.core.give(pick.key, connection, now)
            }
            (Some(_), _) => {
                outcome = if status == 200 { Outcome::Status(200) } else { Outcome::Timeout };
                self.core.closed(pick.key)
            }
            (None, Some(ticket)) => {
                self.core.cancel(pick.key, ticket);
                Orders::default()
            }
            (None, None) => Orders::default(),
        };
        if let Some(event) = self.hosts.charge(pick, outcome, now) {
            self.events.push((self.now.as_secs_f64(), event));
        }
        self.carry_out(orders);
    }

    fn carry_out(&mut self, orders: Orders<Connection, usize>) {
        for key in orders.connect {
            self.connect(key);
        }
        for (request, handed) in orders.served {
            match handed {
                Ok((_, connection)) => self.send(request, connection),
                Err(_) => {
                    self.requests[request].ticket = None;
                    self.finish(request, 503);
                }
            }
        }
    }

    /// Total, OK, 503, 504.
    fn counts(&self) -> [usize; 4] {
        let of = |status| self.answers.get(&status).copied().unwrap_or(0);
        [self.answers.values().sum(), of(200), of(503), of(504)]
    }

    fn mean_ms(&self) -> f64 {
        self.total_time.as_secs_f64() * 1000.0 / self.counts()[0] as f64
    }

    /// When endpoints were ejected (`E`) and returned (`R`), in seconds of the load.
    fn ejections(&self) -> Vec<(char, usize, f64)> {
        self.events
            .iter()
            .filter_map(|(at, Event { key, what })| match what {
                What::Ejected { .. } => Some(('E', key.0, *at)),
                What::Returned { .. } => Some(('R', key.0, *at)),
                What::Refused { .. } => None,
            })
            .collect()
    }
}

fn limits(connections: u32, pending: u32, rule: PoolRule) -> Limits {
    Limits { connections: connections as usize, pending: pending as usize, requests: usize::MAX, rule }
}

fn bulkhead(connections: u32, pending: u32, per_connection: u32, rule: PoolRule) -> Run {
    Run::of(Experiment {
        servers: vec![Server { takes: Duration::from_secs(7), workers: 197 }],
        limits: limits(connections, pending, rule),
        per_connection,
        outliers: None,
        phase: 0.0,
    })
}

fn breaker(slow: usize, outliers: Option<OutlierDetection>, phase: f64) -> Run {
    let server = |number| Server {
        takes: if number < slow { Duration::from_secs(30) } else { Duration::from_millis(3) },
        workers: usize::MAX,
    };
    Run::of(Experiment {
        servers: (0..2).map(server).collect(),
        limits: limits(UNLIMITED, UNLIMITED, PoolRule::Modern),
        per_connection: UNLIMITED,
        outliers,
        phase,
    })
}

fn ejecting(window: u64) -> Option<OutlierDetection> {
    Some(OutlierDetection {
        consecutive_gateway_errors: 10,
        consecutive_5xx_errors: 0,
        max_ejection_percent: 100,
        update_merge_window: Span::secs(window),
        ..OutlierDetection::default()
    })
}

#[test]
fn bulkhead_1_without_limits_the_server_drowns() {
    let run = bulkhead(UNLIMITED, UNLIMITED, UNLIMITED, PoolRule::Modern);
    // 396 and 5380 where an answer that comes exactly at the time-out counts as good.
    assert_eq!(run.counts(), [5776, 395, 0, 5381]);
    assert!((22.0..23.0).contains(&run.last_ok.as_secs_f64()), "the last good answer came at {:?}", run.last_ok);
    assert!(run.dead_work > 5400, "{} requests were worked on for nobody", run.dead_work);
}

#[test]
fn bulkhead_2_to_4_give_190_connections_full_of_good_answers() {
    for (step, pending, per_connection, total, refused, connects) in
        [(2, 1, 1, 6084, 2804, 3471), (3, 10, 1, 6075, 2795, 3480), (4, 10, 100, 6075, 2795, 190)]
    {
        let run = bulkhead(190, pending, per_connection, PoolRule::Modern);
        assert_eq!(run.counts(), [total, 3280, refused, 0], "step {step}");
        assert_eq!(run.connects, connects, "step {step}");
    }
}

#[test]
fn bulkhead_2_by_the_old_rule_is_what_the_article_saw() {
    let run = bulkhead(190, 1, 1, PoolRule::Envoy113);
    // 6084, 2098 and 2 broken ones, 3973, 11 in its table.
    assert_eq!(run.counts(), [6084, 2100, 3973, 11]);
}

#[test]
fn breaker_1_without_a_breaker_half_of_all_time_out() {
    assert_eq!(breaker(1, None, 0.0).counts(), [6025, 3137, 0, 2888]);
}

#[test]
fn breaker_2_ejects_the_slow_one_for_30_and_then_60_seconds() {
    let run = breaker(1, ejecting(1), 6.7);
    let [total, ok, refused, late] = run.counts();
    assert_eq!([total, ok, refused, late], [6193, 5740, 0, 453]);
    let told = run.ejections();
    for (what, at) in told.iter().zip([('E', 12.2), ('R', 46.7), ('E', 57.1), ('R', 126.7)]) {
        assert!(what.0 == at.0 && (what.2 - at.1).abs() < 0.2, "{told:?}");
    }
}

#[test]
fn breaker_3_ejects_both_the_second_one_a_merge_window_later() {
    // A real Envoy gave 1007 to 1009 with its merge window of 1 s, the article 1009, and 908 without.
    let run = breaker(2, ejecting(1), 1.8);
    let [_, ok, refused, late] = run.counts();
    assert_eq!(ok, 0);
    assert_eq!((late, refused), (1008, 5267));
    let run = breaker(2, ejecting(0), 1.6);
    assert_eq!(run.counts(), [6275, 0, 5366, 909]);
}

#[test]
fn breaker_3_looked_at_between_the_two_ejections_lets_them_take_turns() {
    // Each comes back while the other is out: a property of looking at intervals. A real one, which forgot the first
    // ejection half of the times, gave 2477; with our rule, that never counts the first look, it is one wave less.
    let run = breaker(2, ejecting(1), 2.207);
    assert_eq!(run.counts()[3], 1458, "{:?}", run.ejections());
}

#[test]
fn a_single_probe_would_cost_a_tenth() {
    let probing = ejecting(1).map(|rules| OutlierDetection { probe: Some(1), ..rules });
    let run = breaker(1, probing, 6.7);
    let late = run.counts()[3];
    assert!((193..=200).contains(&late), "{late}");
    assert!(run.mean_ms() < 400.0, "{}", run.mean_ms());
}
