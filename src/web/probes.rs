//! `/live` and `/ready`: a snapshot is read, nothing is waited for.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::Node;
use crate::health::Report;

pub(super) async fn live(State(node): State<Node>) -> Response {
    answer(&node.0.health.live())
}

pub(super) async fn ready(State(node): State<Node>) -> Response {
    answer(&node.0.health.ready())
}

fn answer(report: &Report) -> Response {
    let status = if report.is_up() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let no_store = (header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    (status, [no_store], Json(report)).into_response()
}
