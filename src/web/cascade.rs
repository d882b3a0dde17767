//! `GET /`: calls the next node, if there is one, and nests its answer.

use std::time::Duration;

use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::Response;
use tokio::time::Instant;

use super::Node;
use super::settings::OnFailure;
use crate::downstream::{Answer, Budget, CallError, Outgoing};
use crate::telemetry::Outcome;
use crate::wire::{self, Below, Failure, Reason, Reply};

/// What the observing layer wants to know of a cascade's answer, apart from its headers.
#[derive(Clone, Debug)]
pub(super) struct Ended {
    pub(super) outcome: Outcome,
    pub(super) correlation_id: HeaderValue,
}

pub(super) async fn get(State(node): State<Node>, RawQuery(query): RawQuery, headers: HeaderMap) -> Response {
    let start = Instant::now();
    let id = wire::correlation_id(&headers);
    if node.downstream().is_leaf() {
        return reply(&node, &id, None, start.elapsed(), Duration::ZERO);
    }
    let result = match node.next_hop(&headers) {
        Ok(hop) => {
            let callers = number(&headers, &wire::EXPECTED_TIMEOUT).map(Duration::from_millis);
            let budget = Budget::new(start, *node.downstream().settings().timeout, callers);
            let headers = forwarded(&node, &headers, &id, hop);
            node.downstream().call(Outgoing { query: query.as_deref(), headers, budget }).await
        }
        Err(error) => Err(error),
    };
    let called = start.elapsed();
    reply(&node, &id, Some(result), start.elapsed(), called)
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
fn forwarded(node: &Node, headers: &HeaderMap, id: &str, hop: Hop) -> HeaderMap {
    let mut next = HeaderMap::with_capacity(16);
    next.insert(wire::X_CORRELATION_ID, value(id));
    next.insert(wire::CASCADE_HOP, HeaderValue::from(hop.number));
    next.insert(wire::CASCADE_PATH, value(hop.path));
    for name in &wire::TRACE_HEADERS {
        for value in headers.get_all(name) {
            next.append(name, value.clone());
        }
    }
    if node.starts_traces() && !next.contains_key(wire::TRACEPARENT) {
        next.insert(wire::TRACEPARENT, value(new_trace()));
    }
    next
}

/// A W3C trace that begins here, sampled.
fn new_trace() -> String {
    let trace = uuid::Uuid::new_v4().simple();
    let span = uuid::Uuid::new_v4().as_u64_pair().0 | 1;
    format!("00-{trace}-{span:016x}-01")
}

fn value(text: impl AsRef<str>) -> HeaderValue {
    HeaderValue::from_str(text.as_ref()).expect("ids, numbers and names were checked when they were read")
}

fn reply(
    node: &Node,
    id: &str,
    result: Option<Result<Answer, CallError>>,
    took: Duration,
    called: Duration,
) -> Response {
    let answer = result.as_ref().and_then(|result| result.as_ref().ok());
    let error = result.as_ref().and_then(|result| result.as_ref().err());
    let msg = error.map(ToString::to_string);
    let body = serde_json::to_vec(&Reply {
        host: node.name(),
        port: node.port(),
        correlation_id: id,
        response_info: answer.map(|answer| &*answer.json),
        msg: msg.as_deref(),
    })
    .expect("strings, a number and checked JSON");

    let ours = seen_from_here(answer, error);
    let status = error.map_or(StatusCode::OK, |error| node.on_failure().status(error));
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    let id = value(id);
    let outcome = match (status.is_server_error(), ours.partial) {
        (true, _) => Outcome::Failed,
        (false, true) => Outcome::Partial,
        (false, false) => Outcome::Complete,
    };
    let headers = response.headers_mut();
    headers.reserve(8);
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(wire::X_CORRELATION_ID, id.clone());
    let cascade_status = if ours.partial { "partial" } else { "complete" };
    headers.insert(wire::CASCADE_STATUS, HeaderValue::from_static(cascade_status));
    headers.insert(wire::CASCADE_DEPTH, HeaderValue::from(ours.depth));
    if let Some(failure) = ours.failure {
        headers.insert(wire::CASCADE_REASON, value(failure.to_string()));
    }
    headers.insert(wire::SERVER_TIMING, server_timing(took, called));
    response.extensions_mut().insert(Ended { outcome, correlation_id: id });
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

fn server_timing(took: Duration, called: Duration) -> HeaderValue {
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let own = took.saturating_sub(called);
    value(format!("self;dur={:.3}, downstream;dur={:.3}", ms(own), ms(called)))
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
