//! What is worth a log line: a change of state, and now and then how long a failure lasts. Writes nothing itself.

use std::fmt;
use std::time::Duration;

use tokio::time::Instant;

use super::verdict::Failure;

/// A dependency that flickers gets at most one line in this time; what is left out is counted.
const QUIET: Duration = Duration::from_secs(1);
/// A failure that lasts is told again this often.
const REMINDER: Duration = Duration::from_secs(60);

/// What was seen of one dependency since its last line.
#[derive(Debug)]
pub(super) struct News {
    up: Option<bool>,
    since: Instant,
    last_line: Option<Instant>,
    told: Option<bool>,
    failed: u64,
    changes: u64,
}

/// One line about a dependency whose name the reader knows.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Line {
    /// `None` while it is up.
    failure: Option<Failure>,
    failed: u64,
    /// Changes of state since the last line.
    changes: u64,
    /// In a reminder, how long it has been down.
    lasted: Option<Duration>,
}

impl News {
    pub(super) fn new(now: Instant) -> News {
        // Up is what is expected: nobody needs a line for that.
        News { up: None, since: now, last_line: None, told: Some(true), failed: 0, changes: 0 }
    }

    pub(super) fn observe(&mut self, result: &Result<(), Failure>, now: Instant) -> Option<Line> {
        let failure = result.as_ref().err();
        let up = failure.is_none();
        if self.up != Some(up) {
            self.changes += u64::from(self.up.is_some() || !up);
            self.up = Some(up);
            self.since = now;
        }
        self.failed += u64::from(!up);
        let quiet = self.last_line.map_or(REMINDER, |line| now - line);
        let changed = self.changes > 0 && quiet >= QUIET;
        let reminder = !up && self.told == Some(false) && self.changes == 0 && quiet >= REMINDER;
        if !changed && !reminder {
            return None;
        }
        let lasted = reminder.then(|| now - self.since);
        let line = Line { failure: failure.cloned(), failed: self.failed, changes: self.changes, lasted };
        self.last_line = Some(now);
        self.told = Some(up);
        self.changes = 0;
        if up {
            self.failed = 0;
        }
        Some(line)
    }
}

impl Line {
    pub(super) fn is_bad(&self) -> bool {
        self.failure.is_some()
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.failure, self.lasted) {
            (Some(failure), Some(lasted)) => {
                let seconds = lasted.as_secs_f64();
                write!(f, "still DOWN after {seconds:.0} s and {} failed checks: {failure}", self.failed)?;
            }
            (Some(failure), None) => write!(f, "DOWN: {failure}")?,
            (None, _) => write!(f, "UP again after {} failed checks", self.failed)?,
        }
        match self.changes {
            0 | 1 => Ok(()),
            changes => write!(f, " (changed {changes} times since the last line)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines for a history of `(ms, up)`, each with its time.
    fn lines(history: &[(u64, bool)]) -> Vec<(u64, String)> {
        let start = Instant::now();
        let mut news = News::new(start);
        let down = Err(Failure::said("refused"));
        history
            .iter()
            .filter_map(|(ms, up)| {
                let result = if *up { Ok(()) } else { down.clone() };
                let line = news.observe(&result, start + Duration::from_millis(*ms))?;
                Some((*ms, line.to_string()))
            })
            .collect()
    }

    #[test]
    fn a_change_is_told_once_and_its_end_with_a_count() {
        let history =
            [(0, true), (1000, true), (2000, false), (3000, false), (4000, false), (5000, true), (6000, true)];
        assert_eq!(
            lines(&history),
            [(2000, "DOWN: refused".to_owned()), (5000, "UP again after 3 failed checks".to_owned())]
        );
    }

    #[test]
    fn a_start_without_the_dependency_is_told_and_one_with_it_is_not() {
        assert_eq!(lines(&[(0, false)]), [(0, "DOWN: refused".to_owned())]);
        assert_eq!(lines(&[(0, true)]), []);
    }

    #[test]
    fn a_failure_that_lasts_is_told_again_each_minute() {
        let history: Vec<_> = (0..=130).map(|second| (second * 1000, second == 0)).collect();
        assert_eq!(
            lines(&history),
            [
                (1000, "DOWN: refused".to_owned()),
                (61_000, "still DOWN after 60 s and 61 failed checks: refused".to_owned()),
                (121_000, "still DOWN after 120 s and 121 failed checks: refused".to_owned()),
            ]
        );
    }

    #[test]
    fn what_flickers_gets_a_line_a_second_and_a_count() {
        let history: Vec<_> = (0..30).map(|tenth| (tenth * 100, tenth % 2 == 0)).collect();
        let lines = lines(&history);
        assert_eq!(lines[0], (100, "DOWN: refused".to_owned()));
        assert_eq!(lines[1].0, 1100);
        assert!(lines[1].1.ends_with("(changed 10 times since the last line)"), "{lines:?}");
        assert_eq!(lines.len(), 3);
    }
}
