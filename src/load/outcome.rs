//! What became of one request. Every answer is one of three: complete, partial, failed.

use std::fmt;
use std::time::Duration;

use crate::wire::{Failure, Reason};

/// How a request ended, decided once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// A 2xx (or 304) and a body that came to its end.
    Complete,
    /// The same, but the node said that its cascade ended early, and where.
    Partial(Option<Failure>),
    Failed(Cause),
}

/// Why a request failed: its status, or a [`Reason`] where there was no whole answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    Status(u16),
    Broken(Reason),
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::Status(status) => status.fmt(f),
            Cause::Broken(reason) => reason.fmt(f),
        }
    }
}

/// The word of `x-resilience-flag`, in Envoy's letters: `UO`, `UH`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Flag {
    letters: [u8; Flag::LONGEST],
    length: u8,
}

impl Flag {
    const LONGEST: usize = 15;

    /// `None` for what is no such word; it is not worth more than being left out.
    pub fn read(text: &[u8]) -> Option<Flag> {
        let is_plain = text.iter().all(|byte| byte.is_ascii_alphanumeric() || b",-_".contains(byte));
        if text.is_empty() || text.len() > Flag::LONGEST || !is_plain {
            return None;
        }
        let mut letters = [0; Flag::LONGEST];
        letters[..text.len()].copy_from_slice(text);
        Some(Flag { letters, length: text.len() as u8 })
    }

    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.letters[..usize::from(self.length)]).expect("ASCII, as it was read")
    }
}

/// One request from due to done, in the plan's times, counted from the start of the load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// When it was due; in a closed loop, when it was sent.
    pub due: Duration,
    pub sent: Duration,
    pub ended: Duration,
    pub verdict: Verdict,
    pub status: Option<u16>,
    pub flag: Option<Flag>,
}

impl Sample {
    /// From when it was *due*: a generator or target that falls behind cannot make its figures better by that.
    pub fn latency(&self) -> Duration {
        self.ended.saturating_sub(self.due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_is_a_short_plain_word() {
        for text in ["UO", "UH", "UT,URX", "x-y_z"] {
            assert_eq!(Flag::read(text.as_bytes()).expect(text).as_str(), text);
        }
        for text in ["", "a b", "é", "<script>", "0123456789abcdef"] {
            assert_eq!(Flag::read(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn latency_counts_from_when_the_request_was_due() {
        let [due, sent, ended] = [1, 4, 9].map(Duration::from_secs);
        let sample = Sample { due, sent, ended, verdict: Verdict::Complete, status: Some(200), flag: None };
        assert_eq!(sample.latency(), Duration::from_secs(8));
    }
}
