//! The mappings, their scenarios, the settings for all of them, and the journal of requests: all that `/__admin` keeps.

use std::collections::VecDeque;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use serde::Deserialize;
use serde_json::{Value, json};
use thiserror::Error;
use uuid::Uuid;

use super::mapping::{Distribution, LONGEST_DELAY_MS, MappingError, Pattern, Stub, check};
use super::matching::{Scenarios, Seen};
use crate::fault::normal;
use crate::wire::member;

/// A lognormal delay above its `maxValue` is drawn anew this often, then cut.
const REDRAWS: usize = 10;
/// The largest file of mappings or of a body, in bytes.
const MAX_FILE: u64 = 16 * 1024 * 1024;

/// Why the mappings of a directory are not served.
#[derive(Debug, Error)]
#[error("{}: {what}", file.display())]
pub(super) struct LoadError {
    file: PathBuf,
    what: String,
}

/// Delays for all mappings, from `POST /__admin/settings`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct Delays {
    fixed_delay: Option<u64>,
    delay_distribution: Option<Distribution>,
}

/// Clones are the same book.
#[derive(Clone, Debug)]
pub(super) struct Book(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    directory: Option<PathBuf>,
    files: Option<PathBuf>,
    journal_limit: usize,
}

#[derive(Debug)]
struct State {
    /// In the order in which they are asked: by priority, the youngest first.
    stubs: Vec<Arc<Stub>>,
    scenarios: Scenarios,
    delays: Delays,
    delays_json: Value,
    journal: VecDeque<Entry>,
    draws: Xoshiro256PlusPlus,
}

#[derive(Debug)]
struct Entry {
    id: Uuid,
    seen: Seen,
    at: SystemTime,
    matched: Option<Uuid>,
}

impl Book {
    pub(super) fn new(directory: Option<&Path>, journal_limit: usize, seed: u64) -> Result<Book, LoadError> {
        // WireMock's root directory is taken too: its mappings are in a folder of that name.
        let directory = directory.map(|directory| {
            Some(directory.join("mappings")).filter(|nested| nested.is_dir()).unwrap_or(directory.to_owned())
        });
        let directory = directory.as_deref();
        let files = directory.map(|directory| directory.parent().unwrap_or(Path::new("")).join("__files"));
        let state = State {
            stubs: Vec::new(),
            scenarios: Scenarios::default(),
            delays: Delays::default(),
            delays_json: json!({}),
            journal: VecDeque::new(),
            draws: Xoshiro256PlusPlus::seed_from_u64(seed),
        };
        let directory = directory.map(Path::to_owned);
        let book = Book(Arc::new(Shared { state: Mutex::new(state), directory, files, journal_limit }));
        book.load()?;
        Ok(book)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Every JSON file of the directory, in the order of their names: of two mappings with one priority that match the
    /// same request the later one answers.
    fn load(&self) -> Result<(), LoadError> {
        let Some(directory) = &self.0.directory else { return Ok(()) };
        let failed = |file: &Path, what: String| LoadError { file: file.to_owned(), what };
        let entries = std::fs::read_dir(directory).map_err(|error| failed(directory, error.to_string()))?;
        let mut paths = Vec::new();
        for entry in entries {
            let path = entry.map_err(|error| failed(directory, error.to_string()))?.path();
            if path.extension().is_some_and(|extension| extension == "json") && path.is_file() {
                paths.push(path);
            }
        }
        paths.sort();
        for path in paths {
            let text = read(&path).map_err(|error| failed(&path, error))?;
            self.import(&text).map_err(|error| failed(&path, error.to_string()))?;
        }
        Ok(())
    }

    /// One mapping, or several as `{"mappings": […]}`; all of them or none.
    pub(super) fn import(&self, json: &[u8]) -> Result<usize, MappingError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase", deny_unknown_fields)]
        struct Many {
            mappings: Vec<Value>,
            #[serde(rename = "meta", default)]
            _meta: Option<Value>,
            #[serde(rename = "importOptions", default)]
            _import_options: Option<Value>,
        }
        let is_many = serde_json::from_slice::<Value>(json).is_ok_and(|json| json.get("mappings").is_some());
        let stubs = match is_many {
            false => vec![self.read(json)?],
            true => {
                let many: Many = member::object(json, "no mappings").map_err(MappingError)?;
                let mut stubs = Vec::new();
                for (number, mapping) in many.mappings.iter().enumerate() {
                    let read = self.read(mapping.to_string().as_bytes());
                    stubs.push(read.map_err(|error| MappingError(format!("mappings[{number}]: {error}")))?);
                }
                stubs
            }
        };
        let count = stubs.len();
        stubs.into_iter().for_each(|stub| self.put(stub));
        Ok(count)
    }

    pub(super) fn read(&self, json: &[u8]) -> Result<Stub, MappingError> {
        Stub::read(json, |name| self.file(name))
    }

    /// A body from `__files`, and from nowhere else.
    fn file(&self, name: &str) -> Result<Bytes, String> {
        let files = self.0.files.as_ref().ok_or("there is no --mappings directory and so no __files")?;
        let inside = Path::new(name).components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
        if !inside {
            return Err("it leads out of __files".to_owned());
        }
        let path = files.join(name);
        read(&path).map(Bytes::from).map_err(|error| format!("{}: {error}", path.display()))
    }

    /// Adds a mapping, in place of the one with its id.
    pub(super) fn put(&self, stub: Stub) {
        let mut state = self.state();
        state.stubs.retain(|other| other.id != stub.id);
        let place = state.stubs.partition_point(|other| other.priority < stub.priority);
        state.stubs.insert(place, Arc::new(stub));
    }

    pub(super) fn get(&self, id: Uuid) -> Option<Arc<Stub>> {
        self.state().stubs.iter().find(|stub| stub.id == id).cloned()
    }

    pub(super) fn remove(&self, id: Uuid) -> bool {
        let mut state = self.state();
        let before = state.stubs.len();
        state.stubs.retain(|stub| stub.id != id);
        state.stubs.len() < before
    }

    pub(super) fn clear(&self) {
        self.state().stubs.clear();
    }

    /// As at the start: what came by request is gone.
    pub(super) fn reset_mappings(&self) -> Result<(), LoadError> {
        self.clear();
        self.reset_scenarios();
        self.load()
    }

    pub(super) fn reset_scenarios(&self) {
        self.state().scenarios.reset();
    }

    pub(super) fn reset_delays(&self) {
        let mut state = self.state();
        (state.delays, state.delays_json) = (Delays::default(), json!({}));
    }

    pub(super) fn mappings(&self) -> Vec<Value> {
        self.state().stubs.iter().map(|stub| stub.json.clone()).collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.state().stubs.is_empty()
    }

    /// The mapping that the request meets, noted in the journal.
    pub(super) fn find(&self, seen: &Seen) -> Option<Arc<Stub>> {
        let mut state = self.state();
        let State { stubs, scenarios, .. } = &mut *state;
        let found = scenarios.find(stubs, seen).cloned();
        if self.0.journal_limit > 0 {
            if state.journal.len() == self.0.journal_limit {
                state.journal.pop_front();
            }
            let (id, matched) = (Uuid::new_v4(), found.as_ref().map(|stub| stub.id));
            state.journal.push_back(Entry { id, seen: seen.clone(), at: SystemTime::now(), matched });
        }
        found
    }

    /// How long the answer of `stub` is delayed this time: its fixed delay and its distribution's, or those for all.
    pub(super) fn delay(&self, stub: &Stub) -> Duration {
        let mut state = self.state();
        let State { delays, draws, .. } = &mut *state;
        let fixed = stub.response.fixed_delay_ms.or(delays.fixed_delay).unwrap_or(0);
        let distribution = stub.response.distribution.as_ref().or(delays.delay_distribution.as_ref());
        Duration::from_millis(fixed + distribution.map_or(0, |distribution| draw(distribution, draws)))
    }

    pub(super) fn set_delays(&self, json: &[u8]) -> Result<Value, MappingError> {
        let delays: Delays =
            member::object(json, "settings must be a JSON object, as in {\"fixedDelay\":100}").map_err(MappingError)?;
        delays.delay_distribution.as_ref().map_or(Ok(()), check)?;
        if let Some(fixed) = delays.fixed_delay.filter(|fixed| *fixed > LONGEST_DELAY_MS) {
            return Err(MappingError(format!("fixedDelay: {fixed} must be from 0 to {LONGEST_DELAY_MS}")));
        }
        let mut state = self.state();
        state.delays = delays;
        state.delays_json = serde_json::from_slice(json).unwrap_or_default();
        Ok(state.delays_json.clone())
    }

    pub(super) fn delays(&self) -> Value {
        self.state().delays_json.clone()
    }

    pub(super) fn keeps_journal(&self) -> bool {
        self.0.journal_limit > 0
    }

    pub(super) fn requests(&self) -> Vec<Value> {
        self.state().journal.iter().rev().map(Entry::json).collect()
    }

    pub(super) fn count(&self, pattern: &Pattern) -> usize {
        self.state().journal.iter().filter(|entry| pattern.matches(&entry.seen)).count()
    }

    pub(super) fn clear_journal(&self) {
        self.state().journal.clear();
    }
}

impl Entry {
    fn json(&self) -> Value {
        let headers: serde_json::Map<String, Value> = self
            .seen
            .headers
            .iter()
            .map(|(name, value)| (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into()))
            .collect();
        let at = self.at.duration_since(UNIX_EPOCH).unwrap_or_default();
        json!({
            "id": self.id,
            "request": {
                "url": self.seen.uri.path_and_query().map_or("/", |both| both.as_str()),
                "method": self.seen.method.as_str(),
                "headers": headers,
                "body": String::from_utf8_lossy(&self.seen.body),
                "loggedDate": u64::try_from(at.as_millis()).unwrap_or(u64::MAX),
            },
            "wasMatched": self.matched.is_some(),
            "stubMapping": self.matched.map(|id| json!({"id": id})),
        })
    }
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    let length = std::fs::metadata(path).map_err(|error| error.to_string())?.len();
    if length > MAX_FILE {
        return Err(format!("{length} bytes are more than {MAX_FILE}"));
    }
    std::fs::read(path).map_err(|error| error.to_string())
}

/// In ms.
fn draw(distribution: &Distribution, draws: &mut Xoshiro256PlusPlus) -> u64 {
    match *distribution {
        Distribution::Fixed { milliseconds } => milliseconds,
        Distribution::Uniform { lower, upper } => draws.random_range(lower..=upper),
        Distribution::Lognormal { median, sigma, max_value } => {
            let longest = max_value.unwrap_or(LONGEST_DELAY_MS as f64);
            let mut sample = || (normal(draws) * sigma).exp() * median;
            let within = (0..REDRAWS).map(|_| sample()).find(|sample| *sample <= longest);
            within.unwrap_or(longest).round() as u64
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn book(mappings: &[Value]) -> Book {
        let book = Book::new(None, 100, 7).expect("an empty book");
        for mapping in mappings {
            book.import(mapping.to_string().as_bytes()).expect("a mapping");
        }
        book
    }

    fn seen(uri: &str) -> Seen {
        Seen {
            method: http::Method::GET,
            uri: uri.parse().expect("a URI"),
            headers: http::HeaderMap::new(),
            body: Bytes::new(),
        }
    }

    fn name(book: &Book, uri: &str) -> Option<String> {
        book.find(&seen(uri)).and_then(|stub| stub.name.clone())
    }

    #[test]
    fn a_path_pattern_is_a_regex_over_the_whole_path() {
        let book = book(&[json!({"name": "x", "request": {"method": "GET", "urlPathPattern": "/gimme/200*"}})]);
        for (uri, matches) in [
            ("/gimme/20", true),
            ("/gimme/200", true),
            ("/gimme/2000", true),
            ("/gimme/200?a=b", true),
            ("/gimme/200/x", false),
            ("/a/gimme/200", false),
            ("/gimme/2", false),
        ] {
            assert_eq!(name(&book, uri).is_some(), matches, "{uri}");
        }
    }

    #[test]
    fn the_lowest_priority_number_answers_and_of_equals_the_youngest() {
        let stub = |name: &str, priority: u32| json!({"name": name, "priority": priority, "request": {"urlPath": "/"}});
        for (mappings, answers) in [
            (vec![stub("old", 5), stub("young", 5)], "young"),
            (vec![stub("first", 1), stub("young", 5)], "first"),
            (vec![stub("last", 9), stub("first", 4), stub("young", 5)], "first"),
        ] {
            assert_eq!(name(&book(&mappings), "/").as_deref(), Some(answers), "{mappings:?}");
        }
    }

    #[test]
    fn a_scenario_goes_on_from_state_to_state() {
        let stub = |name: &str, required: &str, next: &str| json!({"name": name, "scenarioName": "s", "requiredScenarioState": required, "newScenarioState": next});
        let book = book(&[stub("one", "Started", "second"), stub("two", "second", "Started")]);
        let names: Vec<_> = (0..3).filter_map(|_| name(&book, "/")).collect();
        assert_eq!(names, ["one", "two", "one"]);
        book.reset_scenarios();
        assert_eq!(name(&book, "/").as_deref(), Some("one"));
    }

    #[test]
    fn what_is_not_understood_is_refused_by_name() {
        for (mapping, part) in [
            (json!({"request": {"url": "/", "urlPath": "/"}}), "url and urlPath"),
            (json!({"request": {"urlPatern": "/"}}), "urlPatern"),
            (json!({"response": {"proxyBaseUrl": "http://x"}}), "proxyBaseUrl"),
            (json!({"response": {"transformers": []}}), "transformers"),
            (json!({"response": {"status": 1000}}), "1000 must be from 200 to 599"),
            (json!({"response": {"status": "200"}}), "response.status"),
            (json!({"response": {"fixedDelayMilliseconds": -1}}), "fixedDelayMilliseconds"),
            (json!({"response": {"fault": "EXPLODE"}}), "EXPLODE"),
            (json!({"response": {"body": "a", "jsonBody": {}}}), "more than one of body"),
            (
                json!({"response": {"chunkedDribbleDelay": {"numberOfChunks": 0, "totalDuration": 5}}}),
                "numberOfChunks: 0",
            ),
            (json!({"response": {"delayDistribution": {"type": "uniform", "lower": 5, "upper": 1}}}), "lower 5"),
            (
                json!({"response": {"delayDistribution": {"type": "lognormal", "median": 80, "sigma": 0.4, "maxValue": 5}}}),
                "maxValue 5",
            ),
            (json!({"request": {"urlPattern": "/(?=x)"}}), "look-around"),
            (json!({"request": {"headers": {"a": {}}}}), "request.headers.a"),
            (json!({"request": {"headers": {"a": {"equalTo": "x", "contains": "y"}}}}), "more than one thing"),
            (json!({"response": {"headers": {"Content-Length": "100"}}}), "Content-Length is set by the stub"),
            (json!({"priority": 0}), "priority: 0"),
            (json!({"requiredScenarioState": "x"}), "no scenarioName"),
            (json!({"mappings": [{"request": {}}, {"x": 1}]}), "mappings[1]"),
            (json!({"response": {"bodyFileName": "../secret"}}), "bodyFileName"),
        ] {
            let book = Book::new(None, 0, 1).expect("an empty book");
            let error = book.import(mapping.to_string().as_bytes()).expect_err(part);
            assert!(error.to_string().contains(part), "{error} lacks {part:?}");
            assert!(book.is_empty(), "{mapping} was refused, but something of it stayed");
        }
    }

    #[test]
    fn delays_add_up_and_stay_within_their_limits() {
        let delay = |response: Value| {
            let book = book(&[json!({"name": "x", "response": response})]);
            let stub = book.find(&seen("/")).expect("a stub");
            (0..1000).map(|_| book.delay(&stub).as_millis()).collect::<Vec<_>>()
        };
        assert_eq!(delay(json!({}))[0], 0);
        let fixed =
            delay(json!({"fixedDelayMilliseconds": 7, "delayDistribution": {"type": "fixed", "milliseconds": 3}}));
        assert!(fixed.iter().all(|ms| *ms == 10));
        let uniform = delay(json!({"delayDistribution": {"type": "uniform", "lower": 5, "upper": 7}}));
        assert!([5, 6, 7].iter().all(|ms| uniform.contains(ms)) && uniform.iter().all(|ms| (5..=7).contains(ms)));
        let distribution = json!({"type": "lognormal", "median": 80.0, "sigma": 0.4, "maxValue": 200.0});
        let mut lognormal = delay(json!({"delayDistribution": distribution}));
        lognormal.sort_unstable();
        assert!((70..90).contains(&lognormal[500]), "the median is {}", lognormal[500]);
        assert!(lognormal[999] <= 200);
    }

    #[test]
    fn the_journal_keeps_the_youngest() {
        let book = Book::new(None, 2, 1).expect("an empty book");
        for uri in ["/1", "/2", "/3"] {
            book.find(&seen(uri));
        }
        let urls: Vec<_> = book.requests().iter().map(|entry| entry["request"]["url"].clone()).collect();
        assert_eq!(urls, ["/3", "/2"]);
        assert_eq!(book.count(&super::super::mapping::read_pattern(br#"{"urlPath":"/3"}"#).expect("a pattern")), 1);
    }
}
