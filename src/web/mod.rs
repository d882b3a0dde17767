//! The way in: one table of routes (`routes.rs`), one list of what lies over them ([`Site`]), one error envelope.

mod burden;
mod cascade;
mod config;
mod database;
mod error;
mod faults;
mod guard;
mod inject;
mod observe;
mod openapi;
mod policy;
mod probes;
mod routes;
mod settings;
mod wish;
mod wrong;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use axum::Router;
use axum::http::{HeaderValue, Request, StatusCode, Version, header};
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use hyper::body::Incoming;
use serde_json::Value;
use tower::Service;

pub use faults::inject as inject_faults;
pub use routes::Door;
pub use settings::{OnFailure, Settings};

use crate::downstream::Downstream;
use crate::fault::Faults;
use crate::health::Health;
use crate::telemetry::{AccessLog, Metrics};
use error::Problem;
use observe::Observer;
use settings::Token;

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

    fn control_token(&self) -> Option<&str> {
        self.0.settings.control_token.as_ref().map(Token::as_str)
    }

    fn downstream(&self) -> &Downstream {
        &self.0.downstream
    }

    fn health(&self) -> &Health {
        &self.0.health
    }

    fn faults(&self) -> &Faults {
        &self.0.faults
    }
}

/// The answers of a node at one of its doors, as one worker gives them. Clones give the same.
#[derive(Clone)]
pub struct Site(Arc<Doorway>);

struct Doorway {
    node: Node,
    observer: Observer,
    router: Router,
    /// The same routes with faults around the business ones; a node without faults goes past the layer.
    faulty: Router,
}

impl Site {
    pub fn new(node: Node, door: Door) -> Site {
        let mut observer = Observer::new(node.0.metrics.clone(), node.0.access_log.clone());
        routes::paths().for_each(|paths| observer.know(paths));
        let (router, faulty) = (routes::router(&node, door, false), routes::router(&node, door, true));
        Site(Arc::new(Doorway { node, observer, router, faulty }))
    }

    fn panicked(&self) -> Response {
        Problem::new(&self.0.node, StatusCode::INTERNAL_SERVER_ERROR, "a handler panicked; the log has it")
            .into_response()
    }

    /// What lies over every route, outermost first. Plain calls: a stack of boxed layers cost 2 µs a request.
    pub async fn answer(&self, request: Request<Incoming>) -> Response {
        let Doorway { node, observer, router, faulty } = &*self.0;
        // 1. What is observed is what the client gets.
        let observed = observer.begin(&request);
        let version = request.version();
        // 2. A handler that panics ends its own request only.
        let mut router = if node.faults().apply() { faulty.clone() } else { router.clone() };
        let routed = AssertUnwindSafe(router.call(request)).catch_unwind().await;
        let mut response =
            routed.map_or_else(|_| self.panicked(), |response| response.unwrap_or_else(|never| match never {}));
        // 3. A client that keeps its connection is told in time that it must look for another one.
        if node.health().is_draining() && version < Version::HTTP_2 {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        // 4. Nothing that a stranger put into an answer may be taken for a page.
        response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        observed.end(&response);
        response
    }
}
