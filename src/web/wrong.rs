//! Probes as they should not be, to be watched while they do their harm. Each answer is labelled with why.

use std::time::Duration;

use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use super::Node;
use super::error::Problem;
use super::probes::Wanted;
use super::wish;
use crate::wire;

/// How long the blocking check blocks, in milliseconds, unless `?ms=` says otherwise; and at most.
const BLOCKED_MS: u64 = 300;
const MOST_BLOCKED_MS: u64 = 60_000;

/// The dependency in the liveness probe.
pub(super) async fn live(State(node): State<Node>, wanted: Wanted) -> Response {
    const WHY: &str = "a dependency in liveness: when the database dies, every replica is restarted for nothing";
    wanted.answer_wrong(&node.health().wrong_live().await, WHY)
}

/// A check that blocks the worker thread it runs on.
pub(super) async fn blocking(State(node): State<Node>, wanted: Wanted, RawQuery(query): RawQuery) -> Response {
    const WHY: &str =
        "a blocking call on a worker thread: every request of that worker waits, and no time-out can fire";
    match blocked_time(query.as_deref()) {
        Ok(time) => wanted.answer_wrong(&node.health().wrong_blocking(time), WHY),
        Err(error) => Problem::new(&node, StatusCode::BAD_REQUEST, error).into_response(),
    }
}

fn blocked_time(query: Option<&str>) -> Result<Duration, String> {
    let mut time = Duration::from_millis(BLOCKED_MS);
    for (key, value) in wish::pairs(query).filter(|(key, _)| key != "format") {
        match (&*key, value.parse()) {
            ("ms", Ok(ms)) if ms <= MOST_BLOCKED_MS => time = Duration::from_millis(ms),
            ("ms", _) => return Err(format!("ms={value}: must be a whole number from 0 to {MOST_BLOCKED_MS}")),
            _ => return Err(format!("{key:?} is not known: ms is")),
        }
    }
    Ok(time)
}

/// A check without a time-out.
pub(super) async fn no_timeout(State(node): State<Node>, wanted: Wanted) -> Response {
    const WHY: &str =
        "a check without a time-out: it hangs as long as the database does, and the prober gives up first";
    wanted.answer_wrong(&node.health().wrong_without_timeout().await, WHY)
}

/// A check that checks nothing.
pub(super) async fn shallow(State(node): State<Node>, wanted: Wanted) -> Response {
    const WHY: &str = "a check that looks at nothing: always 200, also while no request can be served";
    wanted.answer_wrong(&node.health().wrong_shallow(), WHY)
}

/// A check that opens a connection each time and never closes it.
pub(super) async fn leaky(State(node): State<Node>, wanted: Wanted) -> Response {
    const WHY: &str = "a new connection for each check, never closed: the probes use up what the database has";
    let (report, open) = node.health().wrong_leaky().await;
    let mut response = wanted.answer_wrong(&report, WHY);
    response.headers_mut().insert(wire::LEAKED, open.into());
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_long_it_blocks_is_bounded() {
        assert_eq!(blocked_time(None), Ok(Duration::from_millis(300)));
        assert_eq!(blocked_time(Some("ms=2000&format=vertx")), Ok(Duration::from_secs(2)));
        assert_eq!(
            blocked_time(Some("ms=60001")).expect_err("refused"),
            "ms=60001: must be a whole number from 0 to 60000"
        );
        assert!(blocked_time(Some("x=1")).is_err());
    }
}
