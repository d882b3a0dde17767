//! One line for each request, without the log becoming the load.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tracing::info;

use super::AccessMode;

/// Lines a second that `auto` writes: a person with `curl` sees each request, a load test costs nothing.
const LINES_PER_SECOND: u64 = 100;

/// Decides which requests get a line; clones share the count.
#[derive(Clone, Debug)]
pub struct AccessLog(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    mode: AccessMode,
    start: Instant,
    /// The second that is being counted, and how many requests it had: one word, so that they change together.
    second_and_count: AtomicU64,
}

/// One request as the access line shows it.
#[derive(Debug)]
pub struct Line<'a> {
    pub method: &'a str,
    pub path: &'a str,
    pub status: u16,
    pub took: Duration,
    pub correlation_id: &'a str,
    pub cascade_status: &'a str,
}

#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Write,
    Skip,
    /// Write, and tell that this many were not written in the second before.
    WriteAfter(u64),
}

impl AccessLog {
    pub fn new(mode: AccessMode) -> AccessLog {
        AccessLog(Arc::new(Inner { mode, start: Instant::now(), second_and_count: AtomicU64::new(0) }))
    }

    /// Whether a line is wanted now; to be asked once for each request, as it counts.
    pub fn wants_line(&self) -> bool {
        match self.0.mode {
            AccessMode::Off => false,
            AccessMode::All => true,
            AccessMode::Auto => match self.verdict(self.0.start.elapsed().as_secs()) {
                Verdict::Write => true,
                Verdict::Skip => false,
                Verdict::WriteAfter(skipped) => {
                    info!(skipped, "{skipped} more requests had no access line (--access-log all writes each)");
                    true
                }
            },
        }
    }

    /// Tells how many lines were skipped and not told so far; for the end of the process.
    pub fn finish(&self) {
        if let (AccessMode::Auto, Verdict::WriteAfter(skipped)) = (self.0.mode, self.verdict(u64::from(u32::MAX))) {
            info!(skipped, "{skipped} more requests had no access line (--access-log all writes each)");
        }
    }

    fn verdict(&self, second: u64) -> Verdict {
        const COUNT: u64 = u32::MAX as u64;
        let mut before = self.0.second_and_count.load(Relaxed);
        loop {
            let (counted, count) = (before >> 32, before & COUNT);
            let (after, verdict) = if second > counted {
                let skipped = count.saturating_sub(LINES_PER_SECOND);
                let verdict = if skipped > 0 { Verdict::WriteAfter(skipped) } else { Verdict::Write };
                (second << 32 | 1, verdict)
            } else {
                let verdict = if count < LINES_PER_SECOND { Verdict::Write } else { Verdict::Skip };
                (counted << 32 | (count + 1).min(COUNT), verdict)
            };
            match self.0.second_and_count.compare_exchange_weak(before, after, Relaxed, Relaxed) {
                Ok(_) => return verdict,
                Err(now) => before = now,
            }
        }
    }
}

impl Line<'_> {
    pub fn write(&self) {
        let Line { method, path, status, took, correlation_id, cascade_status } = self;
        let ms = (took.as_secs_f64() * 1e5).round() / 100.0;
        info!(method, path, status, ms, correlation_id, cascade_status, "access");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_hundred_of_a_second_are_written_and_the_rest_counted() {
        let log = AccessLog::new(AccessMode::Auto);
        let written = (0..250).filter(|_| log.verdict(1) == Verdict::Write).count();
        assert_eq!(written, 100);
        assert_eq!(log.verdict(2), Verdict::WriteAfter(150));
        assert_eq!(log.verdict(2), Verdict::Write);
        assert_eq!(log.verdict(9), Verdict::Write);
    }

    #[test]
    fn all_and_off_ask_no_clock() {
        assert!((0..1000).all(|_| AccessLog::new(AccessMode::All).wants_line()));
        assert!(!AccessLog::new(AccessMode::Off).wants_line());
    }
}
