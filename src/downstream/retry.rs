//! Whether an attempt that failed is made again, and after how long. Pure: waits for nothing, draws nothing.

use std::time::Duration;

use http::StatusCode;

use super::error::CallError;
use crate::manifest::{Policy, RetryBudget};
use crate::wire::Reason;

/// Envoy's back-off: up to this the first time, doubled each time, up to ten times this.
const BASE_PAUSE: Duration = Duration::from_millis(25);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);
/// What is retried where `retryOn` is not given: Istio's default, as far as HTTP/1 can meet it.
const DEFAULT_CONDITIONS: &str = "connect-failure,refused-stream,503";

/// A policy's retries, read once.
#[derive(Clone, Debug, Default)]
pub(super) struct Retries {
    pub(super) attempts: u32,
    pub(super) per_try: Option<Duration>,
    conditions: Conditions,
    concurrent: Concurrent,
}

#[derive(Clone, Debug, Default)]
struct Conditions {
    server_errors: bool,
    gateway_errors: bool,
    reset: bool,
    connect_failure: bool,
    conflict: bool,
    rate_limited: bool,
    statuses: Vec<StatusCode>,
}

/// How many retries may be under way.
#[derive(Clone, Debug)]
enum Concurrent {
    AtMost(usize),
    Budget(RetryBudget),
}

impl Default for Concurrent {
    fn default() -> Concurrent {
        Concurrent::AtMost(usize::MAX)
    }
}

impl Retries {
    pub(super) fn new(policy: &Policy) -> Retries {
        let concurrent = match (&policy.retry_budget, policy.connection_pool.http.max_retries) {
            (Some(budget), _) => Concurrent::Budget(budget.clone()),
            (None, Some(most)) => Concurrent::AtMost(most as usize),
            (None, None) => Concurrent::default(),
        };
        let Some(retries) = &policy.retries else { return Retries { concurrent, ..Retries::default() } };
        let whole = policy.timeout.map(|timeout| *timeout).filter(|timeout| !timeout.is_zero());
        Retries {
            attempts: retries.attempts,
            per_try: retries
                .per_try_timeout
                .map(|limit| *limit)
                .filter(|limit| whole.is_none_or(|whole| *limit < whole)),
            conditions: Conditions::read(retries.retry_on.as_deref().unwrap_or(DEFAULT_CONDITIONS)),
            concurrent,
        }
    }

    /// Whether what failed so is one of the conditions.
    pub(super) fn wants(&self, error: &CallError) -> bool {
        self.conditions.cover(error)
    }

    /// Whether one more retry may be under way beside `retrying`, at this many requests active and pending.
    pub(super) fn allow(&self, retrying: usize, load: usize) -> bool {
        match &self.concurrent {
            Concurrent::AtMost(most) => retrying < *most,
            Concurrent::Budget(RetryBudget { percent, min_retry_concurrency }) => {
                let share = (load as f64 * percent / 100.0) as usize;
                retrying < share.max(*min_retry_concurrency as usize)
            }
        }
    }
}

/// The pause before the `number`th retry, from 1; `draw` is uniform in [0, 1).
pub(super) fn pause(number: u32, draw: f64) -> Duration {
    let longest = BASE_PAUSE.saturating_mul(1 << (number - 1).min(8));
    longest.min(LONGEST_PAUSE).mul_f64(draw)
}

impl Conditions {
    /// The words were checked when the policy was read; those that HTTP/1 cannot meet are none here.
    fn read(text: &str) -> Conditions {
        let mut conditions = Conditions::default();
        for word in text.split(',').map(str::trim) {
            match word {
                "5xx" => conditions.server_errors = true,
                "gateway-error" => conditions.gateway_errors = true,
                "reset" => conditions.reset = true,
                "connect-failure" => conditions.connect_failure = true,
                "retriable-4xx" => conditions.conflict = true,
                "envoy-ratelimited" => conditions.rate_limited = true,
                word => conditions.statuses.extend(word.parse::<StatusCode>()),
            }
        }
        conditions
    }

    fn cover(&self, error: &CallError) -> bool {
        match error.reason {
            Reason::BadStatus => self.cover_status(error),
            Reason::Refused | Reason::ConnectTimeout => {
                self.connect_failure || self.gateway_errors || self.reset || self.server_errors
            }
            // An attempt's own time-out counts as a reset; the whole call's is never asked about here.
            Reason::Timeout | Reason::Reset | Reason::Closed | Reason::Protocol => {
                self.gateway_errors || self.reset || self.server_errors
            }
            _ => false,
        }
    }

    fn cover_status(&self, error: &CallError) -> bool {
        let Some(status) = error.status else { return false };
        if error.rate_limited {
            return self.rate_limited;
        }
        let code = status.as_u16();
        (self.server_errors && code >= 500)
            || (self.gateway_errors && matches!(code, 502..=504))
            || (self.conflict && code == 409)
            || self.statuses.contains(&status)
    }
}
