//! `/faults`: what is injected here, and what became of it.

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use serde_json::Value;
use serde_json::value::RawValue;

use super::error::Problem;
use super::{Node, burden, wish};
use crate::fault::Faults;
use crate::wire::FaultSpec;

/// The largest specification, in bytes.
const MAX_SPEC: usize = 16 * 1024;

/// Shows the faults; with a query, puts in force what it asks for, as a browser's address bar can.
pub(super) async fn get(State(node): State<Node>, method: Method, uri: Uri) -> Result<Response, Problem> {
    match uri.query() {
        Some(query) if !query.is_empty() && method == Method::GET => put_in_force(node, &as_json(query)).await,
        _ => Ok(show(&node)),
    }
}

pub(super) async fn put(State(node): State<Node>, body: Body) -> Result<Response, Problem> {
    let json = wish::whole(&node, body, MAX_SPEC).await?;
    put_in_force(node, &json).await
}

pub(super) async fn delete(State(node): State<Node>) -> Response {
    node.faults().clear();
    show(&node)
}

fn show(node: &Node) -> Response {
    let no_store = (header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    ([no_store], Json(node.faults().report())).into_response()
}

async fn put_in_force(node: Node, json: &[u8]) -> Result<Response, Problem> {
    let problem = |status, error: String| Problem::new(&node, status, error);
    let spec = FaultSpec::from_json(json).map_err(|error| problem(StatusCode::BAD_REQUEST, error.to_string()))?;
    inject(node.faults(), spec).await.map_err(|error| problem(StatusCode::SERVICE_UNAVAILABLE, error))?;
    Ok(show(&node))
}

/// `error_rate=0.3&delay=200ms` as JSON: a value that is JSON stands as it is, any other is a text. A key that is given
/// twice stands twice, and is refused as such.
fn as_json(query: &str) -> Vec<u8> {
    let members: Vec<String> = wish::pairs(Some(query))
        .map(|(key, value)| {
            let value = serde_json::from_str::<&RawValue>(&value)
                .map_or_else(|_| Value::from(&*value).to_string(), |json| json.get().to_owned());
            format!("{}:{value}", Value::from(&*key))
        })
        .collect();
    format!("{{{}}}", members.join(",")).into_bytes()
}

/// Puts faults in force, and holds the memory that they ask for.
///
/// # Errors
/// If there is not so much memory; no faults are in force then.
pub async fn inject(faults: &Faults, spec: FaultSpec) -> Result<(), String> {
    let in_force = faults.put(spec);
    burden::hold(in_force).await.inspect_err(|_| faults.clear())
}
