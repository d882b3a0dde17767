//! Decides for each request whether it is delayed and how it ends. Takes the time and a seed; makes no fault.

use std::f64::consts::TAU;
use std::time::Duration;

use http::StatusCode;
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use tokio::time::Instant;

use crate::wire::{Abort, Delay, FaultSpec, MAX_DELAY};

/// What is to happen to one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// To wait before anything else; zero = not at all.
    pub delay: Duration,
    pub ending: Ending,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The route's own work.
    Work,
    Fail(StatusCode),
    Abort(Abort),
}

impl Verdict {
    const NOTHING: Verdict = Verdict { delay: Duration::ZERO, ending: Ending::Work };
}

/// What was decided so far. A rate is judged by the requests that it was asked about: those that a count chose, and
/// for `errors` those that were aborted, say nothing about it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub requests: u64,
    pub delayed: u64,
    pub failed: u64,
    pub aborted: u64,
    pub errors: Share,
    pub aborts: Share,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Share {
    pub of: u64,
    pub hit: u64,
}

impl Share {
    fn count(&mut self, hit: bool) -> bool {
        self.of += 1;
        self.hit += u64::from(hit);
        hit
    }
}

/// The state of one set of faults: what the counters have left, and where the generator stands.
#[derive(Debug)]
pub(super) struct Machine {
    delay: Option<Delay>,
    /// How the requests end that `fail_next`, `every_nth` and `error_rate` choose.
    failure: Ending,
    fail_next: u64,
    every_nth: Option<u64>,
    abort: Option<(Abort, f64)>,
    error_rate: f64,
    ends: Option<Instant>,
    draws: Xoshiro256PlusPlus,
    tally: Tally,
}

impl Machine {
    pub(super) fn new(spec: &FaultSpec, seed: u64, start: Instant) -> Machine {
        let status = spec.status.and_then(|code| StatusCode::from_u16(code).ok());
        let fail = Ending::Fail(status.unwrap_or(StatusCode::SERVICE_UNAVAILABLE));
        // An abort without a rate of its own is the way in which the chosen requests fail; where nothing chooses, all
        // are meant.
        let (failure, abort) = match (spec.abort, spec.abort_rate) {
            (None, _) => (fail, None),
            (Some(abort), Some(rate)) => (fail, Some((abort, rate))),
            (Some(abort), None) if spec.chooses_failures() => (Ending::Abort(abort), None),
            (Some(abort), None) => (fail, Some((abort, 1.0))),
        };
        Machine {
            delay: spec.delay,
            failure,
            fail_next: spec.fail_next.unwrap_or(0),
            every_nth: spec.every_nth,
            abort,
            error_rate: spec.error_rate.unwrap_or(0.0),
            ends: spec.expires_after.map(|life| start + *life),
            draws: Xoshiro256PlusPlus::seed_from_u64(seed),
            tally: Tally::default(),
        }
    }

    pub(super) fn tally(&self) -> Tally {
        self.tally
    }

    /// What the abort rate is, given or not.
    pub(super) fn abort_rate(&self) -> Option<f64> {
        self.abort.map(|(_, rate)| rate)
    }

    pub(super) fn decide(&mut self, now: Instant) -> Verdict {
        if self.ends.is_some_and(|ends| now >= ends) {
            return Verdict::NOTHING;
        }
        self.tally.requests += 1;
        // All is drawn for every request, needed or not: what one request draws does not depend on how others ended.
        let delay = self.draw_delay();
        let (for_error, for_abort) = (self.draws.random::<f64>(), self.draws.random::<f64>());
        let ending = self.ending(for_error, for_abort);
        self.tally.delayed += u64::from(!delay.is_zero());
        match ending {
            Ending::Work => {}
            Ending::Fail(_) => self.tally.failed += 1,
            Ending::Abort(_) => self.tally.aborted += 1,
        }
        Verdict { delay, ending }
    }

    /// Counts come before rates: who asks for the next two failures gets exactly those.
    fn ending(&mut self, for_error: f64, for_abort: f64) -> Ending {
        if self.fail_next > 0 {
            self.fail_next -= 1;
            return self.failure;
        }
        if self.every_nth.is_some_and(|nth| self.tally.requests.is_multiple_of(nth)) {
            return self.failure;
        }
        // A draw is below 1 and not below 0: a rate of 1 always holds, a rate of 0 never.
        match self.abort {
            Some((abort, rate)) if self.tally.aborts.count(for_abort < rate) => Ending::Abort(abort),
            _ if self.tally.errors.count(for_error < self.error_rate) => self.failure,
            _ => Ending::Work,
        }
    }

    fn draw_delay(&mut self) -> Duration {
        match self.delay {
            None => Duration::ZERO,
            Some(Delay::Fixed(delay)) => *delay,
            Some(Delay::Uniform(min, max)) => self.draws.random_range(*min..=*max),
            Some(Delay::Lognormal { median, sigma }) => loop {
                let delay = median.as_secs_f64() * (sigma * normal(&mut self.draws)).exp();
                // The median is within the limit, so every other draw is at worst.
                if delay <= MAX_DELAY.as_secs_f64() {
                    return Duration::from_secs_f64(delay);
                }
            },
        }
    }
}

/// A draw of the standard normal distribution (Box and Muller).
pub fn normal(draws: &mut Xoshiro256PlusPlus) -> f64 {
    let (radius, angle) = (1.0 - draws.random::<f64>(), draws.random::<f64>());
    (-2.0 * radius.ln()).sqrt() * (TAU * angle).cos()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAWS: u64 = 10_000;

    fn machine(json: &str) -> Machine {
        Machine::new(&json.parse().expect(json), 7, Instant::now())
    }

    fn endings(json: &str, count: usize) -> String {
        let mut machine = machine(json);
        let letter = |verdict: Verdict| match verdict.ending {
            Ending::Work => '.',
            Ending::Fail(_) => 'F',
            Ending::Abort(_) => 'A',
        };
        (0..count).map(|_| letter(machine.decide(Instant::now()))).collect()
    }

    fn within_three_sigma(hits: u64, of: u64, p: f64) -> bool {
        let (n, expected) = (of as f64, of as f64 * p);
        (hits as f64 - expected).abs() <= 3.0 * (n * p * (1.0 - p)).sqrt()
    }

    #[test]
    fn rates_are_met_within_three_sigma_and_exactly_at_both_ends() {
        for p in [0.0, 0.001, 0.3, 0.4, 0.5, 0.6, 0.999, 1.0] {
            for (json, letter) in
                [(format!("{{\"error_rate\":{p}}}"), 'F'), (format!("{{\"abort\":\"reset\",\"abort_rate\":{p}}}"), 'A')]
            {
                let hits = endings(&json, DRAWS as usize).matches(letter).count() as u64;
                assert!(within_three_sigma(hits, DRAWS, p), "{json}: {hits} of {DRAWS}");
            }
        }
    }

    #[test]
    fn two_rates_hold_independently_and_the_tally_says_of_how_many() {
        let mut machine = machine(r#"{"error_rate":0.4,"status":500,"abort":"empty","abort_rate":0.3}"#);
        for _ in 0..DRAWS {
            machine.decide(Instant::now());
        }
        let Tally { requests, failed, aborted, errors, aborts, .. } = machine.tally();
        assert_eq!((requests, aborts.of, errors.of), (DRAWS, DRAWS, DRAWS - aborted));
        assert_eq!((failed, aborted), (errors.hit, aborts.hit));
        assert!(within_three_sigma(aborts.hit, aborts.of, 0.3), "{aborts:?}");
        assert!(within_three_sigma(errors.hit, errors.of, 0.4), "{errors:?}");
    }

    #[test]
    fn counts_come_before_rates_and_the_next_failures_before_every_nth() {
        for (json, expected) in [
            (r#"{}"#, "......"),
            (r#"{"fail_next":0}"#, "......"),
            (r#"{"fail_next":2}"#, "FF...."),
            (r#"{"every_nth":3}"#, "..F..F"),
            (r#"{"every_nth":1}"#, "FFFFFF"),
            (r#"{"fail_next":1,"every_nth":2}"#, "FF.F.F"),
            (r#"{"error_rate":1,"fail_next":2}"#, "FFFFFF"),
            (r#"{"abort":"reset"}"#, "AAAAAA"),
            (r#"{"abort":"reset","fail_next":2}"#, "AA...."),
            (r#"{"abort":"reset","every_nth":2}"#, ".A.A.A"),
            (r#"{"abort":"reset","error_rate":1}"#, "AAAAAA"),
            (r#"{"abort":"reset","abort_rate":1,"fail_next":2,"status":500}"#, "FFAAAA"),
            (r#"{"abort":"reset","abort_rate":0,"every_nth":2}"#, ".F.F.F"),
            (r#"{"abort":"reset","abort_rate":1,"error_rate":1}"#, "AAAAAA"),
        ] {
            assert_eq!(endings(json, 6), expected, "{json}");
        }
    }

    #[test]
    fn a_failure_has_the_status_that_was_asked_for() {
        for (json, status) in [(r#"{"fail_next":1}"#, 503), (r#"{"fail_next":1,"status":404}"#, 404)] {
            let ending = machine(json).decide(Instant::now()).ending;
            assert_eq!(ending, Ending::Fail(StatusCode::from_u16(status).expect("a status")), "{json}");
        }
    }

    #[test]
    fn delays_are_drawn_as_asked_for() {
        let draws = |json: &str| -> Vec<f64> {
            let mut machine = machine(json);
            let mut ms: Vec<f64> =
                (0..DRAWS).map(|_| machine.decide(Instant::now()).delay.as_secs_f64() * 1e3).collect();
            ms.sort_by(f64::total_cmp);
            ms
        };
        assert!(draws(r#"{"delay":"200ms"}"#).iter().all(|ms| *ms == 200.0));
        assert!(draws(r#"{"delay":{"uniform":["0s","0s"]}}"#).iter().all(|ms| *ms == 0.0));
        assert!(draws(r#"{"delay":{"uniform":["5ms","5ms"]}}"#).iter().all(|ms| *ms == 5.0));

        let uniform = draws(r#"{"delay":{"uniform":["100ms","300ms"]}}"#);
        let (first, middle, last) = (uniform[0], uniform[uniform.len() / 2], uniform[uniform.len() - 1]);
        assert!((100.0..101.0).contains(&first) && (299.0..=300.0).contains(&last), "{first} {last}");
        assert!((195.0..205.0).contains(&middle), "{middle}");

        // The logarithm is normal: median 90, one sigma up (the 84.13th percentile) 90 · e^0.4.
        let lognormal = draws(r#"{"delay":{"lognormal":{"median":"90ms","sigma":0.4}}}"#);
        let (median, one_up) = (lognormal[lognormal.len() / 2], lognormal[lognormal.len() * 8413 / 10_000]);
        assert!((median / 90.0 - 1.0).abs() < 0.03, "{median}");
        assert!((one_up / (90.0 * 0.4_f64.exp()) - 1.0).abs() < 0.03, "{one_up}");
    }

    #[test]
    fn no_draw_is_beyond_the_longest_delay() {
        let mut machine = machine(r#"{"delay":{"lognormal":{"median":"1h","sigma":3}}}"#);
        assert!((0..1000).all(|_| machine.decide(Instant::now()).delay <= *MAX_DELAY));
    }

    #[test]
    fn the_same_seed_decides_the_same_and_another_one_otherwise() {
        let spec: FaultSpec = r#"{"error_rate":0.5,"delay":{"uniform":["0s","1s"]}}"#.parse().expect("a specification");
        let verdicts = |seed| {
            let mut machine = Machine::new(&spec, seed, Instant::now());
            (0..100).map(|_| machine.decide(Instant::now())).collect::<Vec<_>>()
        };
        assert_eq!(verdicts(1), verdicts(1));
        assert_ne!(verdicts(1), verdicts(2));
    }

    #[test]
    fn nothing_is_decided_after_the_end() {
        let start = Instant::now();
        let spec = r#"{"error_rate":1,"delay":"1s","expires_after":"60s"}"#.parse().expect("a specification");
        let mut machine = Machine::new(&spec, 1, start);
        assert_ne!(machine.decide(start + Duration::from_millis(59_999)), Verdict::NOTHING);
        assert_eq!(machine.decide(start + Duration::from_secs(60)), Verdict::NOTHING);
        assert_eq!(machine.tally().requests, 1);
    }
}
