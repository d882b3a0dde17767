//! What each member of a policy may be, in one place for files and for JSON. What is beyond it is refused by name.

use serde::Deserializer;
use serde_json::Value;

use super::policy::{OutlierDetection, Policy};
use crate::units::Span;
use crate::wire::member::{self, Shown, number, optional, required, span, whole};

const HOUR: Span = Span::secs(3600);
const DAY: Span = Span::secs(24 * 3600);
const MS: Span = Span::millis(1);
const MAX_ATTEMPTS: u64 = 100;
const MAX_PROBES: u64 = 1000;

/// Conditions that a retry can be asked for, and that a call over HTTP/1 can meet.
const CONDITIONS: [&str; 10] = [
    "5xx",
    "gateway-error",
    "reset",
    "reset-before-request",
    "connect-failure",
    "retriable-4xx",
    "retriable-status-codes",
    "envoy-ratelimited",
    "refused-stream",
    "retriable-headers",
];

/// Those that only gRPC or HTTP/3 meets: Istio's default names some.
const NEVER_MET: [&str; 6] =
    ["cancelled", "deadline-exceeded", "internal", "resource-exhausted", "unavailable", "http3-post-connect-failure"];

/// One reader for each member that has limits.
macro_rules! readers {
    ($($member:ident: $take:ident $type:ty = $parse:expr;)*) => {
        $(pub(super) fn $member<'de, D: Deserializer<'de>>(from: D) -> Result<$type, D::Error> {
            $take(from, $parse)
        })*
    };
}

readers! {
    timeout: optional Option<Span> = |value| span(value, Span::secs(0), HOUR);
    per_try: optional Option<Span> = |value| span(value, MS, HOUR);
    connect: optional Option<Span> = |value| span(value, MS, HOUR);
    idle: optional Option<Span> = |value| span(value, MS, DAY);
    life: optional Option<Span> = |value| span(value, MS, DAY);
    probe: optional Option<u32> = |value| small(value, 1, MAX_PROBES);
    retry_on: optional Option<String> = conditions;
    attempts: required u32 = |value| small(value, 0, MAX_ATTEMPTS);
    in_a_row: required u32 = |value| small(value, 0, u64::from(u32::MAX));
    reserve: required u32 = |value| small(value, 0, u64::from(u32::MAX));
    interval: required Span = |value| span(value, MS, HOUR);
    ejection: required Span = |value| span(value, MS, DAY);
    percent: required u32 = |value| small(value, 0, 100);
    window: required Span = |value| span(value, Span::secs(0), Span::secs(60));
    budget: required f64 = |value| number(value, 0.0, 100.0);
}

/// As in Istio, 0 is the same as none given.
pub(super) fn count<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u32>, D::Error> {
    let given = optional(from, |value| small(value, 0, u64::from(u32::MAX)))?;
    Ok(given.filter(|count| *count > 0))
}

/// As in Istio, 0 is the same as none given.
pub(super) fn ejection_percent<'de, D: Deserializer<'de>>(from: D) -> Result<u32, D::Error> {
    let given = percent(from)?;
    Ok(if given == 0 { OutlierDetection::default().max_ejection_percent } else { given })
}

fn small(value: &Value, min: u64, max: u64) -> Result<u32, String> {
    let number = whole(value, min, max)?;
    u32::try_from(number).map_err(|_| format!("{number} must be a whole number from {min} to {max}"))
}

fn conditions(value: &Value) -> Result<String, String> {
    let text = value.as_str().ok_or_else(|| {
        format!("{} must be conditions separated by commas, as \"gateway-error,connect-failure\"", Shown(value))
    })?;
    for condition in text.split(',').map(str::trim) {
        let status = condition.len() == 3 && matches!(condition.parse(), Ok(100..=599_u16));
        if !status && !CONDITIONS.contains(&condition) && !NEVER_MET.contains(&condition) {
            let known = CONDITIONS.join(", ");
            return Err(format!("{condition:?} is no condition; known are {known}, and a status as 503"));
        }
    }
    Ok(text.to_owned())
}

/// Why a JSON is no [`Policy`]: one sentence naming member, value and limit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PolicyError(String);

impl Policy {
    /// Reads the JSON of `PUT /policy` strictly: what is unknown or out of range is refused.
    ///
    /// # Errors
    /// What is wrong, and in which member.
    pub fn from_json(json: &[u8]) -> Result<Policy, PolicyError> {
        let expected = "a policy must be a JSON object, as in {\"timeout\":\"10s\",\"retries\":{\"attempts\":0}}";
        member::object(json, expected).map_err(PolicyError)
    }

    /// The same for a value that was read already: the member's path, and what is wrong with it.
    pub(super) fn from_value(value: Value) -> Result<Policy, (String, String)> {
        let path = |error: serde_path_to_error::Error<serde_json::Error>| {
            (error.path().to_string(), error.into_inner().to_string())
        };
        serde_path_to_error::deserialize(value).map_err(path)
    }
}
