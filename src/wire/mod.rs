//! All that crosses the network: the answer's body, the reasons of a failure, the header names, faults as JSON.

mod delay;
mod faults;
pub(crate) mod member;
mod origin;

use std::fmt;
use std::str::FromStr;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;
use utoipa::openapi::schema::{ObjectBuilder, SchemaType, Type};

pub use delay::{Delay, MAX_DELAY};
pub use faults::{Abort, DeadWork, FaultSpec, SpecError};
pub use origin::is_from_another_site;

/// The answer to `GET /`: these five members in this order, whatever happens.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Reply<'a> {
    pub host: &'a str,
    pub port: u16,
    pub correlation_id: &'a str,
    /// The next node's whole answer, nested as JSON; `null` at the leaf and when the call failed.
    #[schema(schema_with = any_json, required)]
    pub response_info: Option<&'a RawValue>,
    /// `null`, or `"<reason>: <sentence naming the target>"`.
    #[schema(required)]
    pub msg: Option<&'a str>,
}

fn any_json() -> ObjectBuilder {
    let types = [Type::Object, Type::Array, Type::String, Type::Number, Type::Boolean, Type::Null];
    ObjectBuilder::new().schema_type(SchemaType::from_iter(types))
}

/// Why a call to the next node failed. The set is closed: teaching material and dashboards rely on these words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reason {
    /// The name has no address, or no name server answered in time.
    Dns,
    Refused,
    ConnectTimeout,
    /// Connected, but no full answer within `--timeout`.
    Timeout,
    /// The connection was reset (TCP RST).
    Reset,
    /// The connection was closed before any byte of an answer.
    Closed,
    /// The connection was closed, or the framing broke, in the middle of an answer.
    Truncated,
    BadStatus,
    BadJson,
    Empty,
    TooLarge,
    Redirect,
    /// The peer does not speak HTTP.
    Protocol,
    /// The request came back to a node that it had passed already.
    Loop,
    /// Too many hops, or JSON nested too deep.
    TooDeep,
    /// The connection pool or its queue is full.
    Overflow,
    /// Every endpoint is ejected.
    NoHealthy,
    /// The caller's budget ran out before our own `--timeout`.
    Deadline,
    Tls,
    /// Injected by this node on request.
    Fault,
}

impl Reason {
    pub const ALL: [Reason; 20] = [
        Reason::Dns,
        Reason::Refused,
        Reason::ConnectTimeout,
        Reason::Timeout,
        Reason::Reset,
        Reason::Closed,
        Reason::Truncated,
        Reason::BadStatus,
        Reason::BadJson,
        Reason::Empty,
        Reason::TooLarge,
        Reason::Redirect,
        Reason::Protocol,
        Reason::Loop,
        Reason::TooDeep,
        Reason::Overflow,
        Reason::NoHealthy,
        Reason::Deadline,
        Reason::Tls,
        Reason::Fault,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Reason::Dns => "dns",
            Reason::Refused => "refused",
            Reason::ConnectTimeout => "connect_timeout",
            Reason::Timeout => "timeout",
            Reason::Reset => "reset",
            Reason::Closed => "closed",
            Reason::Truncated => "truncated",
            Reason::BadStatus => "bad_status",
            Reason::BadJson => "bad_json",
            Reason::Empty => "empty",
            Reason::TooLarge => "too_large",
            Reason::Redirect => "redirect",
            Reason::Protocol => "protocol",
            Reason::Loop => "loop",
            Reason::TooDeep => "too_deep",
            Reason::Overflow => "overflow",
            Reason::NoHealthy => "no_healthy",
            Reason::Deadline => "deadline",
            Reason::Tls => "tls",
            Reason::Fault => "fault",
        }
    }

    /// Envoy's letters for this failure; it has none for what only a cascade knows.
    pub const fn flag(self) -> Option<&'static str> {
        match self {
            Reason::Overflow => Some("UO"),
            Reason::NoHealthy | Reason::Dns => Some("UH"),
            Reason::Timeout | Reason::Deadline => Some("UT"),
            Reason::Refused | Reason::ConnectTimeout | Reason::Tls => Some("UF"),
            Reason::Closed | Reason::Reset => Some("UC"),
            Reason::Protocol | Reason::Truncated | Reason::TooLarge => Some("UPE"),
            Reason::Fault => Some("FI"),
            Reason::BadStatus | Reason::BadJson | Reason::Empty | Reason::Redirect | Reason::Loop | Reason::TooDeep => {
                None
            }
        }
    }

    /// The status that Envoy would give for this failure, used by `--on-failure propagate`.
    /// `bad_status` passes the target's own status on instead; 502 stands for it where that is unknown.
    pub const fn status(self) -> StatusCode {
        match self {
            Reason::Timeout | Reason::Deadline => StatusCode::GATEWAY_TIMEOUT,
            Reason::Dns
            | Reason::Refused
            | Reason::ConnectTimeout
            | Reason::Reset
            | Reason::Closed
            | Reason::Overflow
            | Reason::NoHealthy
            | Reason::Fault => StatusCode::SERVICE_UNAVAILABLE,
            Reason::Loop | Reason::TooDeep => StatusCode::LOOP_DETECTED,
            Reason::Truncated
            | Reason::BadStatus
            | Reason::BadJson
            | Reason::Empty
            | Reason::TooLarge
            | Reason::Redirect
            | Reason::Protocol
            | Reason::Tls => StatusCode::BAD_GATEWAY,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Reason {
    type Err = ();

    fn from_str(text: &str) -> Result<Reason, ()> {
        Reason::ALL.into_iter().find(|reason| reason.as_str() == text).ok_or(())
    }
}

pub const X_CORRELATION_ID: HeaderName = HeaderName::from_static("x-correlation-id");
pub const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// `complete` or `partial`: what a load tool counts, as the status is 200 in both cases.
pub const CASCADE_STATUS: HeaderName = HeaderName::from_static("cascade-status");
/// How many nodes answered.
pub const CASCADE_DEPTH: HeaderName = HeaderName::from_static("cascade-depth");
/// `refused; hop=3`: the reason, and the position of the node that did not answer.
pub const CASCADE_REASON: HeaderName = HeaderName::from_static("cascade-reason");
/// How many nodes the request has passed.
pub const CASCADE_HOP: HeaderName = HeaderName::from_static("cascade-hop");
/// The instance ids of the nodes that the request has passed, separated by commas.
pub const CASCADE_PATH: HeaderName = HeaderName::from_static("cascade-path");
pub const SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");
/// The caller's remaining budget in milliseconds, by Envoy's name.
pub const EXPECTED_TIMEOUT: HeaderName = HeaderName::from_static("x-envoy-expected-rq-timeout-ms");
/// Envoy's letters for how the call to the next node failed, as `UO` or `URX,UT`.
pub const RESILIENCE_FLAG: HeaderName = HeaderName::from_static("x-resilience-flag");
/// `true` on an answer that a limit of this node's own pool caused, by Envoy's name.
pub const OVERLOADED: HeaderName = HeaderName::from_static("x-envoy-overloaded");
/// The answerer wants fewer requests, not the same one again.
pub const RATE_LIMITED: HeaderName = HeaderName::from_static("x-envoy-ratelimited");
/// Which attempt of its caller a request is, from 1, by Envoy's name.
pub const ATTEMPT_COUNT: HeaderName = HeaderName::from_static("x-envoy-attempt-count");
/// Why an answer of `/wrong/…` is not how it is done.
pub const WRONG: HeaderName = HeaderName::from_static("x-rest-cascade-wrong");
/// How many connections the leaky check holds open.
pub const LEAKED: HeaderName = HeaderName::from_static("x-rest-cascade-leaked");
pub const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// Forwarded as they come: W3C trace context, baggage, and B3 in both its forms.
pub const TRACE_HEADERS: [HeaderName; 9] = [
    TRACEPARENT,
    HeaderName::from_static("tracestate"),
    HeaderName::from_static("baggage"),
    HeaderName::from_static("b3"),
    HeaderName::from_static("x-b3-traceid"),
    HeaderName::from_static("x-b3-spanid"),
    HeaderName::from_static("x-b3-parentspanid"),
    HeaderName::from_static("x-b3-sampled"),
    HeaderName::from_static("x-b3-flags"),
];

/// What an answer said of the nodes below it, read from its `cascade-*` headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Below {
    /// Nodes that answered, the answering one included; 1 for a target that is not a node.
    pub depth: u32,
    pub partial: bool,
    pub failure: Option<Failure>,
}

/// `cascade-reason`: why and where the cascade ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    pub reason: Reason,
    /// Position of the node that did not answer, counted from the answering node as 1.
    pub hop: u32,
}

impl Failure {
    /// The same failure as seen by the caller of the node that reported it.
    pub fn one_hop_up(self) -> Failure {
        Failure { hop: self.hop.saturating_add(1), ..self }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; hop={}", self.reason, self.hop)
    }
}

impl FromStr for Failure {
    type Err = ();

    fn from_str(text: &str) -> Result<Failure, ()> {
        let (reason, hop) = text.split_once("; hop=").ok_or(())?;
        Ok(Failure { reason: reason.parse()?, hop: hop.parse().map_err(|_| ())? })
    }
}

impl Below {
    pub fn read(headers: &HeaderMap) -> Below {
        let text = |name: &HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
        Below {
            depth: text(&CASCADE_DEPTH).and_then(|depth| depth.parse().ok()).unwrap_or(1),
            partial: text(&CASCADE_STATUS) == Some("partial"),
            failure: text(&CASCADE_REASON).and_then(|failure| failure.parse().ok()),
        }
    }
}

/// The longest correlation id that is kept; a longer one is replaced.
pub const MAX_CORRELATION_ID: usize = 128;

/// The caller's correlation id if it is safe to repeat in headers, JSON and log lines, else a new one.
pub fn correlation_id(headers: &HeaderMap) -> HeaderValue {
    [X_CORRELATION_ID, X_REQUEST_ID]
        .iter()
        .filter_map(|name| headers.get(name))
        .find(|id| is_plain(id.as_bytes()))
        .cloned()
        .unwrap_or_else(|| HeaderValue::try_from(uuid::Uuid::new_v4().to_string()).expect("a UUID is plain ASCII"))
}

fn is_plain(id: &[u8]) -> bool {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.:/+=@~".contains(byte);
    !id.is_empty() && id.len() <= MAX_CORRELATION_ID && id.iter().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_reads_back_from_its_word() {
        for reason in Reason::ALL {
            assert_eq!(reason.as_str().parse(), Ok(reason));
        }
        assert_eq!("Refused".parse::<Reason>(), Err(()));
    }

    #[test]
    fn a_failure_moves_one_hop_up_with_each_node_on_the_way_back() {
        let failure: Failure = "refused; hop=3".parse().expect("as the contract writes it");
        assert_eq!(failure.one_hop_up().to_string(), "refused; hop=4");
        let last = Failure { reason: Reason::Dns, hop: u32::MAX };
        assert_eq!(last.one_hop_up().hop, u32::MAX);
    }

    #[test]
    fn unsafe_correlation_ids_are_replaced() {
        for id in ["", "a b", "a\"b", "<script>", "é", "%0d%0a", &"x".repeat(65536)] {
            let mut headers = HeaderMap::new();
            headers.insert(X_CORRELATION_ID, id.as_bytes().try_into().expect(id));
            let kept = correlation_id(&headers);
            assert!(uuid::Uuid::parse_str(kept.to_str().expect("plain")).is_ok(), "{id:.20} became {kept:?}");
        }
    }

    #[test]
    fn the_request_id_stands_in_for_a_missing_correlation_id() {
        let mut headers = HeaderMap::new();
        headers.insert(X_REQUEST_ID, "req-1".parse().expect("plain"));
        assert_eq!(correlation_id(&headers), "req-1");
        headers.insert(X_CORRELATION_ID, "cor-1".parse().expect("plain"));
        assert_eq!(correlation_id(&headers), "cor-1");
    }
}
