//! The business routes of the lessons about probes, with and without the database, and the switch of the simulated one.

use std::time::Duration;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{RawQuery, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::Value;

use super::Node;
use super::error::Problem;
use super::wish::{self, Wish};
use crate::health::{Mode, NotSimulated};

/// The longest that a query can be told to keep its connection, in milliseconds.
const LONGEST_MS: u64 = 60_000;

const NO_STORE: (header::HeaderName, HeaderValue) = (header::CACHE_CONTROL, HeaderValue::from_static("no-store"));

/// A business route that needs no database, and costs as little as a route can.
pub(super) async fn work() -> Response {
    let mut response = Response::new(Body::from(Bytes::from_static(b"ok\n")));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

/// A business route that needs the database: one query over the pool, that keeps its connection for `?ms=`.
pub(super) async fn data(State(node): State<Node>, RawQuery(query): RawQuery) -> Response {
    let time = match working_time(query.as_deref()) {
        Ok(time) => time,
        Err(error) => return Problem::new(&node, StatusCode::BAD_REQUEST, error).into_response(),
    };
    if !node.health().is_loaded() {
        return Problem::new(&node, StatusCode::SERVICE_UNAVAILABLE, "the node is still loading").into_response();
    }
    match node.health().query(time).await {
        Ok(()) => ([NO_STORE], Json(serde_json::json!({ "host": node.name(), "data": "ok" }))).into_response(),
        Err(error) => Problem::new(&node, StatusCode::SERVICE_UNAVAILABLE, error.to_string()).into_response(),
    }
}

fn working_time(query: Option<&str>) -> Result<Duration, String> {
    let mut time = Duration::ZERO;
    for (key, value) in wish::pairs(query) {
        match (&*key, value.parse()) {
            ("ms", Ok(ms)) if ms <= LONGEST_MS => time = Duration::from_millis(ms),
            ("ms", _) => return Err(format!("ms={value}: must be a whole number from 0 to {LONGEST_MS}")),
            _ => return Err(format!("{key:?} is not known: ms is")),
        }
    }
    Ok(time)
}

/// Shows what the simulated database does; with a query or a body, tells it what to do.
pub(super) async fn toggle(State(node): State<Node>, wish: Wish) -> Response {
    let health = node.health();
    if !wish.only_looks() {
        let mode = match wish.pairs().and_then(Mode::from_pairs) {
            Ok(mode) => mode,
            Err(error) => return Problem::new(&node, StatusCode::BAD_REQUEST, error).into_response(),
        };
        if let Err(error) = health.set_db_mode(mode).await {
            return not_simulated(&node, &error);
        }
    }
    match health.db_mode() {
        Ok(mode) => told(&serde_json::json!(mode)),
        Err(error) => not_simulated(&node, &error),
    }
}

fn not_simulated(node: &Node, NotSimulated { url }: &NotSimulated) -> Response {
    let error = format!("the database is {url}, a real one: only a simulated one (--check db=sim:) can be toggled");
    Problem::new(node, StatusCode::CONFLICT, error).into_response()
}

/// The state as it is now.
pub(super) fn told(state: &Value) -> Response {
    ([NO_STORE], Json(state)).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_long_a_query_works_is_bounded_and_nothing_else_is_taken() {
        assert_eq!(working_time(None), Ok(Duration::ZERO));
        assert_eq!(working_time(Some("ms=250")), Ok(Duration::from_millis(250)));
        for (query, part) in [("ms=60001", "from 0 to 60000"), ("ms=-1", "ms=-1"), ("ms=", "ms="), ("s=1", "\"s\"")] {
            let error = working_time(Some(query)).expect_err(query);
            assert!(error.contains(part), "{query}: {error}");
        }
    }
}
