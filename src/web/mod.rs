//! The way in: one list of routes, one list of layers, one error envelope.

mod cascade;
mod config;
mod error;
mod observe;
mod probes;
mod settings;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderValue, Method, Request, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get};
use futures_util::FutureExt;
use hyper::body::Incoming;
use serde_json::Value;
use tower::Service;

pub use settings::{OnFailure, Settings};

use crate::downstream::Downstream;
use crate::health::Health;
use crate::server;
use crate::telemetry::{AccessLog, Metrics};
use error::Problem;
use observe::Observer;

/// Everything that a handler needs of the node it answers for. Clones are the same node.
#[derive(Clone)]
pub struct Node(Arc<Parts>);

/// What a node is made of.
#[derive(Clone)]
pub struct Parts {
    pub name: String,
    pub port: u16,
    /// Tells this process from every other one of the cascade.
    pub instance: String,
    pub settings: Settings,
    /// All effective settings, as `/config` shows them.
    pub config: Value,
    /// With connections of this worker's own.
    pub downstream: Downstream,
    pub health: Health,
    pub metrics: Metrics,
    pub access_log: AccessLog,
}

impl Node {
    pub fn new(parts: Parts) -> Node {
        Node(Arc::new(parts))
    }

    fn name(&self) -> &str {
        &self.0.name
    }

    fn port(&self) -> u16 {
        self.0.port
    }

    fn instance(&self) -> &str {
        &self.0.instance
    }

    fn max_depth(&self) -> u64 {
        self.0.settings.max_depth as u64
    }

    fn on_failure(&self) -> OnFailure {
        self.0.settings.on_failure
    }

    fn starts_traces(&self) -> bool {
        self.0.settings.trace
    }

    fn downstream(&self) -> &Downstream {
        &self.0.downstream
    }
}

/// Every path of a node, aliases beside it. The first path of a line is its label in metrics.
fn routes() -> Vec<(&'static [&'static str], MethodRouter<Node>)> {
    vec![
        (&["/"], get(cascade::get)),
        (&["/live", "/livez", "/health/live"], get(probes::live)),
        (&["/ready", "/readyz", "/health/ready"], get(probes::ready)),
        (&["/config"], get(config::config)),
        (&["/metrics"], get(config::metrics)),
    ]
}

/// All of a node's answers, as one worker gives them. Clones give the same.
#[derive(Clone)]
pub struct Site {
    node: Node,
    observer: Observer,
    router: Router,
}

impl Site {
    pub fn new(node: Node) -> Site {
        let mut observer = Observer::new(node.0.metrics.clone(), node.0.access_log.clone());
        let mut router = Router::new();
        for (paths, methods) in routes() {
            observer.know(paths);
            let methods = methods.options(options);
            router = paths.iter().fold(router, |router, path| router.route(path, methods.clone()));
        }
        let router = router.fallback(not_found).method_not_allowed_fallback(not_allowed).with_state(node.clone());
        Site { node, observer, router }
    }

    fn panicked(&self) -> Response {
        Problem::new(&self.node, StatusCode::INTERNAL_SERVER_ERROR, "a handler panicked; the log has it")
            .into_response()
    }
}

impl server::Answers for Site {
    /// What lies over every route, outermost first. Plain calls: a stack of boxed layers cost 2 µs a request.
    async fn answer(&self, request: Request<Incoming>) -> Response {
        // 1. What is observed is what the client gets.
        let observed = self.observer.begin(&request);
        // 2. A handler that panics ends its own request only.
        let routed = AssertUnwindSafe(self.router.clone().call(request)).catch_unwind().await;
        let mut response =
            routed.map_or_else(|_| self.panicked(), |response| response.unwrap_or_else(|never| match never {}));
        // 3. Nothing that a stranger put into an answer may be taken for a page.
        response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        observed.end(&response);
        response
    }
}

async fn options(State(node): State<Node>) -> Response {
    // axum adds what else a path allows to 405 only, so the answer is the same for all paths that are read.
    let allow = HeaderValue::from_static("GET, HEAD, OPTIONS");
    (
        [(header::ALLOW, allow)],
        axum::Json(serde_json::json!({ "host": node.name(), "allow": ["GET", "HEAD", "OPTIONS"] })),
    )
        .into_response()
}

async fn not_found(State(node): State<Node>, uri: axum::http::Uri) -> Problem {
    Problem::new(&node, StatusCode::NOT_FOUND, format!("no such path: {}", uri.path()))
}

async fn not_allowed(State(node): State<Node>, method: Method, uri: axum::http::Uri) -> Problem {
    Problem::new(&node, StatusCode::METHOD_NOT_ALLOWED, format!("{} does not take {method}", uri.path()))
}
