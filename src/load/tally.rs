//! Counts what became of each request. One for each worker, added up at the end; knows no clock and no socket.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::wire::{Failure, Reason};

use super::outcome::{Cause, Flag, Sample, Verdict};
use super::spread::Spread;

/// Places at which a cascade may end that are told apart; a target cannot make the list longer.
const PLACES: usize = 256;

/// Counts of one second, by when the answers came.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Second {
    pub(super) ok: u64,
    pub(super) partial: u64,
    pub(super) ko: u64,
    pub(super) errors: BTreeMap<Cause, u64>,
    pub(super) flags: BTreeMap<Flag, u64>,
}

/// One exchange, as a worker measured it; on the clock, not in the plan's times.
#[derive(Clone, Copy, Debug)]
pub(super) struct Exchange {
    pub(super) due: Duration,
    pub(super) sent: Duration,
    pub(super) ended: Duration,
    /// There was a connection to ask on.
    pub(super) opened: bool,
    /// Until the connection was open, or could not be; `None` on a connection that was open already.
    pub(super) connect: Option<Duration>,
    /// From the last byte of the request to the first of the answer, if one came.
    pub(super) waiting: Option<Duration>,
    pub(super) verdict: Verdict,
    pub(super) status: Option<u16>,
    pub(super) flag: Option<Flag>,
    /// The connection can be used again.
    pub(super) kept: bool,
    /// Bytes of the body, and of all that came.
    pub(super) body: u64,
    pub(super) received: u64,
}

/// All that is counted.
#[derive(Clone, Debug)]
pub(super) struct Tally {
    speed: f64,
    keep: bool,
    pub(super) all: Second,
    pub(super) seconds: Vec<Second>,
    pub(super) places: BTreeMap<Option<(Reason, u32)>, u64>,
    /// From due to done: of every request, and of the complete ones alone.
    pub(super) latency: Spread,
    pub(super) latency_ok: Spread,
    /// On the clock, for ab's table.
    pub(super) connect: Spread,
    pub(super) processing: Spread,
    pub(super) waiting: Spread,
    /// How much later than due the requests of an open loop went, on the clock.
    pub(super) lateness: Spread,
    pub(super) received: u64,
    pub(super) bodies: u64,
    /// Body of the first whole answer, and how many others were not as long.
    pub(super) length: Option<u64>,
    pub(super) other_lengths: u64,
    pub(super) opened: u64,
    /// Answers after which the connection could be used again.
    pub(super) kept: u64,
    pub(super) server: Option<String>,
    pub(super) samples: Vec<Sample>,
}

impl Tally {
    /// `keep`: every single sample.
    pub(super) fn new(speed: f64, keep: bool) -> Tally {
        Tally {
            speed,
            keep,
            all: Second::default(),
            seconds: Vec::new(),
            places: BTreeMap::new(),
            latency: Spread::default(),
            latency_ok: Spread::default(),
            connect: Spread::default(),
            processing: Spread::default(),
            waiting: Spread::default(),
            lateness: Spread::default(),
            received: 0,
            bodies: 0,
            length: None,
            other_lengths: 0,
            opened: 0,
            kept: 0,
            server: None,
            samples: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, exchange: &Exchange) {
        let scaled = |time: Duration| if self.speed == 1.0 { time } else { time.mul_f64(self.speed) };
        let sample = Sample {
            due: scaled(exchange.due),
            sent: scaled(exchange.sent),
            ended: scaled(exchange.ended),
            verdict: exchange.verdict,
            status: exchange.status,
            flag: exchange.flag,
        };
        let second = sample.ended.as_secs() as usize;
        if self.seconds.len() <= second {
            self.seconds.resize_with(second + 1, Second::default);
        }
        self.seconds[second].add(&sample);
        self.all.add(&sample);
        self.latency.add(sample.latency());
        match sample.verdict {
            Verdict::Complete => self.latency_ok.add(sample.latency()),
            Verdict::Partial(failure) => self.add_place(failure, 1),
            Verdict::Failed(_) => {}
        }
        if self.keep {
            self.samples.push(sample);
        }
        self.add_transfer(exchange);
    }

    fn add_transfer(&mut self, exchange: &Exchange) {
        self.received += exchange.received;
        self.bodies += exchange.body;
        self.kept += u64::from(exchange.kept);
        if let Some(connect) = exchange.connect.filter(|_| exchange.opened) {
            self.connect.add(connect);
        }
        if exchange.opened {
            let connect = exchange.connect.unwrap_or_default();
            self.processing.add((exchange.ended - exchange.sent).saturating_sub(connect));
        }
        if let Some(waiting) = exchange.waiting {
            self.waiting.add(waiting);
        }
        if matches!(exchange.verdict, Verdict::Complete | Verdict::Partial(_)) {
            let length = *self.length.get_or_insert(exchange.body);
            self.other_lengths += u64::from(length != exchange.body);
        }
    }

    fn add_place(&mut self, failure: Option<Failure>, count: u64) {
        let place = failure.map(|failure| (failure.reason, failure.hop));
        let place = if self.places.len() < PLACES || self.places.contains_key(&place) { place } else { None };
        *self.places.entry(place).or_default() += count;
    }

    pub(super) fn merge(&mut self, other: Tally) {
        if self.seconds.len() < other.seconds.len() {
            self.seconds.resize_with(other.seconds.len(), Second::default);
        }
        self.seconds.iter_mut().zip(&other.seconds).for_each(|(own, other)| own.merge(other));
        self.all.merge(&other.all);
        for (place, count) in other.places {
            self.add_place(place.map(|(reason, hop)| Failure { reason, hop }), count);
        }
        self.latency.merge(&other.latency);
        self.latency_ok.merge(&other.latency_ok);
        self.connect.merge(&other.connect);
        self.processing.merge(&other.processing);
        self.waiting.merge(&other.waiting);
        self.lateness.merge(&other.lateness);
        self.received += other.received;
        self.bodies += other.bodies;
        self.other_lengths += other.other_lengths;
        self.length = self.length.or(other.length);
        self.opened += other.opened;
        self.kept += other.kept;
        self.server = self.server.take().or(other.server);
        self.samples.extend(other.samples);
    }
}

impl Second {
    fn add(&mut self, sample: &Sample) {
        match sample.verdict {
            Verdict::Complete => self.ok += 1,
            Verdict::Partial(_) => self.partial += 1,
            Verdict::Failed(cause) => {
                self.ko += 1;
                *self.errors.entry(cause).or_default() += 1;
            }
        }
        if let Some(flag) = sample.flag {
            *self.flags.entry(flag).or_default() += 1;
        }
    }

    fn merge(&mut self, other: &Second) {
        self.ok += other.ok;
        self.partial += other.partial;
        self.ko += other.ko;
        other.errors.iter().for_each(|(cause, count)| *self.errors.entry(*cause).or_default() += count);
        other.flags.iter().for_each(|(flag, count)| *self.flags.entry(*flag).or_default() += count);
    }

    pub(super) fn total(&self) -> u64 {
        self.ok + self.partial + self.ko
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exchange(ended_ms: u64, verdict: Verdict) -> Exchange {
        Exchange {
            due: Duration::from_millis(ended_ms - 10),
            sent: Duration::from_millis(ended_ms - 9),
            ended: Duration::from_millis(ended_ms),
            opened: true,
            connect: Some(Duration::from_millis(2)),
            waiting: Some(Duration::from_millis(5)),
            verdict,
            status: Some(200),
            flag: Flag::read(b"UO"),
            kept: true,
            body: 86,
            received: 200,
        }
    }

    const REFUSED: Verdict = Verdict::Failed(Cause::Broken(Reason::Refused));

    #[test]
    fn every_request_is_counted_once_and_in_the_second_of_its_answer() {
        let mut tally = Tally::new(1.0, false);
        let partial = Verdict::Partial(Some(Failure { reason: Reason::Dns, hop: 3 }));
        for (at, verdict) in [(10, Verdict::Complete), (999, REFUSED), (1000, partial), (3999, Verdict::Complete)] {
            tally.add(&exchange(at, verdict));
        }
        let counts: Vec<_> = tally.seconds.iter().map(|second| (second.ok, second.partial, second.ko)).collect();
        assert_eq!(counts, [(1, 0, 1), (0, 1, 0), (0, 0, 0), (1, 0, 0)]);
        assert_eq!((tally.all.ok, tally.all.partial, tally.all.ko), (2, 1, 1));
        assert_eq!(tally.all.errors, BTreeMap::from([(Cause::Broken(Reason::Refused), 1)]));
        assert_eq!(tally.places, BTreeMap::from([(Some((Reason::Dns, 3)), 1)]));
        assert_eq!((tally.latency.count(), tally.latency_ok.count()), (4, 2));
    }

    #[test]
    fn at_a_speed_of_ten_a_second_is_a_tenth_on_the_clock() {
        let mut tally = Tally::new(10.0, true);
        tally.add(&exchange(250, Verdict::Complete));
        assert_eq!(tally.seconds.len(), 3);
        assert_eq!(tally.samples[0].latency(), Duration::from_millis(100));
        assert_eq!(tally.latency.times().expect("one").max, 100.0);
        // What ab would measure is on the clock.
        assert_eq!(tally.processing.times().expect("one").max, 7.0);
    }

    #[test]
    fn workers_add_up() {
        let (mut one, mut other) = (Tally::new(1.0, false), Tally::new(1.0, false));
        one.add(&exchange(10, Verdict::Complete));
        other.add(&exchange(2500, REFUSED));
        one.merge(other);
        assert_eq!((one.all.total(), one.seconds.len(), one.latency.count()), (2, 3, 2));
        assert_eq!(one.seconds[2].errors, BTreeMap::from([(Cause::Broken(Reason::Refused), 1)]));
    }

    #[test]
    fn a_body_of_another_length_is_noticed() {
        let mut tally = Tally::new(1.0, false);
        for body in [86, 86, 87] {
            tally.add(&Exchange { body, ..exchange(10, Verdict::Complete) });
        }
        assert_eq!((tally.length, tally.other_lengths), (Some(86), 1));
    }

    #[test]
    fn a_target_cannot_make_the_list_of_places_endless() {
        let mut tally = Tally::new(1.0, false);
        for hop in 0..1000 {
            tally.add(&exchange(10, Verdict::Partial(Some(Failure { reason: Reason::Dns, hop }))));
        }
        assert!(tally.places.len() <= PLACES + 1, "{}", tally.places.len());
        assert_eq!(tally.places.values().sum::<u64>(), 1000);
    }
}
