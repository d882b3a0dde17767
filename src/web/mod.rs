//! The way in: one list of routes, one list of layers, one error envelope.

mod cascade;
mod config;
mod database;
mod error;
mod observe;
mod probes;
mod settings;
mod wish;
mod wrong;

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get};
use serde_json::Value;
use tower::ServiceBuilder;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::set_header::SetResponseHeaderLayer;

pub use settings::{OnFailure, Settings};

use crate::downstream::Downstream;
use crate::health::Health;
use crate::telemetry::{AccessLog, Metrics};
use error::Problem;

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

    fn health(&self) -> &Health {
        &self.0.health
    }
}

/// Every path of a node that is only read, aliases beside it. The first path of a line is its label in metrics.
fn routes() -> Vec<(&'static [&'static str], MethodRouter<Node>)> {
    vec![
        (&["/"], get(cascade::get)),
        (&["/live", "/livez", "/health/live", "/song"], get(probes::live)),
        (&["/ready", "/readyz", "/health/ready", "/san-sang"], get(probes::ready)),
        (&["/work", "/viec"], get(database::work)),
        (&["/data"], get(database::data)),
        (&["/wrong/live", "/gop-sai"], get(wrong::live)),
        (&["/wrong/blocking", "/chan"], get(wrong::blocking)),
        (&["/wrong/no-timeout"], get(wrong::no_timeout)),
        (&["/wrong/shallow"], get(wrong::shallow)),
        (&["/wrong/leaky"], get(wrong::leaky)),
        (&["/config"], get(config::config)),
        (&["/metrics"], get(config::metrics)),
    ]
}

/// The paths by which a node's state can be changed: by PUT and POST, and by GET where `wish::changes_state` says so.
/// Whatever guards them must let the other requests pass, for `/startup` is a probe too.
fn controls() -> Vec<(&'static [&'static str], MethodRouter<Node>)> {
    let switch = get(database::toggle).put(database::toggle).post(database::toggle);
    let startup = get(probes::startup).put(probes::finish_loading).post(probes::finish_loading);
    vec![(&["/db", "/dat"], switch), (&["/startup", "/startupz", "/health/started"], startup)]
}

/// The service of one worker.
pub fn router(node: Node) -> Router {
    let mut router = Router::new();
    let mut labels = observe::Labels::default();
    let read = routes().into_iter().map(|(paths, methods)| (paths, methods.options(options)));
    let written = controls().into_iter().map(|(paths, methods)| (paths, methods.options(control_options)));
    for (paths, methods) in read.chain(written) {
        for path in paths {
            labels.add(path, paths[0]);
            router = router.route(path, methods.clone());
            // A slash at the end is a slip of the pen, and no reason to restart a node.
            if *path != "/" {
                router = router.route(&format!("{path}/"), methods.clone());
            }
        }
    }
    let panicked = node.clone();
    // Outermost first: what is observed is what the client gets.
    let layers = ServiceBuilder::new()
        .layer(axum::middleware::from_fn_with_state(observe::Observer::new(&node, labels), observe::observe))
        .layer(SetResponseHeaderLayer::overriding(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")))
        .layer(CatchPanicLayer::custom(move |_| {
            Problem::new(&panicked, StatusCode::INTERNAL_SERVER_ERROR, "a handler panicked; the log has it")
                .into_response()
        }));
    router.fallback(not_found).method_not_allowed_fallback(not_allowed).layer(layers).with_state(node)
}

async fn options(State(node): State<Node>) -> Response {
    // axum adds what else a path allows to 405 only, so the answer is the same for all paths that are read.
    allow(&node, "GET, HEAD, OPTIONS")
}

async fn control_options(State(node): State<Node>) -> Response {
    allow(&node, "GET, HEAD, OPTIONS, POST, PUT")
}

fn allow(node: &Node, methods: &'static str) -> Response {
    let list: Vec<&str> = methods.split(", ").collect();
    let body = axum::Json(serde_json::json!({ "host": node.name(), "allow": list }));
    ([(header::ALLOW, HeaderValue::from_static(methods))], body).into_response()
}

async fn not_found(State(node): State<Node>, uri: axum::http::Uri) -> Problem {
    Problem::new(&node, StatusCode::NOT_FOUND, format!("no such path: {}", uri.path()))
}

async fn not_allowed(State(node): State<Node>, method: Method, uri: axum::http::Uri) -> Problem {
    Problem::new(&node, StatusCode::METHOD_NOT_ALLOWED, format!("{} does not take {method}", uri.path()))
}
