//! A probe's answer as data, and the forms it can be written in. The verdict is the same in each.

use std::time::{Duration, SystemTime};

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::verdict::Failure;

/// What a probe found: its checks in a fixed order, and the verdict over the critical ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    pub(super) checks: Vec<Check>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Check {
    pub(super) name: String,
    pub(super) result: Result<(), Failure>,
    pub(super) critical: bool,
    /// Whether it asks something outside of this process.
    pub(super) outside: bool,
    /// How long the last attempt took, and how long ago it ended.
    pub(super) took: Duration,
    pub(super) age: Duration,
    /// The state of the circuit breaker, of the check that tells it.
    pub(super) breaker: Option<&'static str>,
}

/// How a report is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// MicroProfile Health 4.
    #[default]
    MicroProfile,
    /// vertx-health-check: `id` for `name`, and `outcome`.
    Vertx,
    /// The same with the names that the article about probes gives to its checks, and nothing more.
    Vietnamese,
    /// `application/health+json`: pass, warn, fail.
    HealthJson,
}

impl Form {
    pub fn content_type(self) -> &'static str {
        match self {
            Form::MicroProfile => "application/json",
            Form::Vertx | Form::Vietnamese => "application/json;charset=UTF-8",
            Form::HealthJson => "application/health+json",
        }
    }
}

impl Check {
    /// Of the process itself.
    pub(super) fn own(name: &str, result: Result<(), Failure>) -> Check {
        let (took, age) = (Duration::ZERO, Duration::ZERO);
        Check { name: name.to_owned(), result, critical: true, outside: false, took, age, breaker: None }
    }

    fn status(&self) -> &'static str {
        word(self.result.is_ok())
    }
}

fn word(up: bool) -> &'static str {
    if up { "UP" } else { "DOWN" }
}

impl Report {
    /// An optional dependency that is down is told, and changes nothing.
    pub fn is_up(&self) -> bool {
        self.checks.iter().all(|check| check.result.is_ok() || !check.critical)
    }

    /// The same with the state of the circuit breaker. It is told and changes nothing: an open one is this node doing
    /// well while the next one does not, and taking it out of service would help nobody (resilience4j#607).
    pub fn with_breaker(mut self, state: &'static str) -> Report {
        self.checks.push(Check { critical: false, breaker: Some(state), ..Check::own("breaker", Ok(())) });
        self
    }

    /// The report as JSON; `wrong` is the label of an answer that teaches how not to.
    pub fn write(&self, form: Form, wrong: Option<&str>) -> Vec<u8> {
        let json = match form {
            Form::MicroProfile => serde_json::to_vec(&Plain { report: self, wrong }),
            Form::Vertx => serde_json::to_vec(&Vertx { report: self, wrong, vietnamese: false }),
            Form::Vietnamese => serde_json::to_vec(&Vertx { report: self, wrong, vietnamese: true }),
            Form::HealthJson => serde_json::to_vec(&HealthJson { report: self, wrong, now: SystemTime::now() }),
        };
        json.expect("names, words and numbers are JSON")
    }
}

/// What a check tells beside its status.
#[derive(Serialize)]
struct Data {
    critical: bool,
    ms: u128,
    age_ms: u128,
    #[serde(skip_serializing_if = "Option::is_none")]
    breaker: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout_ms: Option<u128>,
}

impl From<&Check> for Data {
    fn from(check: &Check) -> Data {
        Data {
            critical: check.critical,
            ms: check.took.as_millis(),
            age_ms: check.age.as_millis(),
            breaker: check.breaker,
            error: check.result.as_ref().err().map(ToString::to_string),
            timeout_ms: match &check.result {
                Err(Failure::Timeout(limit)) => Some(limit.as_millis()),
                _ => None,
            },
        }
    }
}

struct Plain<'a> {
    report: &'a Report,
    wrong: Option<&'a str>,
}

#[derive(Serialize)]
struct PlainCheck<'a> {
    name: &'a str,
    status: &'static str,
    data: Data,
}

impl Serialize for Plain<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let checks = self.report.checks.iter();
        let checks: Vec<_> =
            checks.map(|check| PlainCheck { name: &check.name, status: check.status(), data: check.into() }).collect();
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("status", word(self.report.is_up()))?;
        map.serialize_entry("checks", &checks)?;
        label(&mut map, self.wrong)?;
        map.end()
    }
}

fn label<M: SerializeMap>(map: &mut M, wrong: Option<&str>) -> Result<(), M::Error> {
    wrong.map_or(Ok(()), |why| map.serialize_entry("wrong", why))
}

struct Vertx<'a> {
    report: &'a Report,
    wrong: Option<&'a str>,
    vietnamese: bool,
}

#[derive(Serialize)]
struct VertxCheck<'a> {
    id: &'a str,
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<VertxData>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum VertxData {
    Whole(Data),
    /// The reason alone, by the article's word for it.
    Reason {
        loi: String,
    },
}

impl<'a> VertxCheck<'a> {
    fn new(check: &'a Check) -> VertxCheck<'a> {
        VertxCheck { id: &check.name, status: check.status(), data: Some(VertxData::Whole(check.into())) }
    }

    fn vietnamese(check: &'a Check) -> VertxCheck<'a> {
        let reason = check.result.as_ref().err().map(|failure| VertxData::Reason { loi: failure.to_string() });
        VertxCheck { id: vietnamese(&check.name), status: check.status(), data: reason }
    }
}

impl Serialize for Vertx<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let checks = self.report.checks.iter();
        let checks: Vec<_> = match self.vietnamese {
            false => checks.map(VertxCheck::new).collect(),
            // The article's bodies have two checks; the third shows only when it is what matters.
            true => checks
                .filter(|check| check.name != super::NOT_DRAINING || check.result.is_err())
                .map(VertxCheck::vietnamese)
                .collect(),
        };
        let status = word(self.report.is_up());
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("status", status)?;
        map.serialize_entry("checks", &checks)?;
        map.serialize_entry("outcome", status)?;
        label(&mut map, self.wrong)?;
        map.end()
    }
}

/// The article's name of a check.
fn vietnamese(name: &str) -> &str {
    match name {
        super::DB => "csdl",
        super::BLOCKING => "csdl-chan",
        super::LOADED => "da-nap-xong",
        super::NOT_DRAINING => "khong-dang-dung",
        super::PROCESS => "tien-trinh",
        other => other,
    }
}

struct HealthJson<'a> {
    report: &'a Report,
    wrong: Option<&'a str>,
    now: SystemTime,
}

impl Serialize for HealthJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let degraded = self.report.checks.iter().any(|check| check.result.is_err());
        let status = match (self.report.is_up(), degraded) {
            (false, _) => "fail",
            (true, true) => "warn",
            (true, false) => "pass",
        };
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("status", status)?;
        map.serialize_entry("version", "1")?;
        map.serialize_entry("releaseId", env!("CARGO_PKG_VERSION"))?;
        map.serialize_entry("checks", &Measurements(self))?;
        label(&mut map, self.wrong)?;
        map.end()
    }
}

struct Measurements<'a>(&'a HealthJson<'a>);

impl Serialize for Measurements<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Measurement {
            component_type: &'static str,
            observed_value: u128,
            observed_unit: &'static str,
            status: &'static str,
            #[serde(skip_serializing_if = "Vec::is_empty")]
            affected_endpoints: Vec<&'static str>,
            time: String,
            #[serde(skip_serializing_if = "Option::is_none")]
            output: Option<String>,
        }
        let mut map = serializer.serialize_map(None)?;
        for check in &self.0.report.checks {
            let measurement = Measurement {
                component_type: if check.outside { "datastore" } else { "system" },
                observed_value: check.took.as_millis(),
                observed_unit: "ms",
                status: match (&check.result, check.critical) {
                    (Ok(()), _) => "pass",
                    (Err(_), true) => "fail",
                    (Err(_), false) => "warn",
                },
                affected_endpoints: match check.result.is_err() && check.name == super::DB {
                    true => vec!["/data"],
                    false => vec![],
                },
                time: humantime::format_rfc3339_millis(self.0.now - check.age).to_string(),
                output: check.result.as_ref().err().map(ToString::to_string),
            };
            map.serialize_entry(&format!("{}:responseTime", check.name), &[measurement])?;
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{DB, LOADED, NOT_DRAINING};
    use super::*;

    fn dependency(name: &str, critical: bool, result: Result<(), Failure>) -> Check {
        let (took, age) = (Duration::from_millis(3), Duration::from_millis(250));
        Check { name: name.to_owned(), result, critical, outside: true, took, age, breaker: None }
    }

    fn ready(db: Result<(), Failure>, critical: bool) -> Report {
        let own = |name| Check::own(name, Ok(()));
        Report { checks: vec![dependency(DB, critical, db), own(LOADED), own(NOT_DRAINING)] }
    }

    fn written(report: &Report, form: Form) -> String {
        String::from_utf8(report.write(form, None)).expect("UTF-8")
    }

    #[test]
    fn microprofile_names_each_check_with_its_data() {
        let down = ready(Err(Failure::Timeout(Duration::from_millis(800))), true);
        assert!(!down.is_up());
        assert_eq!(
            written(&down, Form::MicroProfile),
            concat!(
                r#"{"status":"DOWN","checks":[{"name":"db","status":"DOWN","data":{"critical":true,"ms":3,"age_ms":250,"#,
                r#""error":"timeout","timeout_ms":800}},"#,
                r#"{"name":"loaded","status":"UP","data":{"critical":true,"ms":0,"age_ms":0}},"#,
                r#"{"name":"not-draining","status":"UP","data":{"critical":true,"ms":0,"age_ms":0}}]}"#
            )
        );
    }

    #[test]
    fn an_optional_dependency_that_is_down_is_told_and_changes_nothing() {
        let degraded = ready(Err(Failure::said("connection refused")), false);
        assert!(degraded.is_up());
        let text = written(&degraded, Form::MicroProfile);
        assert!(text.starts_with(r#"{"status":"UP","checks":[{"name":"db","status":"DOWN","data":{"critical":false,"#));
        let text = written(&degraded, Form::HealthJson);
        assert!(text.starts_with(r#"{"status":"warn""#), "{text}");
        assert!(text.contains(r#""status":"warn","affectedEndpoints":["/data"]"#), "{text}");
    }

    #[test]
    fn the_articles_form_is_the_articles() {
        assert_eq!(
            written(&ready(Ok(()), true), Form::Vietnamese),
            r#"{"status":"UP","checks":[{"id":"csdl","status":"UP"},{"id":"da-nap-xong","status":"UP"}],"outcome":"UP"}"#
        );
        let mut stopping = ready(Err(Failure::said("refused")), true);
        stopping.checks[2].result = Err(Failure::said("stopping"));
        assert_eq!(
            written(&stopping, Form::Vietnamese),
            concat!(
                r#"{"status":"DOWN","checks":[{"id":"csdl","status":"DOWN","data":{"loi":"refused"}},"#,
                r#"{"id":"da-nap-xong","status":"UP"},"#,
                r#"{"id":"khong-dang-dung","status":"DOWN","data":{"loi":"stopping"}}],"outcome":"DOWN"}"#
            )
        );
    }

    #[test]
    fn the_other_forms_say_the_same_in_their_own_words() {
        let report = ready(Ok(()), true);
        let vertx = written(&report, Form::Vertx);
        assert!(vertx.starts_with(r#"{"status":"UP","checks":[{"id":"db","status":"UP","data":{"critical":true"#));
        assert!(vertx.ends_with(r#"],"outcome":"UP"}"#), "{vertx}");
        let health = written(&report, Form::HealthJson);
        assert!(health.starts_with(r#"{"status":"pass","version":"1""#), "{health}");
        assert!(health.contains(r#""db:responseTime":[{"componentType":"datastore","observedValue":3"#), "{health}");
        let failed = written(&ready(Err(Failure::Panicked), true), Form::HealthJson);
        assert!(failed.starts_with(r#"{"status":"fail""#), "{failed}");
        assert!(failed.contains(r#""output":"the check panicked""#), "{failed}");
    }

    #[test]
    fn a_wrong_answer_carries_its_label() {
        let body = ready(Ok(()), true).write(Form::MicroProfile, Some("why"));
        assert!(String::from_utf8(body).expect("UTF-8").ends_with(r#"],"wrong":"why"}"#));
    }

    #[test]
    fn the_largest_report_stays_under_what_a_kubelet_reads() {
        let name = "n".repeat(32);
        let long = Failure::said("\"".repeat(1000));
        let checks = (0..super::super::MAX_CHECKS + 2).map(|_| dependency(&name, true, Err(long.clone()))).collect();
        let report = Report { checks };
        for form in [Form::MicroProfile, Form::Vertx, Form::Vietnamese, Form::HealthJson] {
            let length = report.write(form, None).len();
            assert!(length < 10 * 1024, "{form:?}: {length}");
        }
    }
}
