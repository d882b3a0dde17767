//! `/faults`: what is injected here, and what became of it.

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::error::Problem;
use super::{Node, burden, wish};
use crate::fault::Faults;
use crate::wire::FaultSpec;

/// The largest specification, in bytes.
const MAX_SPEC: usize = 16 * 1024;

pub(super) async fn get(State(node): State<Node>) -> Response {
    let no_store = (header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    ([no_store], Json(node.faults().report())).into_response()
}

pub(super) async fn put(State(node): State<Node>, body: Body) -> Result<Response, Problem> {
    let problem = |status, error: String| Problem::new(&node, status, error);
    let json = wish::whole(&node, body, MAX_SPEC).await?;
    let spec = FaultSpec::from_json(&json).map_err(|error| problem(StatusCode::BAD_REQUEST, error.to_string()))?;
    inject(node.faults(), spec).await.map_err(|error| problem(StatusCode::SERVICE_UNAVAILABLE, error))?;
    Ok(get(State(node)).await)
}

pub(super) async fn delete(State(node): State<Node>) -> Response {
    node.faults().clear();
    get(State(node)).await
}

/// Puts faults in force, and holds the memory that they ask for.
///
/// # Errors
/// If there is not so much memory; no faults are in force then.
pub async fn inject(faults: &Faults, spec: FaultSpec) -> Result<(), String> {
    let in_force = faults.put(spec);
    burden::hold(in_force).await.inspect_err(|_| faults.clear())
}
