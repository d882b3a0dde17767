//! Why a call failed, with all that the answer above needs to know of it.

use std::fmt;

use http::StatusCode;

use crate::wire::{Failure, Reason};

/// A failed call. Its `Display` is the `msg` of the answer: `"<reason>: <sentence naming the target>"`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallError {
    pub reason: Reason,
    sentence: String,
    /// The target's own status, for `bad_status`.
    pub status: Option<StatusCode>,
    /// Where the cascade really ended, if the target's failing answer said so.
    pub below: Option<Failure>,
    /// The target asked for fewer requests, not for the same one again.
    pub(super) rate_limited: bool,
    /// Every retry that the policy allows was made.
    pub(super) retries_used_up: bool,
}

impl CallError {
    pub fn new(reason: Reason, sentence: String) -> CallError {
        CallError { reason, sentence, status: None, below: None, rate_limited: false, retries_used_up: false }
    }

    pub(super) fn bad_status(sentence: String, status: StatusCode, below: Option<Failure>) -> CallError {
        CallError { status: Some(status), below, ..CallError::new(Reason::BadStatus, sentence) }
    }

    /// Envoy's letters for what happened, as `UT` or `URX,UT`; empty where it has none.
    pub fn flags(&self) -> String {
        let used_up = self.retries_used_up.then_some("URX");
        used_up.into_iter().chain(self.reason.flag()).collect::<Vec<_>>().join(",")
    }

    /// The connection ended before the answer did.
    pub(super) fn is_end(&self) -> bool {
        matches!(self.reason, Reason::Closed | Reason::Reset)
    }

    /// The status that this failure is passed on with: the target's own, if it is one that ends a request.
    pub fn propagated(&self) -> StatusCode {
        let is_final = |status: &StatusCode| status.is_client_error() || status.is_server_error();
        self.status.filter(is_final).unwrap_or(self.reason.status())
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.reason, self.sentence)
    }
}
