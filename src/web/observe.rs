//! Counts and logs every request once, also the one whose client went away.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::{Request, State};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::Response;

use super::Node;
use super::cascade::Ended;
use crate::telemetry::{AccessLog, Line, Metrics, Outcome, RequestLabels};
use crate::wire::CASCADE_STATUS;

/// The status that nginx logs for a client that closed its connection before the answer.
const CLIENT_CLOSED_REQUEST: u16 = 499;

/// The label of each path: a path is a stranger's word, and a label for each would never end.
#[derive(Default)]
pub(super) struct Labels(HashMap<&'static str, &'static str>);

impl Labels {
    pub(super) fn add(&mut self, path: &'static str, label: &'static str) {
        self.0.insert(path, label);
    }

    fn of(&self, path: &str) -> &'static str {
        let known = self.0.get(path).or_else(|| self.0.get(path.strip_suffix('/')?));
        known.copied().unwrap_or("other")
    }
}

#[derive(Clone)]
pub(super) struct Observer {
    metrics: Metrics,
    access_log: AccessLog,
    labels: Arc<Labels>,
}

impl Observer {
    pub(super) fn new(node: &Node, labels: Labels) -> Observer {
        let (metrics, access_log) = (node.0.metrics.clone(), node.0.access_log.clone());
        Observer { metrics, access_log, labels: Arc::new(labels) }
    }
}

pub(super) async fn observe(State(observer): State<Observer>, request: Request, next: Next) -> Response {
    let _in_flight = observer.metrics.request_started();
    let mut record = Record {
        route: observer.labels.of(request.uri().path()),
        line: observer.access_log.wants_line().then(|| (request.method().clone(), request.uri().path().to_owned())),
        start: Instant::now(),
        ended: None,
        observer: &observer,
    };
    let response = next.run(request).await;
    record.ended = Some(End::of(&response));
    response
}

/// Written when it drops, as a request ends with its answer or with its client.
struct Record<'a> {
    observer: &'a Observer,
    route: &'static str,
    line: Option<(Method, String)>,
    start: Instant,
    ended: Option<End>,
}

struct End {
    status: u16,
    outcome: Outcome,
    correlation_id: String,
    cascade_status: String,
}

impl End {
    fn of(response: &Response) -> End {
        let status = response.status();
        let cascade = response.extensions().get::<Ended>();
        let text = |value: Option<&axum::http::HeaderValue>| {
            value.and_then(|value| value.to_str().ok()).unwrap_or("-").to_owned()
        };
        End {
            status: status.as_u16(),
            outcome: match cascade {
                Some(ended) => ended.outcome,
                None if status.is_server_error() => Outcome::Failed,
                None => Outcome::Complete,
            },
            correlation_id: text(cascade.map(|ended| &ended.correlation_id)),
            cascade_status: text(response.headers().get(CASCADE_STATUS)),
        }
    }

    fn gone() -> End {
        let dash = || "-".to_owned();
        End {
            status: CLIENT_CLOSED_REQUEST,
            outcome: Outcome::Cancelled,
            correlation_id: dash(),
            cascade_status: dash(),
        }
    }
}

impl Drop for Record<'_> {
    fn drop(&mut self) {
        let took: Duration = self.start.elapsed();
        let End { status, outcome, correlation_id, cascade_status } = self.ended.take().unwrap_or_else(End::gone);
        self.observer.metrics.request_ended(&RequestLabels { route: self.route, status, outcome }, took);
        if let Some((method, path)) = &self.line {
            let method = method.as_str();
            Line { method, path, status, took, correlation_id: &correlation_id, cascade_status: &cascade_status }
                .write();
        }
    }
}
