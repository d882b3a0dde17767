//! What a request's headers tell of the web page that sent it.

use http::{HeaderMap, HeaderName, HeaderValue, header};

/// Set by browsers alone, and out of reach of a page's scripts.
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Whether a browser sent this for a page of another site. Browsers send `Sec-Fetch-Site` only to https and to their own
/// machine, so `Origin` is looked at too; `curl` sends neither.
pub fn is_from_another_site(headers: &HeaderMap) -> bool {
    let text = |name: HeaderName| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    let foreign_origin = headers.get(header::ORIGIN).is_some_and(|origin| {
        let origin = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
        !origin.is_some_and(|(_, from)| text(header::HOST).is_some_and(|host| from.eq_ignore_ascii_case(host)))
    });
    foreign_origin || text(SEC_FETCH_SITE) == Some("cross-site")
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
}
