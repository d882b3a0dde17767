//! One endpoint's record: what it is charged with, when that is too much, and when it may come back. Takes the time.
//!
//! Rules and order are Envoy's `outlier_detection_impl.cc` (1.40), in Istio's names.

use tokio::time::Instant;

use crate::manifest::OutlierDetection;

/// How one attempt at an endpoint ended, as far as the endpoint is to blame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It answered with this status.
    Status(u16),
    /// No connection to it came about.
    ConnectFailure,
    /// It did not answer in time.
    Timeout,
    /// The connection broke, or what came was no HTTP.
    Broken,
    /// Nobody waited for the answer any more, which says nothing about the endpoint.
    Cancelled,
}

impl Outcome {
    /// The status that a failure counts as where local failures are not told apart.
    fn status(self) -> Option<u16> {
        match self {
            Outcome::Status(status) => Some(status),
            Outcome::ConnectFailure | Outcome::Broken => Some(503),
            Outcome::Timeout => Some(504),
            Outcome::Cancelled => None,
        }
    }

    fn is_local(self) -> bool {
        matches!(self, Outcome::ConnectFailure | Outcome::Broken | Outcome::Timeout)
    }

    pub(crate) fn is_failure(self) -> bool {
        self.status().is_some_and(|status| status >= 500)
    }
}

/// Which counter was full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub(crate) enum Cause {
    ConsecutiveGatewayFailure,
    #[serde(rename = "CONSECUTIVE_5XX")]
    Consecutive5xx,
    ConsecutiveLocalOriginFailure,
    /// It failed the request that was to show whether it is well again.
    FailedProbe,
    /// By hand, over `/downstream`.
    Operator,
}

impl Cause {
    /// As a metric's label.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Cause::ConsecutiveGatewayFailure => "consecutive_gateway_failure",
            Cause::Consecutive5xx => "consecutive_5xx",
            Cause::ConsecutiveLocalOriginFailure => "consecutive_local_origin_failure",
            Cause::FailedProbe => "failed_probe",
            Cause::Operator => "operator",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum State {
    Healthy,
    Ejected {
        at: Instant,
        /// The earliest return; `None` until someone returns it by hand.
        until: Option<Instant>,
        cause: Cause,
    },
}

/// The record of one endpoint.
#[derive(Clone, Debug)]
pub(super) struct Detector {
    pub(super) state: State,
    gateway: u32,
    server: u32,
    local: u32,
    /// Ejections since the endpoint is known.
    pub(super) ejections: u32,
    /// What the next ejection's base time is multiplied with, less one.
    pub(super) multiplier: u32,
    /// Looks since it came back.
    looks: u32,
    pub(super) has_returned: bool,
}

impl Detector {
    pub(super) fn new() -> Detector {
        Detector {
            state: State::Healthy,
            gateway: 0,
            server: 0,
            local: 0,
            ejections: 0,
            multiplier: 0,
            looks: 0,
            has_returned: false,
        }
    }

    pub(super) fn is_ejected(&self) -> bool {
        self.state != State::Healthy
    }

    /// The earliest return of one that was ejected by rule.
    pub(super) fn until(&self) -> Option<Instant> {
        match self.state {
            State::Ejected { until, .. } => until,
            State::Healthy => None,
        }
    }

    /// Failures in a row, of the kind that is nearest to its threshold.
    pub(super) fn in_a_row(&self, rules: &OutlierDetection) -> Option<(u32, u32)> {
        let local = if rules.split_external_local_origin_errors { rules.consecutive_local_origin_failures } else { 0 };
        [
            (self.gateway, rules.consecutive_gateway_errors),
            (self.server, rules.consecutive_5xx_errors),
            (self.local, local),
        ]
        .into_iter()
        .filter(|(_, threshold)| *threshold > 0)
        .max_by(|one, other| (one.0 * other.1).cmp(&(other.0 * one.1)))
    }

    /// Counts one attempt. Which counters are full now: their owner decides whether that ejects, and either way they
    /// begin anew (else a refused ejection would be the last one, envoy#1491).
    pub(super) fn charge(&mut self, outcome: Outcome, rules: &OutlierDetection) -> Option<Cause> {
        let status = outcome.status()?;
        if rules.split_external_local_origin_errors {
            if outcome.is_local() {
                self.local += 1;
                return self.full(rules);
            }
            // Envoy resets this with each connection that comes about, so that it never ejects an endpoint that takes
            // connections and does not answer. Only an answer is a sign of health here.
            self.local = 0;
        }
        match status {
            502..=504 => {
                self.gateway += 1;
                self.server += 1;
            }
            500.. => {
                self.gateway = 0;
                self.server += 1;
            }
            _ => {
                self.gateway = 0;
                self.server = 0;
            }
        }
        self.full(rules)
    }

    fn full(&mut self, rules: &OutlierDetection) -> Option<Cause> {
        let mut cause = None;
        for (counter, threshold, kind) in [
            (&mut self.local, rules.consecutive_local_origin_failures, Cause::ConsecutiveLocalOriginFailure),
            (&mut self.server, rules.consecutive_5xx_errors, Cause::Consecutive5xx),
            // The last one is the one that is told where two are full.
            (&mut self.gateway, rules.consecutive_gateway_errors, Cause::ConsecutiveGatewayFailure),
        ] {
            if threshold > 0 && *counter == threshold {
                *counter = 0;
                cause = Some(kind);
            }
        }
        cause
    }

    /// Out of use from `now` on, longer each time: `base × multiplier`, at most `maxEjectionTime` (or the base).
    pub(super) fn eject(&mut self, now: Instant, cause: Cause, rules: &OutlierDetection) {
        let base = *rules.base_ejection_time;
        let longest = base.max(*rules.max_ejection_time);
        if base * self.multiplier < longest + base {
            self.multiplier += 1;
        }
        let lasts = longest.min(base * self.multiplier);
        self.ejections += 1;
        self.state = State::Ejected { at: now, until: Some(now + lasts), cause };
    }

    pub(super) fn eject_by_hand(&mut self, now: Instant) {
        self.ejections += 1;
        self.state = State::Ejected { at: now, until: None, cause: Cause::Operator };
    }

    /// Whether its time is up.
    pub(super) fn may_return(&self, now: Instant) -> bool {
        self.until().is_some_and(|until| now >= until)
    }

    /// All counters begin anew.
    pub(super) fn forget(&mut self) {
        (self.gateway, self.server, self.local) = (0, 0, 0);
    }

    /// In use again, with all counters at zero: failures from before say nothing about what is now.
    pub(super) fn come_back(&mut self) {
        self.forget();
        self.state = State::Healthy;
        self.looks = 0;
        self.has_returned = true;
    }

    /// A look at an endpoint that is in use: each but the first one after its return takes one from the multiplier.
    /// (Envoy asks for a whole interval since the return, which the first look has or lacks by less than a
    /// millisecond, at random.)
    pub(super) fn look(&mut self) {
        self.looks = self.looks.saturating_add(1);
        if self.looks > 1 {
            self.multiplier = self.multiplier.saturating_sub(1);
        }
    }
}
