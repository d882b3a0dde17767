//! Counts and logs every request once, also the one whose client went away.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::http::{HeaderName, Method, Request};
use axum::response::Response;

use crate::fault::ToAbort;
use crate::telemetry::{AccessLog, Counted, Line, Metrics, Outcome, RouteMetrics};
use crate::wire::{CASCADE_STATUS, X_CORRELATION_ID};

/// The status that nginx logs for a client that closed its connection before the answer.
const CLIENT_CLOSED_REQUEST: u16 = 499;

/// Watches all requests of a node; clones watch the same.
#[derive(Clone)]
pub(super) struct Observer {
    metrics: Metrics,
    access_log: AccessLog,
    /// By path. A path is a stranger's word, and a label for each would never end: the unknown ones share one.
    routes: Arc<HashMap<&'static str, RouteMetrics>>,
    other: RouteMetrics,
}

impl Observer {
    pub(super) fn new(metrics: Metrics, access_log: AccessLog) -> Observer {
        let other = metrics.route("other");
        Observer { metrics, access_log, routes: Arc::default(), other }
    }

    /// Counts requests for any of `paths` under the first of them.
    pub(super) fn know(&mut self, paths: &[&'static str]) {
        let route = self.metrics.route(paths[0]);
        let routes = Arc::make_mut(&mut self.routes);
        routes.extend(paths.iter().map(|path| (*path, route.clone())));
    }

    fn route(&self, path: &str) -> &RouteMetrics {
        let known = self.routes.get(path).or_else(|| self.routes.get(path.strip_suffix('/')?));
        known.unwrap_or(&self.other)
    }

    /// To be ended with the answer; if it is dropped before, the client has gone.
    pub(super) fn begin<B>(&self, request: &Request<B>) -> Observed {
        let path = request.uri().path();
        Observed {
            _in_flight: self.metrics.request_started(),
            route: self.route(path).clone(),
            line: self.access_log.wants_line().then(|| (request.method().clone(), path.to_owned())),
            start: Instant::now(),
            answered: false,
        }
    }
}

/// One request under way.
pub(super) struct Observed {
    route: RouteMetrics,
    line: Option<(Method, String)>,
    start: Instant,
    answered: bool,
    _in_flight: Counted,
}

impl Observed {
    pub(super) fn end(mut self, response: &Response<Body>) {
        self.answered = true;
        let text =
            |name: &HeaderName| response.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or("-");
        let (status, cascade_status) = (response.status(), text(&CASCADE_STATUS));
        let outcome = match cascade_status {
            _ if status.is_server_error() || response.extensions().get::<ToAbort>().is_some() => Outcome::Failed,
            "partial" => Outcome::Partial,
            _ => Outcome::Complete,
        };
        self.write(status.as_u16(), outcome, || text(&X_CORRELATION_ID), cascade_status);
    }

    fn write<'a>(&self, status: u16, outcome: Outcome, correlation_id: impl FnOnce() -> &'a str, cascade_status: &str) {
        let took = self.start.elapsed();
        self.route.ended(status, outcome, took);
        if let Some((method, path)) = &self.line {
            let (method, correlation_id) = (method.as_str(), correlation_id());
            Line { method, path, status, took, correlation_id, cascade_status }.write();
        }
    }
}

impl Drop for Observed {
    fn drop(&mut self) {
        if !self.answered {
            self.write(CLIENT_CLOSED_REQUEST, Outcome::Cancelled, || "-", "-");
        }
    }
}
