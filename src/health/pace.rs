//! When a dependency is asked again. Asks nobody, reads no clock, rolls no dice.

use std::time::Duration;

use tokio::time::Instant;

/// While a dependency is down, attempts begin at least this often, or as often as while it is up.
const SLOWEST: Duration = Duration::from_secs(2);

/// How often it is asked, and how long it may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    pub(super) interval: Duration,
    pub(super) timeout: Duration,
}

impl Limits {
    /// The longest time from the start of one attempt to the start of the next. Never above interval + time-out
    /// (unless the interval is), so that a recovery is seen within that.
    fn slowest(&self) -> Duration {
        (self.interval * 5).min(self.interval + self.timeout).min(SLOWEST).max(self.interval)
    }

    pub(super) fn stale_after(&self) -> Duration {
        self.interval * 3 + self.timeout
    }
}

/// The pace of one dependency's attempts: steady while it is up, slower and less regular while it is down, so that
/// many nodes do not all knock in the same moment.
#[derive(Debug)]
pub(super) struct Pace {
    limits: Limits,
    pause: Duration,
}

impl Pace {
    pub(super) fn new(limits: Limits) -> Pace {
        Pace { limits, pause: limits.interval }
    }

    /// When the next attempt is due, if the last one began at `start`. `roll` is from 0 to 1.
    pub(super) fn next(&mut self, up: bool, start: Instant, roll: f64) -> Instant {
        if up {
            self.pause = self.limits.interval;
            return start + self.pause;
        }
        let pause = self.pause;
        self.pause = (pause * 2).min(self.limits.slowest());
        // Up to a quarter earlier, never later.
        start + pause.mul_f64(1.0 - roll / 4.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pauses(interval_ms: u64, timeout_ms: u64, ups: &[bool], roll: f64) -> Vec<u128> {
        let limits =
            Limits { interval: Duration::from_millis(interval_ms), timeout: Duration::from_millis(timeout_ms) };
        let (mut pace, start) = (Pace::new(limits), Instant::now());
        ups.iter().map(|up| (pace.next(*up, start, roll) - start).as_millis()).collect()
    }

    const DOWN: [bool; 5] = [false; 5];

    #[test]
    fn the_pause_grows_while_it_is_down_but_never_past_interval_and_time_out() {
        for (interval, timeout, expected) in [
            (1000, 800, [1000, 1800, 1800, 1800, 1800]),
            (1000, 5000, [1000, 2000, 2000, 2000, 2000]),
            (100, 800, [100, 200, 400, 500, 500]),
            (100, 50, [100, 150, 150, 150, 150]),
            (10_000, 800, [10_000, 10_000, 10_000, 10_000, 10_000]),
        ] {
            assert_eq!(pauses(interval, timeout, &DOWN, 0.0), expected, "{interval} {timeout}");
        }
    }

    #[test]
    fn once_it_is_up_the_pace_is_steady_again() {
        assert_eq!(
            pauses(100, 800, &[true, false, false, true, false, true, true], 0.0),
            [100, 100, 200, 100, 100, 100, 100]
        );
    }

    #[test]
    fn jitter_comes_early_and_only_while_it_is_down() {
        assert_eq!(pauses(100, 800, &[true, false, false], 1.0), [100, 75, 150]);
        assert_eq!(pauses(100, 800, &[true, false, false], 0.5), [100, 87, 175]);
    }
}
