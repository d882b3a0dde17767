//! What is known of a dependency, and for how long it holds. Asks nobody, reads no clock.

use std::time::Duration;

use thiserror::Error;
use tokio::time::Instant;

use super::pace::Limits;

/// Why a dependency counts as down. The text is what a probe shows.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Failure {
    #[error("not checked yet")]
    Unchecked,
    #[error("timeout")]
    Timeout(Duration),
    #[error("stale: the last check ended {} ms ago", .0.as_millis())]
    Stale(Duration),
    #[error("the check panicked")]
    Panicked,
    #[error("{0}")]
    Said(String),
}

/// Longer ones are cut: a probe's body stays under the 10 KiB that a kubelet reads.
const LONGEST: usize = 200;

impl Failure {
    /// What the dependency, or the way to it, had to say.
    pub fn said(text: impl Into<String>) -> Failure {
        // What a stranger's server says stays one line of readable text.
        let mut text = text.into().replace(char::is_control, " ");
        if text.len() > LONGEST {
            let end = (0..=LONGEST).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
            text.truncate(end);
            text.push('…');
        }
        Failure::Said(text)
    }
}

/// How one attempt ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Snapshot {
    pub(super) result: Result<(), Failure>,
    /// When it ended.
    pub(super) at: Instant,
    pub(super) took: Duration,
    /// How often a check had been called for when it began.
    pub(super) calls: u64,
}

impl Snapshot {
    pub(super) fn unchecked(now: Instant) -> Snapshot {
        Snapshot { result: Err(Failure::Unchecked), at: now, took: Duration::ZERO, calls: 0 }
    }

    pub(super) fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.at)
    }

    /// What it says now: good news that nobody has renewed is no news.
    pub(super) fn verdict(&self, now: Instant, limits: &Limits) -> Result<(), Failure> {
        let age = self.age(now);
        match &self.result {
            Ok(()) if age > limits.stale_after() => Err(Failure::Stale(age)),
            result => result.clone(),
        }
    }

    /// In on-demand mode, whether it serves one more probe; failures are kept as long as successes are, or a dead
    /// dependency would get every probe.
    pub(super) fn serves(&self, now: Instant, calls: u64) -> bool {
        self.result != Err(Failure::Unchecked) && self.calls == calls && self.age(now) < KEPT
    }
}

/// How long an answer got on demand is kept.
const KEPT: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { interval: Duration::from_secs(1), timeout: Duration::from_millis(800) };

    fn snapshot(result: Result<(), Failure>, at: Instant) -> Snapshot {
        Snapshot { result, at, took: Duration::ZERO, calls: 3 }
    }

    #[tokio::test(start_paused = true)]
    async fn good_news_goes_stale_after_three_intervals_and_a_time_out() {
        let at = Instant::now();
        let up = snapshot(Ok(()), at);
        for (age_ms, expected) in [
            (0, Ok(())),
            (3800, Ok(())),
            (3801, Err(Failure::Stale(Duration::from_millis(3801)))),
            (60_000, Err(Failure::Stale(Duration::from_secs(60)))),
        ] {
            assert_eq!(up.verdict(at + Duration::from_millis(age_ms), &LIMITS), expected, "{age_ms} ms");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn bad_news_stays_what_it_was() {
        let at = Instant::now();
        let refused = Err(Failure::said("connection refused"));
        let down = snapshot(refused.clone(), at);
        assert_eq!(down.verdict(at + Duration::from_secs(60), &LIMITS), refused);
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_on_demand_is_kept_a_second_whatever_it_was() {
        let at = Instant::now();
        for result in [Ok(()), Err(Failure::said("connection refused")), Err(Failure::Panicked)] {
            let kept = snapshot(result, at);
            assert!(kept.serves(at + Duration::from_millis(999), 3));
            assert!(!kept.serves(at + Duration::from_millis(1000), 3));
            assert!(!kept.serves(at, 4), "called for since it began");
        }
        assert!(!Snapshot::unchecked(at).serves(at, 0));
    }

    #[test]
    fn a_long_story_is_cut_between_characters() {
        let Failure::Said(text) = Failure::said("é".repeat(300)) else { panic!() };
        assert_eq!(text, "é".repeat(100) + "…");
        assert_eq!(Failure::said("short"), Failure::Said("short".to_owned()));
    }
}
