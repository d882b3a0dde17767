//! The probes: 200 or 503, in the form that is asked for. In background mode a snapshot is read, and nothing waited for.

use std::convert::Infallible;

use axum::body::Body;
use axum::extract::{FromRequestParts, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};

use super::Node;
use super::database::told;
use super::error::Problem;
use super::wish::{self, Wish};
use crate::health::{Form, Report};
use crate::wire;

/// Paths whose answers the article's `curl` lines read.
const VIETNAMESE: [&str; 4] = ["/song", "/san-sang", "/gop-sai", "/chan"];

/// The form that a request wants its report in. A form that is not known is no reason to refuse a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wanted(Form);

impl<S: Sync> FromRequestParts<S> for Wanted {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Wanted, Infallible> {
        Ok(Wanted::of(&parts.uri, &parts.headers))
    }
}

impl Wanted {
    fn of(uri: &Uri, headers: &HeaderMap) -> Wanted {
        let by_query = wish::pairs(uri.query()).find(|(key, _)| key == "format").and_then(|(_, value)| match &*value {
            "vertx" => Some(Form::Vertx),
            "microprofile" => Some(Form::MicroProfile),
            "health+json" => Some(Form::HealthJson),
            _ => None,
        });
        let accepts = || {
            let accept = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
            accept.flat_map(|value| value.split(',')).any(|kind| {
                kind.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/health+json"))
            })
        };
        let path = uri.path();
        let form = match by_query {
            Some(form) => form,
            None if accepts() => Form::HealthJson,
            None if VIETNAMESE.contains(&path.strip_suffix('/').unwrap_or(path)) => Form::Vietnamese,
            None => Form::MicroProfile,
        };
        Wanted(form)
    }

    pub(super) fn answer(self, report: &Report) -> Response {
        self.respond(report, None)
    }

    /// Labelled, in the header and in the body, as how it is not done.
    pub(super) fn answer_wrong(self, report: &Report, why: &'static str) -> Response {
        let mut response = self.respond(report, Some(why));
        response.headers_mut().insert(wire::WRONG, HeaderValue::from_static(why));
        response
    }

    fn respond(self, report: &Report, wrong: Option<&str>) -> Response {
        let Wanted(form) = self;
        let mut response = Response::new(Body::from(report.write(form, wrong)));
        *response.status_mut() = if report.is_up() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(form.content_type()));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response
    }
}

pub(super) async fn live(State(node): State<Node>, wanted: Wanted) -> Response {
    wanted.answer(&node.health().live())
}

pub(super) async fn ready(State(node): State<Node>, wanted: Wanted) -> Response {
    let report = node.health().ready().await;
    wanted.answer(&match node.downstream().circuit() {
        Some(circuit) => report.with_breaker(circuit.as_str()),
        None => report,
    })
}

/// The probe; with `?done=` the switch, as everything of the simulation can be turned with a browser.
pub(super) async fn startup(State(node): State<Node>, wanted: Wanted, wish: Wish) -> Response {
    match wish.changes_state() {
        true => finish_loading(State(node), wish).await,
        false => wanted.answer(&node.health().startup()),
    }
}

/// `{"done":true}`, or `?done=true`.
pub(super) async fn finish_loading(State(node): State<Node>, wish: Wish) -> Response {
    let done = wish.pairs().and_then(|pairs| {
        let mut done = None;
        for (key, value) in pairs {
            match (&*key, &*value) {
                ("done", "true") => done = Some(true),
                ("done", "false") => done = Some(false),
                ("done", other) => return Err(format!("done={other}: must be true or false")),
                ("format", _) => {}
                (other, _) => return Err(format!("{other:?} is not known: done is")),
            }
        }
        done.ok_or_else(|| "done is missing".to_owned())
    });
    match done {
        Ok(done) => {
            node.health().set_loaded(done);
            told(&serde_json::json!({ "done": done }))
        }
        Err(error) => Problem::new(&node, StatusCode::BAD_REQUEST, error).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_follows_the_query_then_the_header_then_the_path() {
        for (uri, accept, form) in [
            ("/ready", "*/*", Form::MicroProfile),
            ("/ready", "application/health+json", Form::HealthJson),
            ("/ready", "text/html, Application/Health+JSON;q=0.9", Form::HealthJson),
            ("/ready", "application/json", Form::MicroProfile),
            ("/ready?format=vertx", "application/health+json", Form::Vertx),
            ("/ready?format=health%2Bjson", "*/*", Form::HealthJson),
            ("/ready?format=nonsense", "*/*", Form::MicroProfile),
            ("/san-sang", "*/*", Form::Vietnamese),
            ("/song/", "*/*", Form::Vietnamese),
            ("/song?format=microprofile", "*/*", Form::MicroProfile),
        ] {
            let headers = HeaderMap::from_iter([(header::ACCEPT, HeaderValue::from_static(accept))]);
            assert_eq!(Wanted::of(&Uri::from_static(uri), &headers), Wanted(form), "{uri} {accept}");
        }
    }
}
