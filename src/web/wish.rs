//! What a request wants changed: pairs from its query or its JSON body.

use std::borrow::Cow;
use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{FromRequest, Request};
use axum::http::{Method, StatusCode};
use http_body_util::LengthLimitError;
use serde_json::{Map, Value};

use super::Node;
use super::error::Problem;

/// Keys of a query by which a GET changes something, as the article's `curl` lines and a browser do.
const SWITCHES: [&str; 4] = ["up", "csdl", "mode", "done"];

/// The largest body that changes something, in bytes; the one of `/faults` has a limit of its own.
const MAX_BODY: usize = 64 * 1024;
/// A body must be there this long after its head.
const BODY_TIME: Duration = Duration::from_secs(10);

/// A key and its value as text.
pub(super) type Pair<'a> = (Cow<'a, str>, Cow<'a, str>);

/// A request that may want something changed.
#[derive(Debug)]
pub(super) struct Wish {
    method: Method,
    query: String,
    body: Bytes,
}

impl FromRequest<Node> for Wish {
    type Rejection = Problem;

    async fn from_request(request: Request, node: &Node) -> Result<Wish, Problem> {
        let method = request.method().clone();
        let query = request.uri().query().unwrap_or_default().to_owned();
        // A body of a GET means nothing, and is not waited for.
        let body = match method {
            Method::GET | Method::HEAD => Bytes::new(),
            _ => whole(node, request.into_body(), MAX_BODY).await?,
        };
        Ok(Wish { method, query, body })
    }
}

impl Wish {
    pub(super) fn changes_state(&self) -> bool {
        changes_state(&self.method, &self.query)
    }

    /// Whether it only asks how things are.
    pub(super) fn only_looks(&self) -> bool {
        self.method == Method::HEAD || (self.method == Method::GET && self.query.is_empty())
    }

    /// From the JSON body, if there is one, else from the query.
    pub(super) fn pairs(&self) -> Result<Vec<Pair<'_>>, String> {
        if self.body.is_empty() {
            return Ok(pairs(Some(&self.query)).collect());
        }
        if !self.query.is_empty() {
            return Err("either a query or a body can be given, not both".to_owned());
        }
        let object: Map<String, Value> = serde_json::from_slice(&self.body).map_err(|error| {
            format!("the body must be a JSON object such as {{\"mode\":\"slow\",\"ms\":200}}: {error}")
        })?;
        object.into_iter().map(pair).collect()
    }
}

/// Whether such a request would change something, on a path where that can be: a HEAD never, a GET only by its query.
pub(super) fn changes_state(method: &Method, query: &str) -> bool {
    match *method {
        Method::HEAD | Method::OPTIONS => false,
        Method::GET => pairs(Some(query)).any(|(key, _)| SWITCHES.contains(&&*key)),
        _ => true,
    }
}

/// The whole of a body of at most `limit` bytes.
pub(super) async fn whole(node: &Node, body: Body, limit: usize) -> Result<Bytes, Problem> {
    // The connection counts as busy meanwhile: without a limit of its own, a body that stalls would hold it for ever.
    let read = tokio::time::timeout(BODY_TIME, to_bytes(body, limit)).await.map_err(|_| {
        let late = format!("the body did not arrive within {BODY_TIME:?}");
        Problem::new(node, StatusCode::REQUEST_TIMEOUT, late)
    })?;
    read.map_err(|error| {
        let too_long = std::error::Error::source(&error).is_some_and(|source| source.is::<LengthLimitError>());
        match too_long {
            true => {
                Problem::new(node, StatusCode::PAYLOAD_TOO_LARGE, format!("the body must be at most {limit} bytes"))
            }
            false => Problem::new(node, StatusCode::BAD_REQUEST, format!("the body cannot be read: {error}")),
        }
    })
}

pub(super) fn pairs(query: Option<&str>) -> impl Iterator<Item = Pair<'_>> {
    url::form_urlencoded::parse(query.unwrap_or_default().as_bytes())
}

fn pair((key, value): (String, Value)) -> Result<Pair<'static>, String> {
    let text = match value {
        Value::String(text) => text,
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::Null | Value::Array(_) | Value::Object(_) => {
            return Err(format!("{key}: must be a text, a number, true or false, not {value}"));
        }
    };
    Ok((key.into(), text.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish(method: Method, query: &str, body: &'static str) -> Wish {
        Wish { method, query: query.to_owned(), body: Bytes::from_static(body.as_bytes()) }
    }

    #[test]
    fn only_a_query_or_a_method_that_changes_asks_for_a_change() {
        for (method, query, changes) in [
            (Method::GET, "", false),
            (Method::GET, "up=false", true),
            (Method::GET, "x=1&csdl=true", true),
            (Method::GET, "mode=slow&ms=3", true),
            (Method::GET, "done=true", true),
            (Method::GET, "%64one=true", true),
            (Method::GET, "format=vertx", false),
            (Method::HEAD, "up=false", false),
            (Method::OPTIONS, "up=false", false),
            (Method::PUT, "", true),
            (Method::POST, "", true),
        ] {
            assert_eq!(wish(method.clone(), query, "").changes_state(), changes, "{method} {query}");
        }
    }

    #[test]
    fn query_and_body_say_the_same() {
        let expected = vec![("mode".into(), "slow".into()), ("ms".into(), "200".into())];
        assert_eq!(wish(Method::GET, "mode=slow&ms=200", "").pairs(), Ok(expected.clone()));
        assert_eq!(wish(Method::PUT, "", r#"{"mode":"slow","ms":200}"#).pairs(), Ok(expected));
    }

    #[test]
    fn what_cannot_be_understood_is_refused_with_the_reason() {
        for (query, body, part) in [
            ("", "up=false", "JSON object"),
            ("", "[1]", "JSON object"),
            ("", "{", "JSON object"),
            ("", r#"{"ms":[1]}"#, "ms: must be"),
            ("up=true", r#"{"up":true}"#, "not both"),
        ] {
            let error = wish(Method::PUT, query, body).pairs().expect_err(body);
            assert!(error.contains(part), "{body}: {error}");
        }
    }
}
