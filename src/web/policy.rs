//! `/policy`: how the calls to the next node are limited, timed, retried and steered. `/downstream`: what that does.

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use super::error::Problem;
use super::{Node, wish};
use crate::downstream::{Order, OrderError, View};
use crate::manifest::Policy;
use crate::wire::member;

/// The largest body, in bytes.
const MAX_BODY: usize = 16 * 1024;

pub(super) async fn get(State(node): State<Node>) -> Json<Policy> {
    Json(node.downstream().policy())
}

/// Replaces the whole policy: what is not given is as if it had never been.
pub(super) async fn put(State(node): State<Node>, body: Body) -> Result<Json<Policy>, Problem> {
    let json = wish::whole(&node, body, MAX_BODY).await?;
    let policy =
        Policy::from_json(&json).map_err(|error| Problem::new(&node, StatusCode::BAD_REQUEST, error.to_string()))?;
    node.downstream().set_policy(policy);
    Ok(get(State(node)).await)
}

pub(super) async fn downstream(State(node): State<Node>) -> Json<View> {
    Json(node.downstream().view())
}

/// Ejects or returns an endpoint.
pub(super) async fn order(State(node): State<Node>, body: Body) -> Result<Response, Problem> {
    let json = wish::whole(&node, body, MAX_BODY).await?;
    let expected = "an order must be a JSON object, as in {\"endpoint\":\"127.0.0.1:8081\",\"action\":\"eject\"}";
    let order: Order =
        member::object(&json, expected).map_err(|error| Problem::new(&node, StatusCode::BAD_REQUEST, error))?;
    node.downstream().order(&order).map_err(|error| {
        let status = match error {
            OrderError::Unknown { .. } => StatusCode::NOT_FOUND,
            OrderError::Already { .. } => StatusCode::CONFLICT,
        };
        Problem::new(&node, status, error.to_string())
    })?;
    Ok(downstream(State(node)).await.into_response())
}
