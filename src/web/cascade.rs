//! `GET /`: calls the next node, if there is one, and nests its answer.

use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::Response;
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::Node;
use super::inject::{Arrived, Refusal};
use super::settings::OnFailure;
use crate::downstream::{Answer, Budget, CallError, Outgoing};
use crate::wire::{self, Below, Failure, Reason, Reply};

pub(super) async fn get(State(node): State<Node>, request: Request) -> Response {
    let start = Instant::now();
    let (asked, _) = request.into_parts();
    // An injected delay has used up some of the caller's time.
    let arrived = asked.extensions.get::<Arrived>().map_or(start, |Arrived(at)| *at);
    let id = wire::correlation_id(&asked.headers);
    if node.downstream().is_leaf() {
        return reply(&node, id, None, Timing { arrived, call: Duration::ZERO });
    }
    let result = match node.next_hop(&asked.headers) {
        Ok(hop) => {
            let callers = number(&asked.headers, &wire::EXPECTED_TIMEOUT)
                .map(|ms| Duration::from_millis(ms).saturating_sub(start - arrived));
            let budget = Budget::new(start, node.downstream().timeout(), callers);
            let headers = forwarded(&node, &asked.headers, &id, hop);
            node.downstream().call(Outgoing { query: asked.uri.query(), headers, budget }).await
        }
        Err(error) => Err(error),
    };
    reply(&node, id, Some(result), Timing { arrived, call: start.elapsed() })
}

/// The answer of a node that does not do its work: it is itself the one that does not answer.
pub(super) fn refuse(node: &Node, headers: &HeaderMap, refusal: Refusal) -> Response {
    let Refusal { reason, status, sentence, arrived } = refusal;
    let below = Below { depth: 1, partial: true, failure: Some(Failure { reason, hop: 1 }) };
    let msg = format!("{reason}: {sentence}");
    let flags = reason.flag().unwrap_or_default().to_owned();
    let content = Content { json: None, msg: Some(&msg), status, below, flags, overloaded: false };
    respond(node, wire::correlation_id(headers), content, Timing { arrived, call: Duration::ZERO })
}

/// Where this node stands in the cascade, checked: how many nodes the request has passed, and which.
struct Hop {
    number: u64,
    path: String,
}

impl Node {
    /// Refuses to call where the call would only go round, or the cascade is too long already.
    fn next_hop(&self, headers: &HeaderMap) -> Result<Hop, CallError> {
        let path: Vec<&str> =
            headers.get_all(wire::CASCADE_PATH).iter().filter_map(|value| value.to_str().ok()).collect();
        if path.iter().flat_map(|ids| ids.split(',')).any(|id| id.trim() == self.instance()) {
            let sentence = format!("{} leads back to this node", self.downstream().shown());
            return Err(CallError::new(Reason::Loop, sentence));
        }
        // A value that is no number counts as none: the path still ends a loop.
        let number = number(headers, &wire::CASCADE_HOP).unwrap_or(0).saturating_add(1);
        if number >= self.max_depth() {
            let sentence =
                format!("{} would be beyond the {} nodes of --max-depth", self.downstream().shown(), self.max_depth());
            return Err(CallError::new(Reason::TooDeep, sentence));
        }
        let path = path.into_iter().chain([self.instance()]).collect::<Vec<_>>().join(",");
        Ok(Hop { number, path })
    }
}

/// A whole number in a header; `None` for what is none. One that is too large to hold is as large as can be.
fn number(headers: &HeaderMap, name: &HeaderName) -> Option<u64> {
    let text = headers.get(name)?.to_str().ok()?.trim();
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().unwrap_or(u64::MAX))
}

/// The headers of the next call: nothing of the caller's goes on but ids and trace context.
fn forwarded(node: &Node, headers: &HeaderMap, id: &HeaderValue, hop: Hop) -> HeaderMap {
    let mut next = HeaderMap::with_capacity(16);
    next.insert(wire::X_CORRELATION_ID, id.clone());
    next.insert(wire::CASCADE_HOP, HeaderValue::from(hop.number));
    next.insert(wire::CASCADE_PATH, value(hop.path));
    for (name, value) in headers.iter().filter(|(name, _)| wire::TRACE_HEADERS.contains(name)) {
        next.append(name, value.clone());
    }
    if node.starts_traces() && !next.get(wire::TRACEPARENT).is_some_and(is_traceparent) {
        next.insert(wire::TRACEPARENT, value(new_trace()));
    }
    next
}

/// As W3C Trace Context has it; anything else counts as absent.
fn is_traceparent(value: &HeaderValue) -> bool {
    let hex = |part: &str, length| part.len() == length && part.bytes().all(|byte| byte.is_ascii_hexdigit());
    let parts: Vec<&str> = value.to_str().map(|text| text.split('-').collect()).unwrap_or_default();
    matches!(parts[..], [version, trace, span, flags, ..]
        if hex(version, 2) && hex(trace, 32) && hex(span, 16) && hex(flags, 2) && trace.bytes().any(|byte| byte != b'0'))
}

/// A W3C trace that begins here, sampled.
fn new_trace() -> String {
    let trace = uuid::Uuid::new_v4().simple();
    let span = uuid::Uuid::new_v4().as_u64_pair().0 | 1;
    format!("00-{trace}-{span:016x}-01")
}

fn value(text: String) -> HeaderValue {
    HeaderValue::try_from(text).expect("ids, numbers and words were checked when they were read")
}

fn text(id: &HeaderValue) -> &str {
    id.to_str().expect("a correlation id is plain ASCII")
}

fn reply(node: &Node, id: HeaderValue, result: Option<Result<Answer, CallError>>, timing: Timing) -> Response {
    let answer = result.as_ref().and_then(|result| result.as_ref().ok());
    let error = result.as_ref().and_then(|result| result.as_ref().err());
    let msg = error.map(ToString::to_string);
    let content = Content {
        json: answer.map(|answer| &*answer.json),
        msg: msg.as_deref(),
        status: error.map_or(StatusCode::OK, |error| node.on_failure().status(error)),
        below: seen_from_here(answer, error),
        flags: error.map_or_else(String::new, CallError::flags),
        overloaded: error.is_some_and(|error| error.reason == Reason::Overflow),
    };
    respond(node, id, content, timing)
}

/// What differs between one answer and another.
struct Content<'a> {
    json: Option<&'a RawValue>,
    msg: Option<&'a str>,
    status: StatusCode,
    below: Below,
    /// Envoy's letters for how the call failed.
    flags: String,
    /// A limit of our own was the reason.
    overloaded: bool,
}

fn respond(node: &Node, id: HeaderValue, content: Content<'_>, timing: Timing) -> Response {
    let Content { json, msg, status, below: ours, flags, overloaded } = content;
    let mut body = Vec::with_capacity(json.map_or(0, |json| json.get().len()) + 256);
    let (host, port) = (node.name(), node.port());
    let reply = Reply { host, port, correlation_id: text(&id), response_info: json, msg };
    serde_json::to_writer(&mut body, &reply).expect("strings, a number and checked JSON into memory");
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.reserve(10);
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(wire::X_CORRELATION_ID, id);
    let cascade_status = if ours.partial { "partial" } else { "complete" };
    headers.insert(wire::CASCADE_STATUS, HeaderValue::from_static(cascade_status));
    headers.insert(wire::CASCADE_DEPTH, HeaderValue::from(ours.depth));
    if let Some(failure) = ours.failure {
        headers.insert(wire::CASCADE_REASON, value(failure.to_string()));
    }
    if !flags.is_empty() {
        headers.insert(wire::RESILIENCE_FLAG, value(flags));
    }
    if overloaded {
        headers.insert(wire::OVERLOADED, HeaderValue::from_static("true"));
    }
    headers.insert(wire::SERVER_TIMING, timing.header());
    response
}

/// What the cascade looks like from this node: what the next one said, one hop further away.
fn seen_from_here(answer: Option<&Answer>, error: Option<&CallError>) -> Below {
    match (answer, error) {
        (Some(Answer { below, .. }), _) => Below {
            depth: below.depth.saturating_add(1),
            partial: below.partial,
            failure: below.failure.filter(|_| below.partial).map(Failure::one_hop_up),
        },
        (None, Some(error)) => {
            let here = Failure { reason: error.reason, hop: 1 };
            Below { depth: 1, partial: true, failure: Some(error.below.unwrap_or(here).one_hop_up()) }
        }
        (None, None) => Below { depth: 1, partial: false, failure: None },
    }
}

/// Where the time went, for `server-timing`.
struct Timing {
    arrived: Instant,
    call: Duration,
}

impl Timing {
    fn header(self) -> HeaderValue {
        let own = self.arrived.elapsed().saturating_sub(self.call);
        // In whole microseconds: printing a float costs more than the rest of this header.
        let ms = |time: Duration| (time.as_millis(), time.subsec_micros() % 1000);
        let ((own, own_us), (call, call_us)) = (ms(own), ms(self.call));
        value(format!("self;dur={own}.{own_us:03}, downstream;dur={call}.{call_us:03}"))
    }
}

impl OnFailure {
    fn status(self, error: &CallError) -> StatusCode {
        match self {
            OnFailure::Degrade => StatusCode::OK,
            OnFailure::Propagate => error.propagated(),
            OnFailure::Map(status) => status,
        }
    }
}
