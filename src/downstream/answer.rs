//! Reads one answer of the target: bounded, checked, and every way it can be wrong told apart.

use std::io;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, StatusCode, header};
use http_body_util::BodyExt;
use hyper::Response;
use hyper::body::{Body, Incoming};
use serde_json::value::RawValue;

use super::connection::Connection;
use super::error::CallError;
use super::target::Target;
use crate::wire::{Below, RATE_LIMITED, Reason};

/// The largest body of an answer, in bytes.
const MAX_BODY: usize = 1024 * 1024;
/// How deep the JSON of an answer may be nested.
const MAX_NESTING: usize = 64;
/// A failed answer's body is of no use; up to this size and for this long it is read all the same, so that the
/// connection can be used again.
const MAX_DRAIN: usize = 64 * 1024;
const DRAIN_TIME: Duration = Duration::from_millis(50);

/// A good answer of the target.
#[derive(Debug)]
pub struct Answer {
    pub json: Box<RawValue>,
    pub below: Below,
}

/// Reads the answer on `connection`; with the verdict, whether the connection was read to the answer's end.
pub(super) async fn read(
    connection: &mut Connection,
    target: &Target,
    response: Response<Incoming>,
) -> (Result<Answer, CallError>, bool) {
    let (head, body) = response.into_parts();
    if let Err(error) = check_head(target, head.status, &head.headers) {
        let read_out = head.status != StatusCode::SWITCHING_PROTOCOLS && drain(connection, body).await;
        return (Err(error), read_out);
    }
    match collect(connection, target, body).await {
        Ok(bytes) => (check_body(target, &bytes).map(|json| Answer { json, below: Below::read(&head.headers) }), true),
        Err(error) => (Err(error), false),
    }
}

fn check_head(target: &Target, status: StatusCode, headers: &HeaderMap) -> Result<(), CallError> {
    if status.is_redirection() {
        return Err(CallError::new(
            Reason::Redirect,
            format!("{target} answered {status}, redirects are not followed"),
        ));
    }
    if !status.is_success() {
        let below = Below::read(headers).failure;
        let mut error = CallError::bad_status(format!("{target} answered {status}"), status, below);
        error.rate_limited = headers.contains_key(RATE_LIMITED);
        return Err(error);
    }
    if let Some(encoding) = headers.get(header::CONTENT_ENCODING).filter(|encoding| *encoding != "identity") {
        let sentence = format!("{target} answered in content-encoding {encoding:?}, which was not asked for");
        return Err(CallError::new(Reason::BadJson, sentence));
    }
    Ok(())
}

async fn drain(connection: &mut Connection, body: Incoming) -> bool {
    if body.is_end_stream() {
        return true;
    }
    let small = body.size_hint().exact().is_some_and(|length| length <= MAX_DRAIN as u64);
    small && tokio::time::timeout(DRAIN_TIME, connection.drive(body.collect())).await.is_ok_and(|body| body.is_ok())
}

async fn collect(connection: &mut Connection, target: &Target, mut body: Incoming) -> Result<Bytes, CallError> {
    let too_large = || CallError::new(Reason::TooLarge, format!("{target} answered more than {MAX_BODY} bytes"));
    if body.size_hint().lower() > MAX_BODY as u64 {
        return Err(too_large());
    }
    let mut first = Bytes::new();
    let mut rest = BytesMut::new();
    while let Some(frame) = connection.drive(body.frame()).await {
        let frame = frame.map_err(|error| cut(target, &error))?;
        let Ok(data) = frame.into_data() else { continue };
        if first.len() + rest.len() + data.len() > MAX_BODY {
            return Err(too_large());
        }
        // Nearly every answer is one frame: it is used as it came.
        if first.is_empty() { first = data } else { rest.extend_from_slice(&data) }
    }
    Ok(if rest.is_empty() { first } else { [&first[..], &rest[..]].concat().into() })
}

/// No answer at all: the connection ended, or what came is no HTTP.
pub(super) fn none(target: &Target, error: &hyper::Error, was_answered: bool) -> CallError {
    if error.is_parse_too_large() {
        return CallError::new(Reason::TooLarge, format!("{target} answered with too large a head"));
    }
    if error.is_parse() {
        return CallError::new(Reason::Protocol, format!("{target} does not speak HTTP ({error})"));
    }
    match (is_reset(error), was_answered) {
        (true, _) => CallError::new(Reason::Reset, format!("{target} reset the connection")),
        (false, true) => CallError::new(Reason::Truncated, format!("{target} broke off in the head of its answer")),
        (false, false) => CallError::new(Reason::Closed, format!("{target} closed the connection without an answer")),
    }
}

/// A body that ended early, or whose framing broke.
fn cut(target: &Target, error: &hyper::Error) -> CallError {
    if is_reset(error) {
        return CallError::new(Reason::Reset, format!("{target} reset the connection in the middle of its answer"));
    }
    CallError::new(Reason::Truncated, format!("{target} broke off in the middle of its answer"))
}

/// Whether a reset of the connection is at the bottom of `error`.
fn is_reset(error: &hyper::Error) -> bool {
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        if error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::ConnectionReset) {
            return true;
        }
        source = error.source();
    }
    false
}

fn check_body(target: &Target, body: &[u8]) -> Result<Box<RawValue>, CallError> {
    if body.trim_ascii().is_empty() {
        return Err(CallError::new(Reason::Empty, format!("{target} answered without a body")));
    }
    // Few brackets cannot nest deep, and counting them is far cheaper than following them.
    let opening = body.iter().filter(|byte| matches!(byte, b'{' | b'[')).count();
    if opening > MAX_NESTING && nesting(body) > MAX_NESTING {
        let sentence = format!("{target} answered JSON nested deeper than {MAX_NESTING}");
        return Err(CallError::new(Reason::TooDeep, sentence));
    }
    serde_json::from_slice(body)
        // Not where it ceases to be JSON: that may differ from answer to answer, and with it our answer's length.
        .map_err(|_| CallError::new(Reason::BadJson, format!("{target} did not answer JSON")))
}

/// How deep brackets nest outside strings, counted up to the first depth beyond the limit. For text that is not JSON
/// the figure means nothing, and the parser that follows says so.
fn nesting(json: &[u8]) -> usize {
    let (mut depth, mut deepest, mut in_string, mut escaped) = (0usize, 0, false, false);
    for &byte in json {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b'{' | b'[' => {
                depth += 1;
                deepest = deepest.max(depth);
                if deepest > MAX_NESTING {
                    return deepest;
                }
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(body: &str) -> Result<String, Reason> {
        let target = "http://u".parse().expect("a target");
        check_body(&target, body.as_bytes()).map(|json| json.get().to_owned()).map_err(|error| error.reason)
    }

    #[test]
    fn json_is_kept_as_it_came() {
        assert_eq!(reason(" {\"a\": [1, 2.50e3, \"\\u00e9\"]}\n"), Ok("{\"a\": [1, 2.50e3, \"\\u00e9\"]}".to_owned()));
        assert_eq!(reason("null"), Ok("null".to_owned()));
    }

    #[test]
    fn what_is_not_json_is_told_apart() {
        for (body, expected) in [
            ("", Reason::Empty),
            (" \r\n", Reason::Empty),
            ("<html>", Reason::BadJson),
            ("{\"a\":1", Reason::BadJson),
            ("{} {}", Reason::BadJson),
            ("\"\u{1}\"", Reason::BadJson),
            ("NaN", Reason::BadJson),
        ] {
            assert_eq!(reason(body), Err(expected), "{body:?}");
        }
        let target = "http://u".parse().expect("a target");
        assert_eq!(check_body(&target, b"\"\xff\"").expect_err("not UTF-8").reason, Reason::BadJson);
    }

    #[test]
    fn nesting_is_bounded_however_deep_it_goes() {
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        assert!(reason(&nested(64)).is_ok());
        for depth in [65, 127, 128, 200, 100_000] {
            assert_eq!(reason(&nested(depth)), Err(Reason::TooDeep), "{depth}");
        }
        let brackets_in_a_string = format!("\"{}\\\"{}\"", "[".repeat(100), "{".repeat(100));
        assert!(reason(&brackets_in_a_string).is_ok());
    }
}
