//! `/config` and `/metrics`: what the node was told, and what it has seen.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use serde_json::Value;

use super::Node;

pub(super) async fn config(State(node): State<Node>) -> Json<Value> {
    let mut config = node.0.config.clone();
    // In place of the files that it came from: it may have been changed since.
    config["policy"] = serde_json::to_value(node.downstream().policy()).unwrap_or_default();
    Json(config)
}

pub(super) async fn metrics(State(node): State<Node>) -> Response {
    const OPEN_METRICS: HeaderValue =
        HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
    for (name, critical, up) in node.0.health.states() {
        node.0.metrics.check(name, critical, up);
    }
    node.downstream().measure();
    ([(header::CONTENT_TYPE, OPEN_METRICS)], node.0.metrics.text()).into_response()
}
