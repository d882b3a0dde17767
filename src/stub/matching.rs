//! Which mapping a request meets. Changes nothing but scenarios.

use std::borrow::Cow;
use std::collections::HashMap;

use http::{HeaderMap, Method, Uri, header};
use serde_json::Value;

use super::mapping::{Matcher, Pattern, Scenario, Stub, Url};

/// The state in which every scenario begins.
const STARTED: &str = "Started";

/// A request as mappings see it.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) method: Method,
    pub(super) uri: Uri,
    pub(super) headers: HeaderMap,
    pub(super) body: bytes::Bytes,
}

impl Pattern {
    pub(super) fn matches(&self, seen: &Seen) -> bool {
        let path_and_query = seen.uri.path_and_query().map_or("/", |both| both.as_str());
        let path = seen.uri.path();
        // WireMock answers HEAD where GET is mapped only if it says so; a method is the method.
        self.method.as_ref().is_none_or(|method| *method == seen.method)
            && match &self.url {
                Url::Any => true,
                Url::Whole(url) => url == path_and_query,
                Url::WholePattern(pattern) => pattern.is_match(path_and_query),
                Url::Path(url) => url == path,
                Url::PathPattern(pattern) => pattern.is_match(path),
            }
            && self.headers.iter().all(|(name, matcher)| {
                matcher
                    .matches(seen.headers.get_all(name).iter().map(|value| String::from_utf8_lossy(value.as_bytes())))
            })
            && self.query.iter().all(|(name, matcher)| matcher.matches(query(seen, name)))
            && self.cookies.iter().all(|(name, matcher)| matcher.matches(cookies(seen, name)))
            && self.body.iter().all(|matcher| matcher.matches(std::iter::once(String::from_utf8_lossy(&seen.body))))
    }
}

fn query<'a>(seen: &'a Seen, name: &'a str) -> impl Iterator<Item = Cow<'a, str>> {
    let pairs = url::form_urlencoded::parse(seen.uri.query().unwrap_or_default().as_bytes());
    pairs.filter(move |(key, _)| key == name).map(|(_, value)| value)
}

fn cookies<'a>(seen: &'a Seen, name: &'a str) -> impl Iterator<Item = Cow<'a, str>> {
    let lines = seen.headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let pairs = lines.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.filter(move |(key, _)| *key == name).map(|(_, value)| Cow::from(value))
}

impl Matcher {
    /// One of the values is enough; none at all is for `absent` only.
    fn matches<'a>(&self, mut values: impl Iterator<Item = Cow<'a, str>>) -> bool {
        if let Matcher::Absent = self {
            return values.next().is_none();
        }
        values.any(|value| match self {
            Matcher::EqualTo(text) => value == *text,
            Matcher::EqualToIgnoringCase(text) => value.to_lowercase() == *text,
            Matcher::Matches(pattern) => pattern.is_match(&value),
            Matcher::DoesNotMatch(pattern) => !pattern.is_match(&value),
            Matcher::Contains(text) => value.contains(text.as_str()),
            Matcher::DoesNotContain(text) => !value.contains(text.as_str()),
            Matcher::EqualToJson(json) => serde_json::from_str::<Value>(&value).is_ok_and(|value| value == *json),
            Matcher::Absent => false,
        })
    }
}

/// The states of all scenarios, by name.
#[derive(Debug, Default)]
pub(super) struct Scenarios(HashMap<String, String>);

impl Scenarios {
    pub(super) fn reset(&mut self) {
        self.0.clear();
    }

    fn allows(&self, scenario: Option<&Scenario>) -> bool {
        let Some(Scenario { name, required: Some(required), .. }) = scenario else { return true };
        self.0.get(name).map_or(STARTED, String::as_str) == required
    }

    fn moved_on(&mut self, scenario: Option<&Scenario>) {
        if let Some(Scenario { name, next: Some(next), .. }) = scenario {
            self.0.insert(name.clone(), next.clone());
        }
    }

    /// The first of `stubs`, which are in the order in which they are asked, that the request meets.
    pub(super) fn find<'a, S: AsRef<Stub>>(&mut self, stubs: &'a [S], seen: &Seen) -> Option<&'a S> {
        let found = stubs.iter().find(|stub| {
            let stub = stub.as_ref();
            self.allows(stub.scenario.as_ref()) && stub.request.matches(seen)
        })?;
        self.moved_on(found.as_ref().scenario.as_ref());
        Some(found)
    }
}
