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
}

impl CallError {
    pub fn new(reason: Reason, sentence: String) -> CallError {
        CallError { reason, sentence, status: None, below: None }
    }

    pub(super) fn bad_status(sentence: String, status: StatusCode, below: Option<Failure>) -> CallError {
        CallError { reason: Reason::BadStatus, sentence, status: Some(status), below }
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
