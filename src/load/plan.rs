//! When each request of a load is due. Pure: sends nothing, reads no clock.

use std::time::Duration;

/// A ramp goes up once a second, as Gatling's does; one shorter than ten seconds in ten steps all the same.
const STEP: f64 = 1.0;
const FEWEST_STEPS: f64 = 10.0;
/// Sums of rates are not exact; a thousandth of a request is nobody's.
const SLACK: f64 = 1e-3;

/// A load: how many requests, and what makes the next one go. Its times are those of the article that it replays; at
/// a speed of 10 a second of them takes a tenth on the clock.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Plan {
    /// Each of `connections` sends its next request when its last one is answered, as ab does.
    Closed { requests: u64, connections: usize },
    /// A request goes when it is due, however many are unanswered, as Gatling does: first `ramp` up to `rate` a
    /// second, then `hold` at it.
    Open { rate: f64, ramp: Duration, hold: Duration },
}

impl Plan {
    /// How many requests it has.
    pub fn total(&self) -> u64 {
        match *self {
            Plan::Closed { requests, .. } => requests,
            Plan::Open { .. } => self.schedule().total(),
        }
    }

    /// How long it sends; a closed loop takes as long as the answers do.
    pub fn length(&self) -> Option<Duration> {
        match *self {
            Plan::Closed { .. } => None,
            Plan::Open { ramp, hold, .. } => Some(ramp + hold),
        }
    }

    /// Requests a second once the ramp is over; a closed loop has no rate of its own.
    pub fn rate(&self) -> f64 {
        match *self {
            Plan::Closed { .. } => 0.0,
            Plan::Open { rate, .. } => rate,
        }
    }

    /// When each request of an open loop is due, from the start; nothing of a closed one.
    pub fn schedule(&self) -> Schedule {
        match *self {
            Plan::Closed { .. } => Schedule::default(),
            Plan::Open { rate, ramp, hold } => Schedule::new(rate, ramp.as_secs_f64(), hold.as_secs_f64()),
        }
    }
}

/// The due times of an open loop, in order.
#[derive(Clone, Debug, Default)]
pub struct Schedule {
    pieces: Vec<Piece>,
    piece: usize,
    next: u64,
}

/// A while in which the rate is the same.
#[derive(Clone, Copy, Debug)]
struct Piece {
    start: f64,
    rate: f64,
    /// Requests before it, and up to its end.
    before: f64,
    after: f64,
}

impl Schedule {
    fn new(rate: f64, ramp: f64, hold: f64) -> Schedule {
        let mut schedule = Schedule::default();
        let steps = (ramp / STEP).max(FEWEST_STEPS).ceil();
        if ramp > 0.0 {
            for step in 1..=steps as u64 {
                schedule.push(rate * step as f64 / steps, ramp / steps);
            }
        }
        schedule.push(rate, hold);
        schedule
    }

    fn push(&mut self, rate: f64, length: f64) {
        let (start, before) = self
            .pieces
            .last()
            .map_or((0.0, 0.0), |last| (last.start + (last.after - last.before) / last.rate, last.after));
        self.pieces.push(Piece { start, rate, before, after: before + rate * length });
    }

    fn total(&self) -> u64 {
        self.pieces.last().map_or(0, |last| (last.after - SLACK).ceil().max(0.0) as u64)
    }
}

impl Iterator for Schedule {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let number = self.next as f64;
        let at = loop {
            let piece = self.pieces.get(self.piece)?;
            if number < piece.after - SLACK {
                break piece.start + (number - piece.before).max(0.0) / piece.rate;
            }
            self.piece += 1;
        };
        self.next += 1;
        Some(Duration::from_secs_f64(at))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = (self.total() - self.next) as usize;
        (left, Some(left))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(rate: f64, ramp: f64, hold: f64) -> Plan {
        Plan::Open { rate, ramp: Duration::from_secs_f64(ramp), hold: Duration::from_secs_f64(hold) }
    }

    fn per_second(plan: Plan) -> Vec<usize> {
        let mut counts = vec![0; plan.length().expect("open").as_secs_f64().ceil() as usize];
        for due in plan.schedule() {
            counts[due.as_secs() as usize] += 1;
        }
        counts
    }

    #[test]
    fn the_articles_load_is_6275_requests_in_130_seconds() {
        let plan = open(50.0, 10.0, 120.0);
        let counts = per_second(plan);
        assert_eq!(counts[..10], [5, 10, 15, 20, 25, 30, 35, 40, 45, 50]);
        assert_eq!(counts[10..], [50; 120]);
        assert_eq!((plan.total(), plan.schedule().count()), (6275, 6275));
    }

    #[test]
    fn requests_are_spaced_evenly_inside_a_second() {
        let due: Vec<f64> = open(50.0, 10.0, 1.0).schedule().map(|due| due.as_secs_f64()).collect();
        for (number, at) in [(0, 0.0), (1, 0.2), (4, 0.8), (5, 1.0), (6, 1.1), (275, 10.0), (276, 10.02), (324, 10.98)]
        {
            assert!((due[number] - at).abs() < 1e-6, "request {number} is due at {}, not {at}", due[number]);
        }
    }

    #[test]
    fn a_ramp_of_less_than_ten_seconds_still_has_ten_steps() {
        // As the article's ramp run five times as fast: 55 percent of the full rate on average.
        assert_eq!(open(50.0, 2.0, 4.0).total(), 255);
        assert_eq!(per_second(open(50.0, 2.0, 2.0)), [15, 40, 50, 50]);
    }

    #[test]
    fn a_longer_ramp_has_a_step_each_second() {
        assert_eq!(per_second(open(20.0, 20.0, 1.0))[..], [&(1..=20).collect::<Vec<_>>()[..], &[20]].concat());
    }

    #[test]
    fn without_a_ramp_the_full_rate_comes_at_once() {
        assert_eq!(per_second(open(3.0, 0.0, 4.0)), [3; 4]);
    }

    #[test]
    fn a_rate_may_be_less_than_one_a_second() {
        let due: Vec<Duration> = open(0.25, 0.0, 10.0).schedule().collect();
        assert_eq!(due, [0, 4, 8].map(Duration::from_secs));
    }

    #[test]
    fn a_schedule_is_in_order_and_as_long_as_it_says_whatever_the_figures() {
        for (rate, ramp, hold) in [(0.1, 0.0, 0.0), (7.3, 3.7, 2.9), (999.9, 61.5, 0.0), (33.333, 0.001, 100.0)] {
            let plan = open(rate, ramp, hold);
            let due: Vec<Duration> = plan.schedule().collect();
            assert_eq!(due.len() as u64, plan.total(), "{plan:?}");
            assert!(due.is_sorted(), "{plan:?}");
            assert!(due.iter().all(|due| due.as_secs_f64() < ramp + hold), "{plan:?}");
        }
    }

    #[test]
    fn a_closed_loop_has_no_schedule() {
        let plan = Plan::Closed { requests: 10, connections: 2 };
        assert_eq!((plan.total(), plan.length(), plan.schedule().count()), (10, None, 0));
    }
}
