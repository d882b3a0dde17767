//! `/__admin`: the part of WireMock's API that exercises need. Like all else it takes a worker.

use http::{HeaderValue, Method, Response, StatusCode, header};
use serde_json::{Value, json};
use uuid::Uuid;

use super::mapping::{MappingError, read_pattern};
use super::matching::Seen;
use super::site::Shared;
use crate::server::Body;

const ROOT: &str = "/__admin";

/// The answer of the API; `None` for a path that is none of it.
pub(super) fn answer(shared: &Shared, seen: &Seen) -> Option<Response<Body>> {
    let path = seen.uri.path().strip_prefix(ROOT)?;
    if !path.is_empty() && !path.starts_with('/') {
        return None;
    }
    let path = path.trim_end_matches('/');
    Some(match path.strip_prefix("/mappings/").and_then(|id| id.parse().ok()) {
        Some(id) => one(shared, seen, id),
        None => all(shared, seen, path),
    })
}

/// The visible list of what can be asked.
fn all(shared: &Shared, seen: &Seen, path: &str) -> Response<Body> {
    let book = &shared.book;
    let ok = |json: Value| json_of(StatusCode::OK, json);
    let done = || ok(json!({}));
    match (&seen.method, path) {
        (&Method::GET, "/mappings") => {
            let mappings = book.mappings();
            ok(json!({"mappings": mappings, "meta": {"total": mappings.len()}}))
        }
        (&Method::POST, "/mappings") => match book.read(&seen.body) {
            Ok(stub) => {
                let json = stub.json.clone();
                book.put(stub);
                json_of(StatusCode::CREATED, json)
            }
            Err(error) => refused(&error),
        },
        (&Method::DELETE, "/mappings") => {
            book.clear();
            done()
        }
        (&Method::POST, "/mappings/reset") => match book.reset_mappings() {
            Ok(()) => done(),
            Err(error) => json_of(StatusCode::INTERNAL_SERVER_ERROR, json!({"errors": [{"title": error.to_string()}]})),
        },
        (&Method::POST, "/mappings/import") => match book.import(&seen.body) {
            Ok(_) => done(),
            Err(error) => refused(&error),
        },
        (&Method::POST, "/reset") => match book.reset_mappings() {
            Ok(()) => {
                book.clear_journal();
                book.reset_delays();
                done()
            }
            Err(error) => json_of(StatusCode::INTERNAL_SERVER_ERROR, json!({"errors": [{"title": error.to_string()}]})),
        },
        (&Method::POST, "/scenarios/reset") => {
            book.reset_scenarios();
            done()
        }
        (&Method::GET, "/settings") => ok(json!({"settings": book.delays()})),
        (&Method::POST | &Method::PUT, "/settings") => match book.set_delays(&seen.body) {
            Ok(json) => ok(json),
            Err(error) => refused(&error),
        },
        (&Method::GET, "/requests") => {
            let requests = book.requests();
            let total = requests.len();
            ok(json!({"requests": requests, "meta": {"total": total}, "requestJournalDisabled": !book.keeps_journal()}))
        }
        (&Method::POST, "/requests/count") => match read_pattern(&seen.body) {
            Ok(pattern) => ok(json!({"count": book.count(&pattern), "requestJournalDisabled": !book.keeps_journal()})),
            Err(error) => refused(&error),
        },
        (&Method::DELETE, "/requests") => {
            book.clear_journal();
            done()
        }
        (&Method::GET, "/health") => ok(json!({"status": "healthy", "message": "Wiremock is ok"})),
        (&Method::GET, "/version") => ok(json!({"version": env!("CARGO_PKG_VERSION")})),
        (&Method::POST, "/shutdown") => {
            shared.shutdown.cancel();
            done()
        }
        (method, _) => {
            let title = format!("{method} {ROOT}{path} is not one of the paths that are served here");
            json_of(StatusCode::NOT_FOUND, json!({"errors": [{"title": title}]}))
        }
    }
}

fn one(shared: &Shared, seen: &Seen, id: Uuid) -> Response<Body> {
    let book = &shared.book;
    let missing =
        || json_of(StatusCode::NOT_FOUND, json!({"errors": [{"title": format!("no stub mapping has the id {id}")}]}));
    match seen.method {
        Method::GET => book.get(id).map_or_else(missing, |stub| json(StatusCode::OK, &stub.json)),
        Method::DELETE if book.remove(id) => json_of(StatusCode::OK, json!({})),
        Method::DELETE => missing(),
        Method::PUT if book.get(id).is_none() => missing(),
        Method::PUT => {
            // The path says which one it is, whatever stands in the body.
            let mut given: Value = match serde_json::from_slice(&seen.body) {
                Ok(given @ Value::Object(_)) => given,
                _ => return refused(&MappingError("a stub mapping must be a JSON object".to_owned())),
            };
            given["id"] = id.to_string().into();
            given["uuid"] = id.to_string().into();
            match book.read(given.to_string().as_bytes()) {
                Ok(stub) => {
                    let shown = stub.json.clone();
                    book.put(stub);
                    json_of(StatusCode::OK, shown)
                }
                Err(error) => refused(&error),
            }
        }
        _ => json_of(
            StatusCode::METHOD_NOT_ALLOWED,
            json!({"errors": [{"title": "GET, PUT and DELETE are understood"}]}),
        ),
    }
}

fn refused(error: &MappingError) -> Response<Body> {
    let error = json!({"code": 10, "title": "Error parsing JSON", "detail": error.to_string()});
    json_of(StatusCode::UNPROCESSABLE_ENTITY, json!({"errors": [error]}))
}

fn json_of(status: StatusCode, value: Value) -> Response<Body> {
    json(status, &value)
}

pub(super) fn json(status: StatusCode, value: &Value) -> Response<Body> {
    let mut response = Response::new(Body::from(value.to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
