//! The way in: one list of routes, one list of layers, one error envelope.

mod burden;
mod cascade;
mod config;
mod error;
mod faults;
mod inject;
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

pub use faults::inject as inject_faults;
pub use settings::{OnFailure, Settings};

use crate::downstream::Downstream;
use crate::fault::Faults;
use crate::health::Health;
use crate::server;
use crate::telemetry::{AccessLog, Metrics};
use error::Problem;
use inject::{Injector, Refuse};
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
    pub faults: Faults,
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

    fn faults(&self) -> &Faults {
        &self.0.faults
    }
}

/// What the paths allow that are only read.
const READ: &str = "GET, HEAD, OPTIONS";

/// Aliases beside each other. The first path is the label in metrics.
type Paths = &'static [&'static str];

/// The paths that do a node's work. Faults are injected here and nowhere else.
fn business() -> Vec<(Paths, MethodRouter<Node>)> {
    vec![(&["/"], get(cascade::get))]
}

/// The paths that change how the node behaves.
fn control() -> Vec<(Paths, MethodRouter<Node>)> {
    let faults = get(faults::get).put(faults::put).delete(faults::delete);
    vec![(&["/faults"], with_options(faults, "GET, HEAD, PUT, DELETE, OPTIONS"))]
}

/// The paths that only look.
fn observation() -> Vec<(Paths, MethodRouter<Node>)> {
    vec![
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
    /// The same routes with faults around the business ones; a node without faults goes past the layer.
    faulty: Router,
}

impl Site {
    pub fn new(node: Node) -> Site {
        let mut observer = Observer::new(node.0.metrics.clone(), node.0.access_log.clone());
        for (paths, _) in business().iter().chain(&control()).chain(&observation()) {
            observer.know(paths);
        }
        let faulty = business().into_iter().map(|(paths, methods)| {
            let refuse: Refuse = if paths == ["/"] { cascade::refuse } else { Problem::refuse };
            let injector = Injector { node: node.clone(), refuse };
            (paths, methods.route_layer(axum::middleware::from_fn_with_state(injector, inject::inject)))
        });
        Site { router: router(&node, business()), faulty: router(&node, faulty), observer, node }
    }

    fn panicked(&self) -> Response {
        Problem::new(&self.node, StatusCode::INTERNAL_SERVER_ERROR, "a handler panicked; the log has it")
            .into_response()
    }
}

fn router(node: &Node, business: impl IntoIterator<Item = (Paths, MethodRouter<Node>)>) -> Router {
    let read = business.into_iter().chain(observation()).map(|(paths, methods)| (paths, with_options(methods, READ)));
    let mut router = Router::new();
    for (paths, methods) in read.chain(control()) {
        router = paths.iter().fold(router, |router, path| router.route(path, methods.clone()));
    }
    router.fallback(not_found).method_not_allowed_fallback(not_allowed).with_state(node.clone())
}

impl server::Answers for Site {
    /// What lies over every route, outermost first. Plain calls: a stack of boxed layers cost 2 µs a request.
    async fn answer(&self, request: Request<Incoming>) -> Response {
        // 1. What is observed is what the client gets.
        let observed = self.observer.begin(&request);
        // 2. A handler that panics ends its own request only.
        let mut router = if self.node.faults().apply() { self.faulty.clone() } else { self.router.clone() };
        let routed = AssertUnwindSafe(router.call(request)).catch_unwind().await;
        let mut response =
            routed.map_or_else(|_| self.panicked(), |response| response.unwrap_or_else(|never| match never {}));
        // 3. Nothing that a stranger put into an answer may be taken for a page.
        response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        observed.end(&response);
        response
    }
}

/// Answers OPTIONS too. axum knows what a path allows only for 405, so each list of paths says it.
fn with_options(methods: MethodRouter<Node>, allow: &'static str) -> MethodRouter<Node> {
    methods.options(async move |State(node): State<Node>| {
        let methods: Vec<_> = allow.split(", ").collect();
        let header = (header::ALLOW, HeaderValue::from_static(allow));
        ([header], axum::Json(serde_json::json!({ "host": node.name(), "allow": methods })))
    })
}

async fn not_found(State(node): State<Node>, uri: axum::http::Uri) -> Problem {
    Problem::new(&node, StatusCode::NOT_FOUND, format!("no such path: {}", uri.path()))
}

async fn not_allowed(State(node): State<Node>, method: Method, uri: axum::http::Uri) -> Problem {
    Problem::new(&node, StatusCode::METHOD_NOT_ALLOWED, format!("{} does not take {method}", uri.path()))
}
