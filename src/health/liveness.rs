//! Whether a restart would help this process: its workers move, and nothing in it is broken for good.
//!
//! There is no way to put a dependency in here: what is asked over a network is not the process, and a restart would
//! not mend it. The wrong way is in `wrong`.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
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
    /// When a worker last found that all had stood still, itself among them: the process was paused, or the machine
    /// slept. From then on the others have as long again to show that they move.
    woke: AtomicU64,
    poison: OnceLock<String>,
}

impl Liveness {
    pub(super) fn new(limit: Duration, workers: usize, start: Instant) -> Liveness {
        let beats = std::iter::repeat_with(AtomicU64::default).take(workers).collect();
        Liveness { limit, start, beats, woke: AtomicU64::new(0), poison: OnceLock::new() }
    }

    pub(super) fn period(&self) -> Duration {
        BEAT.min(self.limit / 4)
    }

    /// Worker `number`, counted from 1, moves.
    pub(super) fn beat(&self, number: usize, now: Instant) {
        let Some(beat) = number.checked_sub(1).and_then(|place| self.beats.get(place)) else { return };
        let now = self.millis(now);
        let last = beat.load(Ordering::Relaxed);
        let overdue_from = last + millis(self.limit);
        // A worker that moved meanwhile says that it was this one alone that stood still.
        let all_stood = self.beats.iter().all(|beat| beat.load(Ordering::Acquire) <= overdue_from);
        if now > overdue_from && all_stood {
            // Before the beat: whoever sees the one sees the other.
            self.woke.store(now, Ordering::Release);
        }
        beat.store(now, Ordering::Release);
    }

    /// Something is broken that only a restart mends. The first reason stays.
    pub(super) fn poison(&self, why: &str) {
        // A second reason changes nothing.
        let _ = self.poison.set(why.to_owned());
    }

    /// The verdict, and the age of the oldest beat, as seen by worker `number` which is being asked.
    pub(super) fn verdict(&self, number: usize, now: Instant) -> (Result<(), Failure>, Duration) {
        // Whoever answers is alive.
        self.beat(number, now);
        let now = self.millis(now);
        let beats = self.beats.iter().map(|beat| beat.load(Ordering::Acquire));
        let (place, oldest) = beats.enumerate().min_by_key(|(_, beat)| *beat).unwrap_or((0, now));
        let age = now.saturating_sub(oldest);
        let since = now.saturating_sub(oldest.max(self.woke.load(Ordering::Acquire)));
        let verdict = match self.poison.get() {
            Some(why) => Err(Failure::said(format!("poisoned: {why}"))),
            None if since > millis(self.limit) => {
                Err(Failure::said(format!("worker-{} has not moved for {age} ms", place + 1)))
            }
            None => Ok(()),
        };
        (verdict, Duration::from_millis(age))
    }

    fn millis(&self, now: Instant) -> u64 {
        millis(now.saturating_duration_since(self.start))
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(5);

    fn says(verdict: Result<(), Failure>) -> Result<(), String> {
        verdict.map_err(|failure| failure.to_string())
    }

    #[test]
    fn a_worker_that_is_late_itself_does_not_excuse_one_that_stands_still() {
        let start = Instant::now();
        let liveness = Liveness::new(LIMIT, 3, start);
        let at = |second| start + Duration::from_secs(second);
        // The first is blocked from the beginning, the second now and then for 6 s, the third never.
        for second in 0..20 {
            liveness.beat(3, at(second));
            if second % 6 == 0 {
                liveness.beat(2, at(second));
            }
        }
        let verdict = liveness.verdict(3, at(20)).0;
        assert_eq!(says(verdict), Err("worker-1 has not moved for 20000 ms".to_owned()));
    }

    #[test]
    fn a_worker_that_stands_still_is_named_by_the_others() {
        // Three workers that last moved at these seconds, who is asked, and what it says at second 10.
        for (beats, asked, expected) in [
            ([10, 10, 10], 1, Ok(())),
            ([10, 5, 10], 1, Ok(())),
            ([10, 4, 10], 1, Err("worker-2 has not moved for 6000 ms")),
            ([10, 4, 3], 1, Err("worker-3 has not moved for 7000 ms")),
            // The one that answers moves, whatever its last beat says.
            ([10, 4, 10], 2, Ok(())),
        ] {
            let start = Instant::now();
            let liveness = Liveness::new(LIMIT, 3, start);
            for second in 0..=10 {
                for (place, last) in beats.into_iter().enumerate().filter(|(_, last)| second <= *last) {
                    liveness.beat(place + 1, start + Duration::from_secs(second.min(last)));
                }
            }
            let verdict = says(liveness.verdict(asked, start + Duration::from_secs(10)).0);
            assert_eq!(verdict, expected.map_err(str::to_owned), "{beats:?} asked {asked}");
        }
    }

    #[test]
    fn after_a_pause_of_all_each_worker_has_the_limit_again_to_show_itself() {
        let start = Instant::now();
        let at = |second| start + Duration::from_secs(second);
        let liveness = Liveness::new(LIMIT, 2, start);
        // Worker 1 finds by its own beat that it stood still, and answers before worker 2 has run at all.
        liveness.beat(1, at(60));
        assert_eq!(says(liveness.verdict(1, at(60)).0), Ok(()));
        for second in 61..=65 {
            liveness.beat(1, at(second));
            assert_eq!(says(liveness.verdict(1, at(second)).0), Ok(()), "second {second}");
        }
        let (verdict, age) = liveness.verdict(1, at(66));
        assert_eq!(says(verdict), Err("worker-2 has not moved for 66000 ms".to_owned()));
        assert_eq!(age, Duration::from_secs(66));
        liveness.beat(2, at(67));
        assert_eq!(says(liveness.verdict(1, at(67)).0), Ok(()));
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
