//! How long a call may take, and how much of that the next node gets. Takes the time; reads no clock.

use std::time::Duration;

use tokio::time::Instant;

use crate::wire::Reason;

/// Kept back for our own answer, so that the hop nearest to the fault answers first: 2 %, at least 20 ms.
const MARGIN_SHARE: u32 = 50;
const MARGIN_MIN: Duration = Duration::from_millis(20);

/// The end of a call, and whose limit it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    pub end: Instant,
    /// The caller's remaining budget is shorter than our own time-out.
    callers: bool,
}

impl Budget {
    /// `own` is `--timeout`, `callers` what came in as `x-envoy-expected-rq-timeout-ms`.
    pub fn new(now: Instant, own: Duration, callers: Option<Duration>) -> Budget {
        match callers {
            Some(callers) if callers < own => Budget { end: now + callers, callers: true },
            _ => Budget { end: now + own, callers: false },
        }
    }

    /// What the next node may use; `None` when nothing would be left for it.
    pub fn for_next(&self, now: Instant) -> Option<Duration> {
        let left = self.end.saturating_duration_since(now);
        left.checked_sub((left / MARGIN_SHARE).max(MARGIN_MIN)).filter(|next| next.as_millis() > 0)
    }

    /// The reason when this budget ran out.
    pub fn exhausted(&self) -> Reason {
        if self.callers { Reason::Deadline } else { Reason::Timeout }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    #[test]
    fn each_hop_gets_a_little_less_than_its_caller() {
        let now = Instant::now();
        let budget = Budget::new(now, MS(10_000), None);
        assert_eq!(budget.for_next(now), Some(MS(9_800)));
        assert_eq!(Budget::new(now, MS(500), None).for_next(now), Some(MS(480)));
        assert_eq!(budget.for_next(now + MS(9_500)), Some(MS(480)));
    }

    #[test]
    fn the_shorter_limit_counts_and_gives_the_reason() {
        let now = Instant::now();
        let callers = Budget::new(now, MS(10_000), Some(MS(300)));
        assert_eq!((callers.end, callers.exhausted()), (now + MS(300), Reason::Deadline));
        let own = Budget::new(now, MS(1_000), Some(MS(5_000)));
        assert_eq!((own.end, own.exhausted()), (now + MS(1_000), Reason::Timeout));
    }

    #[test]
    fn a_budget_that_the_margin_eats_up_leaves_nothing() {
        let now = Instant::now();
        for ms in [0, 1, 20] {
            assert_eq!(Budget::new(now, MS(10_000), Some(MS(ms))).for_next(now), None, "{ms}");
        }
        assert_eq!(Budget::new(now, MS(10_000), Some(MS(u64::MAX / 2))).end, now + MS(10_000));
    }
}
