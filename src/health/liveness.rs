//! Whether a restart would help this process: its workers move, and nothing in it is broken for good.
//!
//! There is no way to put a dependency in here: what is asked over a network is not the process, and a restart would
//! not mend it. The wrong way is in [`super::wrong`].

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::time::Instant;

use super::verdict::Failure;

/// A worker beats this often, or four times within the limit.
const BEAT: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(super) struct Liveness {
    limit: Duration,
    start: Instant,
    /// When each worker last moved, in milliseconds since the start.
    beats: Vec<AtomicU64>,
    poison: OnceLock<String>,
}

impl Liveness {
    pub(super) fn new(limit: Duration, workers: usize, start: Instant) -> Liveness {
        let beats = std::iter::repeat_with(AtomicU64::default).take(workers).collect();
        Liveness { limit, start, beats, poison: OnceLock::new() }
    }

    pub(super) fn period(&self) -> Duration {
        BEAT.min(self.limit / 4)
    }

    /// Worker `number`, counted from 1, moves.
    pub(super) fn beat(&self, number: usize, now: Instant) {
        if let Some(beat) = number.checked_sub(1).and_then(|place| self.beats.get(place)) {
            beat.store(self.millis(now), Relaxed);
        }
    }

    /// Something is broken that only a restart mends. The first reason stays.
    pub(super) fn poison(&self, why: &str) {
        // A second reason changes nothing.
        let _ = self.poison.set(why.to_owned());
    }

    /// The verdict, and the age of the oldest beat, as seen by worker `number` which is being asked.
    pub(super) fn verdict(&self, number: usize, now: Instant) -> (Result<(), Failure>, Duration) {
        let now_ms = self.millis(now);
        let ages = || self.beats.iter().map(|beat| Duration::from_millis(now_ms.saturating_sub(beat.load(Relaxed))));
        let own = number.checked_sub(1).and_then(|place| ages().nth(place));
        // Whoever answers is alive. And if its own beat is late too, the whole process stood still (paused, or the
        // machine slept): the others get the time to show themselves.
        let all_stood = own.is_some_and(|own| own > self.limit);
        self.beat(number, now);
        let oldest = ages().enumerate().max_by_key(|(_, age)| *age);
        let (place, age) = oldest.unwrap_or_default();
        let verdict = match self.poison.get() {
            Some(why) => Err(Failure::said(format!("poisoned: {why}"))),
            None if age > self.limit && !all_stood => {
                Err(Failure::said(format!("worker-{} has not moved for {} ms", place + 1, age.as_millis())))
            }
            None => Ok(()),
        };
        (verdict, age)
    }

    fn millis(&self, now: Instant) -> u64 {
        u64::try_from(now.saturating_duration_since(self.start).as_millis()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(5);

    /// Three workers with beats at the given seconds, and what worker `asked` says at second `now`.
    fn verdict(beats: [u64; 3], asked: usize, now: u64) -> Result<(), String> {
        let start = Instant::now();
        let at = |second| start + Duration::from_secs(second);
        let liveness = Liveness::new(LIMIT, 3, start);
        for (place, second) in beats.into_iter().enumerate() {
            liveness.beat(place + 1, at(second));
        }
        liveness.verdict(asked, at(now)).0.map_err(|failure| failure.to_string())
    }

    #[test]
    fn a_worker_that_stands_still_is_named_by_the_others() {
        for (beats, asked, now, expected) in [
            ([10, 10, 10], 1, 10, Ok(())),
            ([10, 5, 10], 1, 10, Ok(())),
            ([10, 4, 10], 1, 10, Err("worker-2 has not moved for 6000 ms")),
            ([10, 4, 3], 1, 10, Err("worker-3 has not moved for 7000 ms")),
            // The one that answers moves, whatever its last beat says.
            ([10, 4, 10], 2, 10, Ok(())),
            // All stood still together, and only one has answered so far.
            ([4, 4, 4], 1, 10, Ok(())),
        ] {
            assert_eq!(verdict(beats, asked, now), expected.map_err(str::to_owned), "{beats:?} asked {asked}");
        }
    }

    #[test]
    fn after_a_pause_a_worker_that_does_not_come_back_is_found() {
        let start = Instant::now();
        let liveness = Liveness::new(LIMIT, 2, start);
        let late = start + Duration::from_secs(60);
        assert_eq!(liveness.verdict(1, late).0, Ok(()));
        let (verdict, age) = liveness.verdict(1, late + Duration::from_secs(1));
        assert_eq!(verdict, Err(Failure::said("worker-2 has not moved for 61000 ms")));
        assert_eq!(age, Duration::from_secs(61));
    }

    #[test]
    fn poison_is_for_good_and_keeps_its_first_reason() {
        let start = Instant::now();
        let liveness = Liveness::new(LIMIT, 1, start);
        liveness.poison("worker-1 cannot listen");
        liveness.poison("something else");
        let (verdict, _) = liveness.verdict(1, start);
        assert_eq!(verdict, Err(Failure::said("poisoned: worker-1 cannot listen")));
    }

    #[test]
    fn a_beat_comes_well_within_the_limit() {
        for (limit_ms, period_ms) in [(5000, 500), (1000, 250), (100, 25)] {
            let liveness = Liveness::new(Duration::from_millis(limit_ms), 1, Instant::now());
            assert_eq!(liveness.period(), Duration::from_millis(period_ms));
        }
    }
}
