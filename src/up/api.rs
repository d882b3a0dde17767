//! The control API: shows the nodes, and does to one of them what was asked for.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Serialize;
use serde_json::json;

use crate::cluster::{self, Action, ActionError, Cascade, Node};
use crate::wire::is_from_another_site;

/// A node that is told to stop and drains for longer is answered for as it is, with 202.
const PATIENCE: Duration = Duration::from_secs(2);

/// A node as the API shows it.
#[derive(Serialize)]
struct Shown<'a> {
    node: usize,
    name: &'a str,
    url: &'a str,
    port: u16,
    pid: Option<u32>,
    state: cluster::State,
    ready: Option<bool>,
    target: Option<&'a str>,
    restarts: u32,
}

impl Shown<'_> {
    fn of(node: &Node, number: usize) -> Shown<'_> {
        let cluster::Status { state, pid, ready, restarts } = node.status();
        Shown {
            node: number,
            name: node.name(),
            url: node.url(),
            port: node.port(),
            pid,
            state,
            ready,
            target: node.target(),
            restarts,
        }
    }
}

/// Why something was not done.
struct Problem {
    status: StatusCode,
    error: String,
}

impl Problem {
    fn new(status: StatusCode, error: impl Into<String>) -> Problem {
        Problem { status, error: error.into() }
    }
}

impl From<ActionError> for Problem {
    fn from(error: ActionError) -> Problem {
        let status = match &error {
            ActionError::Impossible { .. } | ActionError::Restarting(_) | ActionError::CalledOff(_) => {
                StatusCode::CONFLICT
            }
            ActionError::Start(_) | ActionError::Gone(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Problem::new(status, error.to_string())
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        (self.status, Json(json!({ "error": self.error }))).into_response()
    }
}

pub(super) fn router(cascade: Arc<Cascade>) -> Router {
    Router::new()
        .route("/api/nodes", get(all))
        .route("/api/nodes/{node}", get(one))
        .route("/api/nodes/{node}/{action}", post(act))
        .fallback(no_path)
        .method_not_allowed_fallback(no_method)
        .layer(from_fn(guard))
        .with_state(cascade)
}

/// Other people's web pages may make the browser send a POST here.
async fn guard(request: Request, next: Next) -> Response {
    let mut response = if is_from_another_site(request.headers()) && !request.method().is_safe() {
        Problem::new(StatusCode::FORBIDDEN, "a page of another site may not change anything here").into_response()
    } else {
        next.run(request).await
    };
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

async fn all(State(cascade): State<Arc<Cascade>>) -> Response {
    let nodes: Vec<_> = cascade.nodes().iter().zip(1..).map(|(node, number)| Shown::of(node, number)).collect();
    Json(nodes).into_response()
}

async fn one(
    State(cascade): State<Arc<Cascade>>,
    path: Result<Path<String>, PathRejection>,
) -> Result<Response, Problem> {
    let (node, number) = find(&cascade, &segments(path)?)?;
    Ok(Json(Shown::of(node, number)).into_response())
}

async fn act(
    State(cascade): State<Arc<Cascade>>,
    path: Result<Path<(String, String)>, PathRejection>,
) -> Result<Response, Problem> {
    let (node, action) = segments(path)?;
    let (node, number) = find(&cascade, &node)?;
    let action = Action::ALL.into_iter().find(|known| known.as_str() == action).ok_or_else(|| {
        let known = Action::ALL.map(Action::as_str).join(", ");
        Problem::new(StatusCode::NOT_FOUND, format!("no action {action:?}: there are {known}"))
    })?;
    node.act(action).await?;
    let done = match action {
        Action::Kill | Action::Stop => tokio::time::timeout(PATIENCE, node.ended()).await.is_ok(),
        Action::Pause | Action::Resume | Action::Restart => true,
    };
    let status = if done { StatusCode::OK } else { StatusCode::ACCEPTED };
    Ok((status, Json(Shown::of(node, number))).into_response())
}

fn segments<T>(path: Result<Path<T>, PathRejection>) -> Result<T, Problem> {
    path.map(|Path(segments)| segments).map_err(|error| Problem::new(StatusCode::NOT_FOUND, error.body_text()))
}

fn find<'a>(cascade: &'a Cascade, node: &str) -> Result<(&'a Node, usize), Problem> {
    let nodes = cascade.nodes();
    let number = node.parse::<usize>().ok().filter(|number| (1..=nodes.len()).contains(number));
    number
        .map(|number| (&nodes[number - 1], number))
        .ok_or_else(|| Problem::new(StatusCode::NOT_FOUND, format!("no node {node:?}: there are 1 to {}", nodes.len())))
}

async fn no_path(uri: Uri) -> Problem {
    let error = format!("no path {:?}: there are /api/nodes and /api/nodes/1/pause", uri.path());
    Problem::new(StatusCode::NOT_FOUND, error)
}

async fn no_method(method: Method, uri: Uri) -> Problem {
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, format!("{:?} does not take {method}", uri.path()))
}
