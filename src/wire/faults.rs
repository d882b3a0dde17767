//! The JSON of `PUT /faults`: what is to be injected, read strictly. Injects nothing.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use thiserror::Error;
use utoipa::ToSchema;

use super::delay::{Delay, MAX_DELAY};
use super::member::{self, Shown, number, optional, span, whole};
use crate::units::Span;

/// The longest time of CPU that one request can be made to burn.
const MAX_BURN: Span = Span::secs(10);
/// The most memory that can be held, in MiB.
const MAX_HOLD: u64 = 1024;
const MAX_WORKERS: u64 = 100_000;
const MAX_QUEUE: u64 = 1_000_000;
const MAX_COUNT: u64 = 1_000_000_000;
/// Faults that are to end by themselves do so within a day.
const MAX_LIFE: Span = Span::secs(24 * 3600);
/// The largest whole number that every JSON reader keeps exactly.
const MAX_SEED: u64 = (1 << 53) - 1;
const MAX_NAME: usize = 253;

/// What to inject into the business routes. Every member is optional; an empty object injects nothing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FaultSpec {
    /// Wait before the work.
    #[serde(deserialize_with = "read::delay", skip_serializing_if = "Option::is_none")]
    pub delay: Option<Delay>,
    /// Spread the answer's body over this time.
    #[serde(deserialize_with = "read::dribble", skip_serializing_if = "Option::is_none")]
    pub dribble: Option<Span>,
    /// CPU time that each request burns before its work.
    #[serde(deserialize_with = "read::burn", skip_serializing_if = "Option::is_none")]
    pub burn: Option<Span>,
    /// Memory that is held for as long as these faults are in force.
    #[serde(deserialize_with = "read::hold_mib", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1024)]
    pub hold_mib: Option<u64>,
    /// The share of requests that fail.
    #[serde(deserialize_with = "read::rate", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 1)]
    pub error_rate: Option<f64>,
    /// The status of a failed request, 503 if not given.
    #[serde(deserialize_with = "read::status", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 200, maximum = 599)]
    pub status: Option<u16>,
    /// The next so many requests fail.
    #[serde(deserialize_with = "read::fail_next", skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 1_000_000_000)]
    pub fail_next: Option<u64>,
    /// Each request whose number is a multiple of this fails.
    #[serde(deserialize_with = "read::every_nth", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1_000_000_000)]
    pub every_nth: Option<u64>,
    /// Break the connection instead of answering.
    #[serde(deserialize_with = "read::abort", skip_serializing_if = "Option::is_none")]
    pub abort: Option<Abort>,
    /// The share of requests whose connection breaks. Without it, `abort` is how the requests fail that `fail_next`,
    /// `every_nth` and `error_rate` choose, or all if none of these is given.
    #[serde(deserialize_with = "read::rate", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 1)]
    pub abort_rate: Option<f64>,
    /// Requests that are worked on at the same time.
    #[serde(deserialize_with = "read::workers", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 100_000)]
    pub workers: Option<u64>,
    /// Requests that may wait for a worker; without it, any number may.
    #[serde(deserialize_with = "read::queue", skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 1_000_000)]
    pub queue: Option<u64>,
    /// What a worker does for a client that has gone, `work` if not given.
    #[serde(deserialize_with = "read::dead_work", skip_serializing_if = "Option::is_none")]
    pub dead_work: Option<DeadWork>,
    /// Answer `Connection: close`, so that a tool that sees only new connections sees the next request (HTTP/1).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub close: Option<bool>,
    #[serde(deserialize_with = "read::expires_after", skip_serializing_if = "Option::is_none")]
    pub expires_after: Option<Span>,
    /// The one node that is meant: its name, its name and slot as `name-slot`, or its slot.
    #[serde(deserialize_with = "read::only", skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 253)]
    pub only: Option<String>,
    /// Same seed, same draws; a random one if not given.
    #[serde(deserialize_with = "read::seed", skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 9_007_199_254_740_991u64)]
    pub seed: Option<u64>,
}

/// How a connection breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Abort {
    /// TCP RST, before any byte.
    Reset,
    /// Closed without a byte.
    Empty,
    /// Bytes that are no HTTP, then closed.
    Garbage,
    /// A good head, then closed in the middle of a chunk.
    Truncate,
}

/// What becomes of a request in a worker or its queue when its client has gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum DeadWork {
    /// It is worked on to its end: a thread does not see its client go.
    #[default]
    Work,
    /// It is worked on to its end if a worker has it; in the queue it keeps its place and is skipped in its turn.
    Skip,
    /// It is dropped at once, wherever it is.
    Cancel,
}

/// Why a text is no [`FaultSpec`]: one sentence naming member, value and limit.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct SpecError(String);

impl FaultSpec {
    /// Reads the JSON strictly: what is unknown, out of range or contradictory is refused.
    ///
    /// # Errors
    /// What is wrong, and in which member.
    pub fn from_json(json: &[u8]) -> Result<FaultSpec, SpecError> {
        let expected = "faults must be a JSON object, as in {\"error_rate\":0.3,\"status\":503}";
        let spec: FaultSpec = member::object(json, expected).map_err(SpecError)?;
        spec.check().map_err(SpecError)?;
        Ok(spec)
    }

    fn check(&self) -> Result<(), String> {
        let chooses = self.chooses_failures();
        let contradictions = [
            (self.abort_rate.is_some() && self.abort.is_none(), "abort_rate needs abort, which is not given"),
            (self.queue.is_some() && self.workers.is_none(), "queue needs workers, which is not given"),
            (self.dead_work.is_some() && self.workers.is_none(), "dead_work needs workers, which is not given"),
            (
                self.status.is_some() && !chooses,
                "status needs error_rate, fail_next or every_nth to say which requests fail",
            ),
            (
                self.status.is_some() && self.abort.is_some() && self.abort_rate.is_none(),
                "status and abort both say how a request fails; with abort_rate, each has requests of its own",
            ),
        ];
        match contradictions.iter().find(|(holds, _)| *holds) {
            Some((_, sentence)) => Err((*sentence).to_owned()),
            None => Ok(()),
        }
    }

    /// Whether a member says which requests fail, apart from `abort_rate`.
    pub fn chooses_failures(&self) -> bool {
        self.error_rate.is_some() || self.fail_next.is_some() || self.every_nth.is_some()
    }
}

impl FromStr for FaultSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<FaultSpec, SpecError> {
        FaultSpec::from_json(text.as_bytes())
    }
}

impl Abort {
    pub const fn as_str(self) -> &'static str {
        match self {
            Abort::Reset => "reset",
            Abort::Empty => "empty",
            Abort::Garbage => "garbage",
            Abort::Truncate => "truncate",
        }
    }
}

impl fmt::Display for Abort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One reader for each member that has limits.
macro_rules! readers {
    ($($member:ident: $type:ty = $parse:expr;)*) => {
        mod read {
            use super::*;
            $(pub(super) fn $member<'de, D: Deserializer<'de>>(from: D) -> Result<Option<$type>, D::Error> {
                optional(from, $parse)
            })*
        }
    };
}

readers! {
    delay: Delay = Delay::read;
    dribble: Span = |value| span(value, Span::millis(1), MAX_DELAY);
    burn: Span = |value| span(value, Span::millis(1), MAX_BURN);
    hold_mib: u64 = |value| whole(value, 1, MAX_HOLD);
    rate: f64 = |value| number(value, 0.0, 1.0);
    status: u16 = status_with_body;
    fail_next: u64 = |value| whole(value, 0, MAX_COUNT);
    every_nth: u64 = |value| whole(value, 1, MAX_COUNT);
    abort: Abort = |value| word(value, "reset, empty, garbage or truncate");
    workers: u64 = |value| whole(value, 1, MAX_WORKERS);
    queue: u64 = |value| whole(value, 0, MAX_QUEUE);
    dead_work: DeadWork = |value| word(value, "work, skip or cancel");
    expires_after: Span = |value| span(value, Span::millis(1), MAX_LIFE);
    only: String = node_name;
    seed: u64 = |value| whole(value, 0, MAX_SEED);
}

fn status_with_body(value: &Value) -> Result<u16, String> {
    let code = whole(value, 200, 599)?;
    match u16::try_from(code) {
        Ok(code) if ![204, 205, 304].contains(&code) => Ok(code),
        _ => Err(format!("{code} has no body; must be a whole number from 200 to 599 whose answer has one")),
    }
}

fn node_name(value: &Value) -> Result<String, String> {
    let name = value.as_str().map(str::trim).filter(|name| (1..=MAX_NAME).contains(&name.len()));
    name.map(str::to_owned)
        .ok_or_else(|| format!("{} must be a node's name or slot, 1 to {MAX_NAME} bytes", Shown(value)))
}

fn word<T: for<'a> Deserialize<'a>>(value: &Value, words: &str) -> Result<T, String> {
    T::deserialize(value).map_err(|_| format!("{} must be {words}", Shown(value)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<FaultSpec, String> {
        json.parse().map_err(|error: SpecError| error.to_string())
    }

    #[test]
    fn every_member_reads_back_as_it_was_written() {
        for json in [
            r#"{}"#,
            r#"{"delay":"200ms"}"#,
            r#"{"delay":{"uniform":["100ms","300ms"]}}"#,
            r#"{"delay":{"uniform":["0s","0s"]}}"#,
            r#"{"delay":{"lognormal":{"median":"90ms","sigma":0.4}}}"#,
            r#"{"dribble":"2s","burn":"10ms","hold_mib":64}"#,
            r#"{"error_rate":0.3,"status":503,"fail_next":2,"every_nth":5,"abort":"reset","abort_rate":1.0,"workers":200,"queue":50,"dead_work":"work","expires_after":"1m","only":"service-2-1","seed":7}"#,
            r#"{"abort":"truncate","close":true}"#,
        ] {
            let spec = read(json).expect(json);
            assert_eq!(serde_json::to_string(&spec).expect("plain data"), json);
        }
        assert_eq!(read(r#" {"delay":null} "#), Ok(FaultSpec::default()));
    }

    #[test]
    fn what_is_refused_is_named_with_member_value_and_limit() {
        for (json, parts) in [
            (r#"{"error_rate":2}"#, &["error_rate: 2 ", "from 0 to 1"][..]),
            (r#"{"error_rate":-1}"#, &["error_rate: -1 ", "from 0 to 1"]),
            (r#"{"error_rate":NaN}"#, &["error_rate: ", "NaN", "no JSON"]),
            (r#"{"error_rate":"NaN"}"#, &["error_rate: \"NaN\" ", "from 0 to 1"]),
            (r#"{"error_rate":1e999}"#, &["error_rate: ", "out of range"]),
            (r#"{"abort":"reset","abort_rate":1.01}"#, &["abort_rate: 1.01 ", "from 0 to 1"]),
            (r#"{"error_rate":1,"status":99}"#, &["status: 99 ", "from 200 to 599"]),
            (r#"{"error_rate":1,"status":100}"#, &["status: 100 ", "from 200 to 599"]),
            (r#"{"error_rate":1,"status":199}"#, &["status: 199 ", "from 200 to 599"]),
            (r#"{"error_rate":1,"status":204}"#, &["status: 204 ", "no body"]),
            (r#"{"error_rate":1,"status":304}"#, &["status: 304 ", "no body"]),
            (r#"{"error_rate":1,"status":600}"#, &["status: 600 ", "from 200 to 599"]),
            (r#"{"error_rate":1,"status":1000}"#, &["status: 1000 ", "from 200 to 599"]),
            (r#"{"delay":"61m"}"#, &["delay: \"61m\" ", "\"1h\""]),
            (r#"{"delay":"9999999999999999999s"}"#, &["delay: \"9999999999999999999s\" ", "\"1h\""]),
            (r#"{"delay":"-1s"}"#, &["delay: \"-1s\" ", "\"0s\" to \"1h\""]),
            (r#"{"delay":200}"#, &["delay: 200 ", "\"200ms\""]),
            (r#"{"delay":["200ms"]}"#, &["delay: [\"200ms\"] "]),
            (r#"{"delay":{"uniform":["300ms","100ms"]}}"#, &["delay: uniform: ", "\"300ms\"", "\"100ms\""]),
            (r#"{"delay":{"uniform":["100ms"]}}"#, &["delay: uniform: [\"100ms\"] "]),
            (r#"{"delay":{"uniform":["1s","2h"]}}"#, &["delay: uniform: \"2h\" ", "\"1h\""]),
            (
                r#"{"delay":{"lognormal":{"median":"90ms","sigma":-1}}}"#,
                &["delay: lognormal: sigma: -1 ", "from 0 to 3"],
            ),
            (r#"{"delay":{"lognormal":{"median":"2h","sigma":1}}}"#, &["delay: lognormal: median: \"2h\" ", "\"1h\""]),
            (r#"{"delay":{"lognormal":{"median":"90ms"}}}"#, &["delay: lognormal: ", "sigma"]),
            (r#"{"delay":{"normal":{}}}"#, &["delay: {\"normal\":{}} "]),
            (r#"{"dribble":"0s"}"#, &["dribble: \"0s\" ", "\"1ms\""]),
            (r#"{"burn":"11s"}"#, &["burn: \"11s\" ", "\"10s\""]),
            (r#"{"hold_mib":1025}"#, &["hold_mib: 1025 ", "1024"]),
            (r#"{"every_nth":0}"#, &["every_nth: 0 ", "from 1 "]),
            (r#"{"fail_next":-1}"#, &["fail_next: -1 ", "from 0 "]),
            (r#"{"fail_next":1.5}"#, &["fail_next: 1.5 "]),
            (r#"{"workers":0}"#, &["workers: 0 ", "from 1 "]),
            (r#"{"workers":1,"queue":1000001}"#, &["queue: 1000001 ", "1000000"]),
            (r#"{"workers":1,"dead_work":"bury"}"#, &["dead_work: \"bury\" ", "work, skip or cancel"]),
            (r#"{"abort":"fin"}"#, &["abort: \"fin\" ", "reset, empty, garbage or truncate"]),
            (r#"{"close":"yes"}"#, &["close: ", "\"yes\"", "boolean"]),
            (r#"{"expires_after":"0s"}"#, &["expires_after: \"0s\" ", "\"1ms\""]),
            (r#"{"expires_after":"25h"}"#, &["expires_after: \"25h\" ", "\"1day\""]),
            (r#"{"only":" "}"#, &["only: \" \" ", "1 to 253"]),
            (r#"{"seed":9007199254740992}"#, &["seed: 9007199254740992 ", "9007199254740991"]),
            (r#"{"nonsense":1}"#, &["unknown field `nonsense`", "`delay`"]),
            (r#"{"seed":1,"seed":2}"#, &["duplicate field `seed`"]),
            (r#"["200ms"]"#, &["must be a JSON object"]),
            ("", &["must be a JSON object"]),
            (r#"{"seed":1} x"#, &["\"x\" is no JSON"]),
            (r#"{"seed":"#, &["no JSON"]),
        ] {
            let error = read(json).expect_err(json);
            assert_eq!(error.lines().count(), 1, "{error}");
            for part in parts {
                assert!(error.contains(part), "{json}: {error:?} lacks {part:?}");
            }
        }
        assert!(FaultSpec::from_json(b"{\"only\":\"\xff\"}").is_err());
    }

    #[test]
    fn members_that_contradict_each_other_are_refused_by_name() {
        for (json, parts) in [
            (r#"{"abort_rate":0.5}"#, ["abort_rate", "abort"]),
            (r#"{"queue":5}"#, ["queue", "workers"]),
            (r#"{"dead_work":"skip"}"#, ["dead_work", "workers"]),
            (r#"{"status":500}"#, ["status", "error_rate"]),
            (r#"{"status":500,"abort":"reset","fail_next":1}"#, ["status", "abort_rate"]),
        ] {
            let error = read(json).expect_err(json);
            assert!(parts.iter().all(|part| error.contains(part)), "{json}: {error}");
        }
    }
}
