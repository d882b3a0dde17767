//! Who may change a node, and where. Lies over every route that can change something; requests that only look pass.

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::error::Problem;
use super::{Door, Node, wish};

/// Set by browsers alone, and out of reach of a page's scripts.
const SEC_FETCH_SITE: &str = "sec-fetch-site";

/// A guard at one of the node's doors.
#[derive(Clone)]
pub(super) struct Guard {
    pub(super) node: Node,
    pub(super) door: Door,
}

pub(super) async fn guard(State(guard): State<Guard>, request: Request, next: Next) -> Response {
    if !wish::changes_state(request.method(), request.uri().query().unwrap_or_default()) {
        return next.run(request).await;
    }
    let Guard { node, door } = guard;
    let headers = request.headers();
    // First, and always: a browser may hold the token, and a stranger's page must not make use of that.
    if is_from_another_site(headers) {
        return Problem::new(&node, StatusCode::FORBIDDEN, "a page of another site may not change this node")
            .into_response();
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

/// What browsers say of the page that sends a request. They send `Sec-Fetch-Site` only to https and to this machine, so
/// `Origin` is looked at too; `curl` sends neither.
fn is_from_another_site(headers: &HeaderMap) -> bool {
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    let foreign_origin = headers.get(header::ORIGIN).is_some_and(|origin| {
        let origin = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
        !origin.is_some_and(|(_, from)| text(header::HOST).is_some_and(|host| from.eq_ignore_ascii_case(host)))
    });
    foreign_origin || text(HeaderName::from_static(SEC_FETCH_SITE)).is_some_and(|site| site == "cross-site")
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
    fn a_page_of_another_site_is_told_by_either_header() {
        let foreign = |pairs: &[(&'static str, &str)]| {
            let pairs = pairs.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().expect(value)));
            is_from_another_site(&pairs.collect())
        };
        assert!(
            !foreign(&[("host", "node:8080")]) && !foreign(&[("host", "node:8080"), ("origin", "http://node:8080")])
        );
        assert!(!foreign(&[("sec-fetch-site", "same-origin")]) && !foreign(&[("sec-fetch-site", "none")]));
        assert!(foreign(&[("sec-fetch-site", "cross-site")]));
        for origin in ["http://evil.example", "http://node:8081", "null", ""] {
            assert!(foreign(&[("host", "node:8080"), ("origin", origin)]), "{origin:?}");
        }
    }

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
