//! Who may change a node, and where. Lies over every route that can change something; requests that only look pass.

use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::error::Problem;
use super::{Door, Node, wish};
use crate::wire::is_from_another_site;

/// A guard at one of the node's doors.
#[derive(Clone)]
pub(super) struct Guard {
    pub(super) node: Node,
    pub(super) door: Door,
    /// Every query of a GET is a change here, not only those that [`wish::changes_state`] knows.
    pub(super) any_query: bool,
}

pub(super) async fn guard(State(guard): State<Guard>, request: Request, next: Next) -> Response {
    let Guard { node, door, any_query } = guard;
    let query = request.uri().query().unwrap_or_default();
    let by_query = any_query && request.method() == Method::GET && !query.is_empty();
    if !by_query && !wish::changes_state(request.method(), query) {
        return next.run(request).await;
    }
    let headers = request.headers();
    // First, and always: a browser may hold the token, and a stranger's page must not make use of that.
    if is_from_another_site(headers) {
        return foreign(&node);
    }
    // A probe that is also a switch answers at both doors, and is turned at one.
    if door == Door::Public {
        let why = "this node is changed at the address of --control-listen, not here";
        return Problem::new(&node, StatusCode::FORBIDDEN, why).into_response();
    }
    match node.control_token() {
        Some(token) if !has_token(headers, token) => {
            let why = "changing this node needs the header Authorization: Bearer with the token of --control-token";
            let challenge = [(header::WWW_AUTHENTICATE, "Bearer")];
            (challenge, Problem::new(&node, StatusCode::UNAUTHORIZED, why)).into_response()
        }
        _ => next.run(request).await,
    }
}

/// For what harms without changing anything: the probes that block or leak on purpose.
pub(super) async fn own_site(State(node): State<Node>, request: Request, next: Next) -> Response {
    if is_from_another_site(request.headers()) { foreign(&node) } else { next.run(request).await }
}

fn foreign(node: &Node) -> Response {
    Problem::new(node, StatusCode::FORBIDDEN, "a page of another site may not change this node").into_response()
}

fn has_token(headers: &HeaderMap, token: &str) -> bool {
    let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let (scheme, given) = given.split_once(' ').unwrap_or_default();
    scheme.eq_ignore_ascii_case("bearer") && is_same(given.trim().as_bytes(), token.as_bytes())
}

/// Takes the same time wherever the two differ, so that a token cannot be found byte by byte.
fn is_same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |different, (a, b)| different | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_token_opens() {
        let opens = |given: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, given.parse().expect(given));
            has_token(&headers, "s3cret")
        };
        assert!(opens("Bearer s3cret") && opens("bearer s3cret"));
        for given in ["", "Bearer", "Bearer ", "Bearer s3cre", "Bearer s3cret2", "Basic s3cret", "s3cret"] {
            assert!(!opens(given), "{given:?}");
        }
        assert!(!has_token(&HeaderMap::new(), "s3cret"));
    }
}
