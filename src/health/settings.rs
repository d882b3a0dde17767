//! How a node is checked.

use clap::Args;
use serde::{Serialize, Serializer};
use thiserror::Error;

use super::database;
use super::dependency::Spec;
use super::pace::Limits;
use super::refresher::CheckMode;
use super::{DB, DOWNSTREAM, LOADED, MAX_CHECKS, NOT_DRAINING, PROCESS};
use crate::units::{Span, count, span};

#[derive(Args, Clone, Debug, Serialize)]
#[command(next_help_heading = "Probes")]
#[group(skip)]
pub struct Settings {
    /// A dependency that /ready asks, as NAME=URL; can be given several times. ;optional after it: told, but does not
    /// decide. postgres://, redis://, http://, https://, tcp://host:port; or a simulated one: sim:, sim:down, sim:hang,
    /// sim:slow?ms=300, sim:flaky?p=0.3. The one called db is also what /data uses and /db toggles; db=sim: unless given
    #[arg(long, value_name = "NAME=URL")]
    #[serde(serialize_with = "effective")]
    pub check: Vec<Spec>,
    /// Each dependency is asked this often while it is up
    #[arg(long, default_value_t = Span::secs(1), value_name = "DURATION", value_parser = span(Span::millis(10), Span::secs(3600)))]
    pub check_interval: Span,
    /// A dependency that has not answered after this long is down; below the probe's own time-out
    #[arg(long, default_value_t = Span::millis(800), value_name = "DURATION", value_parser = span(Span::millis(1), Span::secs(60)))]
    pub check_timeout: Span,
    /// When the dependencies are asked
    #[arg(long, default_value = "background", value_name = "WHEN")]
    pub check_mode: CheckMode,
    /// The node says that it is still loading for this long, or until /startup?done=true
    #[arg(long, default_value_t = Span::secs(0), value_name = "DURATION", value_parser = span(Span::secs(0), Span::secs(3600)))]
    pub startup_delay: Span,
    /// A worker thread that has not moved for this long fails /live
    #[arg(long, default_value_t = Span::secs(5), value_name = "DURATION", value_parser = span(Span::millis(100), Span::secs(3600)))]
    pub heartbeat_limit: Span,
    /// Connections to the database that /data may use at a time
    #[arg(long, default_value_t = 10, value_name = "N", value_parser = count(1, 1000))]
    pub db_pool: usize,
    /// How long /data waits for one of them
    #[arg(long, default_value_t = Span::secs(1), value_name = "DURATION", value_parser = span(Span::secs(0), Span::secs(60)))]
    pub db_wait: Span,
    /// How long its query may then take
    #[arg(long, default_value_t = Span::secs(5), value_name = "DURATION", value_parser = span(Span::millis(1), Span::secs(3600)))]
    pub db_timeout: Span,
    /// Be ready only while the next node's /ready says so: one dead node then takes out all above it
    #[arg(long, action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true", default_value_t = false, value_name = "BOOL")]
    pub ready_follows_downstream: bool,
}

/// Why the checks cannot be made as configured.
#[derive(Debug, Error)]
pub enum CheckError {
    #[error("--check {0}: the name is given twice")]
    Twice(String),
    #[error("--check {0}: the name is that of a check of the node's own")]
    Taken(String),
    #[error("--check: {0} dependencies, at most {MAX_CHECKS} are allowed")]
    Many(usize),
    #[error("--check {0}: {1}")]
    Unusable(String, String),
}

impl Settings {
    pub(super) fn limits(&self) -> Limits {
        Limits { interval: *self.check_interval, timeout: *self.check_timeout }
    }

    pub(super) fn pool(&self) -> database::Limits {
        database::Limits { connections: self.db_pool, wait: self.db_wait, timeout: self.db_timeout }
    }

    /// The dependencies in their order, the database among them.
    ///
    /// # Errors
    /// If their names do not tell them apart, or there are too many.
    pub(super) fn specs(&self) -> Result<Vec<Spec>, CheckError> {
        let specs = with_db(&self.check);
        if specs.len() > MAX_CHECKS {
            return Err(CheckError::Many(specs.len()));
        }
        for (place, spec) in specs.iter().enumerate() {
            if [LOADED, NOT_DRAINING, PROCESS, DOWNSTREAM].contains(&spec.name.as_str()) {
                return Err(CheckError::Taken(spec.name.clone()));
            }
            if specs[..place].iter().any(|earlier| earlier.name == spec.name) {
                return Err(CheckError::Twice(spec.name.clone()));
            }
        }
        Ok(specs)
    }
}

/// A node always has a database: /data and its lessons work without any setting.
fn with_db(specs: &[Spec]) -> Vec<Spec> {
    let mut specs = specs.to_vec();
    if !specs.iter().any(|spec| spec.name == DB) {
        specs.insert(0, "db=sim:".parse().expect("a dependency"));
    }
    specs
}

fn effective<S: Serializer>(specs: &[Spec], serializer: S) -> Result<S::Ok, S::Error> {
    with_db(specs).serialize(serializer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Flags {
        #[command(flatten)]
        settings: Settings,
    }

    fn settings(flags: &[&str]) -> Settings {
        Flags::try_parse_from(std::iter::once(&"x").chain(flags)).expect("good flags").settings
    }

    fn specs(flags: &[&str]) -> Result<Vec<String>, String> {
        let specs = settings(flags).specs().map_err(|error| error.to_string())?;
        Ok(specs.iter().map(Spec::to_string).collect())
    }

    #[test]
    fn there_is_always_a_database() {
        assert_eq!(specs(&[]).expect("good"), ["db=sim:up"]);
        assert_eq!(specs(&["--check", "mq=tcp://h:1;optional"]).expect("good"), ["db=sim:up", "mq=tcp://h:1;optional"]);
        assert_eq!(
            specs(&["--check", "mq=tcp://h:1", "--check", "db=sim:down"]).expect("good"),
            ["mq=tcp://h:1", "db=sim:down"]
        );
        let json = serde_json::to_value(settings(&[])).expect("JSON");
        assert_eq!(json["check"], serde_json::json!(["db=sim:up"]));
    }

    #[test]
    fn names_that_cannot_be_told_apart_are_refused() {
        assert_eq!(
            specs(&["--check", "a=sim:", "--check", "a=sim:"]).expect_err("refused"),
            "--check a: the name is given twice"
        );
        for taken in ["loaded", "not-draining", "process", "downstream"] {
            let error = specs(&["--check", &format!("{taken}=sim:")]).expect_err(taken);
            assert!(error.starts_with(&format!("--check {taken}: ")), "{error}");
        }
        let many: Vec<String> = (0..MAX_CHECKS).map(|number| format!("--check=d{number}=sim:")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert_eq!(specs(&many).expect_err("refused"), "--check: 13 dependencies, at most 12 are allowed");
    }
}
