//! WireMock's stub mappings as JSON: read strictly, what is not understood is refused by name.

use std::collections::BTreeMap;

use base64::Engine as _;
use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, StatusCode};
use regex::Regex;
use serde::Deserialize;
use serde_json::Value;
use thiserror::Error;
use uuid::Uuid;

use crate::wire::member;

/// WireMock's, from 1 (first) on.
const DEFAULT_PRIORITY: u32 = 5;
/// No delay of one answer may be longer.
pub(super) const LONGEST_DELAY_MS: u64 = 24 * 3600 * 1000;

/// Why a text is no stub mapping: one line naming the member.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub(super) struct MappingError(pub(super) String);

/// One mapping, ready to match and to answer.
#[derive(Debug)]
pub(super) struct Stub {
    pub(super) id: Uuid,
    pub(super) name: Option<String>,
    pub(super) priority: u32,
    pub(super) request: Pattern,
    pub(super) response: Answer,
    pub(super) scenario: Option<Scenario>,
    /// As it was given, with its id.
    pub(super) json: Value,
}

#[derive(Debug)]
pub(super) struct Scenario {
    pub(super) name: String,
    pub(super) required: Option<String>,
    pub(super) next: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Given {
    id: Option<Uuid>,
    uuid: Option<Uuid>,
    name: Option<String>,
    priority: Option<u32>,
    request: Option<GivenRequest>,
    response: Option<GivenAnswer>,
    scenario_name: Option<String>,
    required_scenario_state: Option<String>,
    new_scenario_state: Option<String>,
    #[serde(rename = "metadata")]
    _metadata: Option<Value>,
    #[serde(rename = "persistent")]
    _persistent: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct GivenRequest {
    method: Option<String>,
    url: Option<String>,
    url_pattern: Option<String>,
    url_path: Option<String>,
    url_path_pattern: Option<String>,
    url_path_template: Option<String>,
    headers: BTreeMap<String, GivenMatcher>,
    query_parameters: BTreeMap<String, GivenMatcher>,
    cookies: BTreeMap<String, GivenMatcher>,
    basic_auth: Option<GivenAuth>,
    body_patterns: Vec<GivenMatcher>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct GivenAuth {
    username: String,
    password: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct GivenMatcher {
    equal_to: Option<String>,
    case_insensitive: Option<bool>,
    matches: Option<String>,
    does_not_match: Option<String>,
    contains: Option<String>,
    does_not_contain: Option<String>,
    absent: Option<bool>,
    equal_to_json: Option<Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct GivenAnswer {
    status: Option<u16>,
    status_message: Option<String>,
    body: Option<String>,
    json_body: Option<Value>,
    base64_body: Option<String>,
    body_file_name: Option<String>,
    headers: BTreeMap<String, OneOrMany>,
    fixed_delay_milliseconds: Option<u64>,
    delay_distribution: Option<Distribution>,
    chunked_dribble_delay: Option<Dribble>,
    fault: Option<Fault>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

/// How long an answer is delayed, drawn anew each time.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase", deny_unknown_fields)]
pub(super) enum Distribution {
    Fixed {
        milliseconds: u64,
    },
    /// Both ends included.
    Uniform {
        lower: u64,
        upper: u64,
    },
    #[serde(rename_all = "camelCase")]
    Lognormal {
        median: f64,
        sigma: f64,
        max_value: Option<f64>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Dribble {
    pub(super) number_of_chunks: usize,
    pub(super) total_duration: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub(super) enum Fault {
    EmptyResponse,
    MalformedResponseChunk,
    RandomDataThenClose,
    ConnectionResetByPeer,
}

/// What a request must be.
#[derive(Debug)]
pub(super) struct Pattern {
    pub(super) method: Option<Method>,
    pub(super) url: Url,
    pub(super) headers: Vec<(HeaderName, Matcher)>,
    pub(super) query: Vec<(String, Matcher)>,
    pub(super) cookies: Vec<(String, Matcher)>,
    pub(super) body: Vec<Matcher>,
}

#[derive(Debug)]
pub(super) enum Url {
    Any,
    /// Path and query.
    Whole(String),
    WholePattern(Regex),
    Path(String),
    PathPattern(Regex),
}

#[derive(Debug)]
pub(super) enum Matcher {
    EqualTo(String),
    EqualToIgnoringCase(String),
    Matches(Regex),
    DoesNotMatch(Regex),
    Contains(String),
    DoesNotContain(String),
    Absent,
    EqualToJson(Value),
}

#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) message: Option<String>,
    pub(super) body: Bytes,
    pub(super) headers: Vec<(HeaderName, HeaderValue)>,
    pub(super) fixed_delay_ms: Option<u64>,
    pub(super) distribution: Option<Distribution>,
    pub(super) dribble: Option<Dribble>,
    pub(super) fault: Option<Fault>,
}

impl Stub {
    /// Reads one mapping; `file` gives the body that `bodyFileName` names.
    ///
    /// # Errors
    /// What is not understood, and in which member.
    pub(super) fn read(json: &[u8], file: impl Fn(&str) -> Result<Bytes, String>) -> Result<Stub, MappingError> {
        let expected = "a stub mapping must be a JSON object, as in {\"request\":{\"url\":\"/\"},\"response\":{}}";
        let given: Given = member::object(json, expected).map_err(MappingError)?;
        let mut shown: Value = serde_json::from_slice(json).map_err(|error| MappingError(error.to_string()))?;
        let id = match (given.id, given.uuid) {
            (Some(id), Some(uuid)) if id != uuid => return refuse(format!("id {id} and uuid {uuid} are different")),
            (id, uuid) => id.or(uuid).unwrap_or_else(Uuid::new_v4),
        };
        for name in ["id", "uuid"] {
            shown[name] = id.to_string().into();
        }
        if given.priority == Some(0) {
            return refuse("priority: 0 must be 1 or more; 1 is asked first".to_owned());
        }
        let scenario = match given.scenario_name {
            Some(name) => {
                Some(Scenario { name, required: given.required_scenario_state, next: given.new_scenario_state })
            }
            None if given.required_scenario_state.is_some() || given.new_scenario_state.is_some() => {
                return refuse("a scenario state is given, but no scenarioName".to_owned());
            }
            None => None,
        };
        Ok(Stub {
            id,
            name: given.name,
            priority: given.priority.unwrap_or(DEFAULT_PRIORITY),
            request: pattern(given.request.unwrap_or_default())?,
            response: answer(given.response.unwrap_or_default(), file)?,
            scenario,
            json: shown,
        })
    }
}

/// What `POST /__admin/requests/count` asks about.
pub(super) fn read_pattern(json: &[u8]) -> Result<Pattern, MappingError> {
    let expected = "a request pattern must be a JSON object, as in {\"url\":\"/\"}";
    pattern(member::object(json, expected).map_err(MappingError)?)
}

fn refuse<T>(what: String) -> Result<T, MappingError> {
    Err(MappingError(what))
}

fn pattern(given: GivenRequest) -> Result<Pattern, MappingError> {
    let method = match given.method.as_deref() {
        None | Some("ANY") => None,
        Some(name) => match Method::from_bytes(name.as_bytes()) {
            Ok(method) => Some(method),
            Err(_) => return refuse(format!("request.method: {name:?} is no HTTP method")),
        },
    };
    let urls = [
        ("url", given.url),
        ("urlPattern", given.url_pattern),
        ("urlPath", given.url_path),
        ("urlPathPattern", given.url_path_pattern),
        ("urlPathTemplate", given.url_path_template),
    ];
    let mut given_urls = urls.into_iter().filter_map(|(name, value)| Some((name, value?)));
    let url = match (given_urls.next(), given_urls.next()) {
        (None, _) => Url::Any,
        (Some((one, _)), Some((other, _))) => {
            return refuse(format!("request: {one} and {other} are given, only one can be meant"));
        }
        (Some(("url", text)), None) => Url::Whole(text),
        (Some(("urlPath", text)), None) => Url::Path(text),
        (Some((name @ "urlPattern", text)), None) => Url::WholePattern(regex(name, &text)?),
        (Some((name @ "urlPathTemplate", text)), None) => Url::PathPattern(regex(name, &template(&text))?),
        (Some((name, text)), None) => Url::PathPattern(regex(name, &text)?),
    };
    let mut headers = Vec::new();
    for (name, matcher) in given.headers {
        let Ok(parsed) = HeaderName::from_bytes(name.as_bytes()) else {
            return refuse(format!("request.headers: {name:?} is no header name"));
        };
        headers.push((parsed, one(&format!("request.headers.{name}"), matcher)?));
    }
    if let Some(GivenAuth { username, password }) = given.basic_auth {
        let credentials = base64::engine::general_purpose::STANDARD.encode(format!("{username}:{password}"));
        headers.push((http::header::AUTHORIZATION, Matcher::EqualTo(format!("Basic {credentials}"))));
    }
    let named = |what: &str, matchers: BTreeMap<String, GivenMatcher>| {
        let read = |(name, matcher)| Ok((String::clone(&name), one(&format!("request.{what}.{name}"), matcher)?));
        matchers.into_iter().map(read).collect::<Result<Vec<_>, MappingError>>()
    };
    let body = given.body_patterns.into_iter().map(|matcher| one("request.bodyPatterns", matcher));
    Ok(Pattern {
        method,
        url,
        headers,
        query: named("queryParameters", given.query_parameters)?,
        cookies: named("cookies", given.cookies)?,
        body: body.collect::<Result<_, _>>()?,
    })
}

/// `/a/{name}` as a pattern: a name stands for one segment.
fn template(text: &str) -> String {
    let mut pattern = String::new();
    for (number, part) in text.split(['{', '}']).enumerate() {
        if number % 2 == 0 { pattern += &regex::escape(part) } else { pattern += "[^/]+" }
    }
    pattern
}

/// As WireMock matches: over the whole text.
fn regex(member: &str, pattern: &str) -> Result<Regex, MappingError> {
    Regex::new(&format!("^(?s:{pattern})$")).map_err(|error| {
        let why = error.to_string();
        let why = why.lines().last().unwrap_or_default().trim_start_matches("error: ");
        MappingError(format!("{member}: {pattern:?} is no pattern that can be matched here: {why}"))
    })
}

fn one(place: &str, given: GivenMatcher) -> Result<Matcher, MappingError> {
    let ignoring_case = given.case_insensitive == Some(true);
    let mut all = Vec::new();
    if let Some(text) = given.equal_to {
        all.push(if ignoring_case {
            Matcher::EqualToIgnoringCase(text.to_lowercase())
        } else {
            Matcher::EqualTo(text)
        });
    }
    if let Some(pattern) = given.matches {
        all.push(Matcher::Matches(regex(place, &pattern)?));
    }
    if let Some(pattern) = given.does_not_match {
        all.push(Matcher::DoesNotMatch(regex(place, &pattern)?));
    }
    all.extend(given.contains.map(Matcher::Contains));
    all.extend(given.does_not_contain.map(Matcher::DoesNotContain));
    all.extend(given.absent.filter(|absent| *absent).map(|_| Matcher::Absent));
    if let Some(json) = given.equal_to_json {
        let json = match json {
            Value::String(text) => serde_json::from_str(&text)
                .map_err(|error| MappingError(format!("{place}: equalToJson is no JSON: {error}")))?,
            json => json,
        };
        all.push(Matcher::EqualToJson(json));
    }
    match (all.pop(), all.is_empty()) {
        (Some(matcher), true) => Ok(matcher),
        (None, _) => refuse(format!("{place}: says nothing of the value; equalTo, matches, contains, absent … do")),
        (Some(_), false) => refuse(format!("{place}: says more than one thing of the value")),
    }
}

fn answer(given: GivenAnswer, file: impl Fn(&str) -> Result<Bytes, String>) -> Result<Answer, MappingError> {
    let code = given.status.unwrap_or(200);
    let status = StatusCode::from_u16(code).ok().filter(|_| (200..=599).contains(&code));
    let Some(status) = status else { return refuse(format!("response.status: {code} must be from 200 to 599")) };
    let bodies = [
        given.body.map(|text| Ok(Bytes::from(text))),
        given.json_body.map(|json| Ok(Bytes::from(json.to_string()))),
        given.base64_body.map(|text| {
            let decoded = base64::engine::general_purpose::STANDARD.decode(text);
            decoded.map(Bytes::from).map_err(|error| MappingError(format!("response.base64Body: {error}")))
        }),
        given.body_file_name.map(|name| {
            file(&name)
                .map_err(|error| MappingError(format!("response.bodyFileName: {name:?} cannot be read: {error}")))
        }),
    ];
    let mut bodies = bodies.into_iter().flatten();
    let body = bodies.next().transpose()?.unwrap_or_default();
    if bodies.next().is_some() {
        return refuse("response: more than one of body, jsonBody, base64Body and bodyFileName is given".to_owned());
    }
    let mut headers = Vec::new();
    for (name, values) in given.headers {
        // It would be a lie about the body that follows, and whoever reads it would wait for the rest.
        if ["content-length", "transfer-encoding"].contains(&name.to_ascii_lowercase().as_str()) {
            return refuse(format!(
                "response.headers: {name} is set by the stub, from the body; faults break an answer"
            ));
        }
        let values = match values {
            OneOrMany::One(value) => vec![value],
            OneOrMany::Many(values) => values,
        };
        for value in values {
            let (Ok(parsed), Ok(value)) = (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_str(&value))
            else {
                return refuse(format!("response.headers: {name}: {value:?} is no header"));
            };
            headers.push((parsed, value));
        }
    }
    let within = |name: &str, ms: u64| match ms <= LONGEST_DELAY_MS {
        true => Ok(()),
        false => refuse(format!("response.{name}: {ms} must be from 0 to {LONGEST_DELAY_MS}")),
    };
    within("fixedDelayMilliseconds", given.fixed_delay_milliseconds.unwrap_or(0))?;
    if let Some(distribution) = &given.delay_distribution {
        check(distribution)?;
    }
    if let Some(dribble) = given.chunked_dribble_delay {
        within("chunkedDribbleDelay.totalDuration", dribble.total_duration)?;
        if dribble.number_of_chunks == 0 {
            return refuse("response.chunkedDribbleDelay.numberOfChunks: 0 must be 1 or more".to_owned());
        }
    }
    Ok(Answer {
        status,
        message: given.status_message,
        body,
        headers,
        fixed_delay_ms: given.fixed_delay_milliseconds,
        distribution: given.delay_distribution,
        dribble: given.chunked_dribble_delay,
        fault: given.fault,
    })
}

/// Also of those that `/__admin/settings` sets for all.
pub(super) fn check(distribution: &Distribution) -> Result<(), MappingError> {
    let longest = LONGEST_DELAY_MS as f64;
    let wrong = match *distribution {
        Distribution::Fixed { milliseconds } => {
            (milliseconds > LONGEST_DELAY_MS).then(|| format!("milliseconds {milliseconds}"))
        }
        Distribution::Uniform { lower, upper } if lower > upper => {
            Some(format!("lower {lower} is above upper {upper}"))
        }
        Distribution::Uniform { upper, .. } => (upper > LONGEST_DELAY_MS).then(|| format!("upper {upper}")),
        Distribution::Lognormal { median, sigma, max_value } => {
            if !(median > 0.0 && median <= longest) {
                Some(format!("median {median}"))
            } else if !(0.0..=10.0).contains(&sigma) {
                Some(format!("sigma {sigma} must be from 0 to 10;"))
            } else {
                max_value.filter(|max| *max < median).map(|max| format!("maxValue {max} is below the median {median}"))
            }
        }
    };
    match wrong {
        Some(what) => refuse(format!("delayDistribution: {what} (a delay is from 0 to {LONGEST_DELAY_MS} ms)")),
        None => Ok(()),
    }
}
