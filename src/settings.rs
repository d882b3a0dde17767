//! One node's settings: flattens what each module owns, and reads the environment.
//!
//! A flag `--drain-delay` has the environment name `REST_CASCADE_DRAIN_DELAY`; a few have the older names that
//! container images and the shell use. A flag on the command line wins.

use std::collections::BTreeMap;

use clap::{Arg, ArgAction, Args, Command};
use serde::Serialize;

use crate::secret::redacted;
use crate::{downstream, fault, health, server, telemetry, web};

/// Everything that `serve` can be told. Shown whole at `/config` and on one line at start, secrets hidden.
#[derive(Args, Clone, Debug, Serialize)]
#[group(skip)]
pub struct Settings {
    #[command(flatten)]
    #[serde(flatten)]
    pub server: server::Settings,
    #[command(flatten)]
    #[serde(flatten)]
    pub web: web::Settings,
    #[command(flatten)]
    #[serde(flatten)]
    pub downstream: downstream::Settings,
    #[command(flatten)]
    #[serde(flatten)]
    pub health: health::Settings,
    #[command(flatten)]
    #[serde(flatten)]
    pub fault: fault::Settings,
    #[command(flatten)]
    #[serde(flatten)]
    pub telemetry: telemetry::Settings,
    /// Stop when the process with this id ends; `up` sets it, so that no node outlives it
    #[arg(long, value_name = "PID", hide = true)]
    #[serde(skip)]
    pub parent: Option<i32>,
}

/// Further environment names of a flag, after `REST_CASCADE_…`.
const OTHER_NAMES: [(&str, &[&str]); 3] =
    [("target", &["targetUri", "TARGET_URI"]), ("port", &["PORT"]), ("name", &["HOSTNAME"])];

/// Kubernetes injects `NAME_PORT=tcp://…`, `NAME_SERVICE_HOST` and more for a Service called NAME into every pod
/// beside it. A Service called `rest-cascade` must not configure us.
const INJECTED: [&str; 2] = ["tcp://", "udp://"];

/// Flags whose whole value is a secret.
pub const SECRETS: [&str; 2] = ["control-token", "header"];

const PREFIX: &str = "REST_CASCADE_";

/// The process's environment, trimmed; empty values are unset. Passed in, so that tests hold it.
#[derive(Debug, Default)]
pub struct Environment {
    values: BTreeMap<String, String>,
    /// One sentence for each value that was not taken as it stood.
    pub warnings: Vec<String>,
}

impl Environment {
    pub fn new(variables: impl IntoIterator<Item = (String, String)>) -> Environment {
        let mut environment = Environment::default();
        for (name, value) in variables {
            let ours = name.starts_with(PREFIX) || OTHER_NAMES.iter().any(|(_, names)| names.contains(&name.as_str()));
            let trimmed = value.trim();
            if !ours || trimmed.is_empty() {
                continue;
            }
            if name.ends_with("PORT") && INJECTED.iter().any(|scheme| trimmed.starts_with(scheme)) {
                environment.warn(format!("{name}={trimmed} ignored: Kubernetes injects it for a Service"));
                continue;
            }
            let bare = unquoted(trimmed);
            if bare != trimmed {
                environment.warn(format!("{name}: the quotes around its value are not part of it, removed"));
            }
            if !bare.is_empty() {
                environment.values.insert(name, bare.to_owned());
            }
        }
        environment
    }

    fn warn(&mut self, sentence: String) {
        self.warnings.push(sentence);
    }

    /// Gives each flag of `command` its value from the environment as a default, and names the variable in the help.
    pub fn apply(&self, command: Command) -> Command {
        let command = command.mut_args(|arg| self.apply_to(arg));
        command.mut_subcommands(|sub| self.apply(sub))
    }

    fn apply_to(&self, arg: Arg) -> Arg {
        let Some(long) = arg.get_long().map(str::to_owned) else { return arg };
        if matches!(arg.get_action(), ArgAction::Help | ArgAction::Version) || arg.is_hide_set() {
            return arg;
        }
        let names = names(&long);
        let shown = arg.get_help().map(|help| format!("{help} [env: {}]", names.join(", "))).unwrap_or_default();
        let many = matches!(arg.get_action(), ArgAction::Append);
        let arg = arg.help(shown);
        // The help shows defaults, and this one came with a password in it.
        let secret = |value: &str| SECRETS.contains(&long.as_str()) || redacted(value) != value;
        let arg = match self.find(&long) {
            Some((_, value)) if secret(value) => arg.hide_default_value(true),
            _ => arg,
        };
        match self.find(&long) {
            Some((_, value)) if many => {
                arg.default_values(value.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
            }
            Some((_, value)) => arg.default_value(value.to_owned()),
            None => arg,
        }
    }

    /// The variable that sets the flag `long`, and its value.
    pub fn find(&self, long: &str) -> Option<(String, &str)> {
        names(long).into_iter().find_map(|name| {
            let value = self.values.get(&name)?;
            Some((name, value.as_str()))
        })
    }

    /// Variables with our prefix that set nothing: most likely a slip of the pen, so they are told.
    pub fn unknown(&self, command: &Command) -> Vec<String> {
        let mut known = Vec::new();
        collect_names(command, &mut known);
        let injected = |rest: &str| {
            rest.starts_with("SERVICE_") || rest.starts_with("PORT_") // as Kubernetes injects
        };
        self.values
            .keys()
            .filter(|name| name.strip_prefix(PREFIX).is_some_and(|rest| !injected(rest)))
            .filter(|name| !known.contains(name))
            .map(|name| format!("{name} is not a setting of this program, ignored"))
            .collect()
    }
}

fn collect_names(command: &Command, known: &mut Vec<String>) {
    known.extend(command.get_arguments().filter_map(Arg::get_long).flat_map(names));
    for sub in command.get_subcommands() {
        collect_names(sub, known);
    }
}

fn names(long: &str) -> Vec<String> {
    let own = format!("{PREFIX}{}", long.replace('-', "_").to_ascii_uppercase());
    let others = OTHER_NAMES.iter().find(|(flag, _)| *flag == long).map_or(&[][..], |(_, names)| names);
    std::iter::once(own).chain(others.iter().map(|name| (*name).to_owned())).collect()
}

/// Without one pair of quotes around it: Compose's list syntax passes them on.
fn unquoted(value: &str) -> &str {
    ['"', '\''].into_iter().find_map(|quote| value.strip_prefix(quote)?.strip_suffix(quote)).map_or(value, str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(variables: &[(&str, &str)]) -> Environment {
        Environment::new(variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())))
    }

    #[test]
    fn values_are_trimmed_unquoted_and_unset_when_empty() {
        let env = environment(&[("targetUri", " '\"http://u:1\"' "), ("HOSTNAME", "  "), ("PORT", "\"\"")]);
        assert_eq!(env.find("target"), Some(("targetUri".to_owned(), "\"http://u:1\"")));
        assert_eq!(env.find("name"), None);
        assert_eq!(env.find("port"), None);
        assert_eq!(env.warnings.len(), 2, "{:?}", env.warnings);
    }

    #[test]
    fn what_kubernetes_injects_for_a_service_is_ignored_with_one_warning() {
        let env = environment(&[("PORT", "tcp://10.0.0.1:80"), ("REST_CASCADE_PORT", "tcp://10.0.0.1:80")]);
        assert_eq!(env.find("port"), None);
        assert_eq!(env.warnings.len(), 2);
        assert!(env.warnings[0].starts_with("PORT=tcp://10.0.0.1:80 ignored"), "{:?}", env.warnings);
        let env = environment(&[("REST_CASCADE_SERVICE_HOST", "10.0.0.1"), ("REST_CASCADE_PORT_80_TCP_PORT", "80")]);
        assert!(env.unknown(&Command::new("x")).is_empty());
    }

    #[test]
    fn our_own_name_wins_over_the_older_ones() {
        let env = environment(&[("PORT", "1"), ("REST_CASCADE_PORT", "2"), ("TARGET_URI", "a"), ("targetUri", "b")]);
        assert_eq!(env.find("port"), Some(("REST_CASCADE_PORT".to_owned(), "2")));
        assert_eq!(env.find("target"), Some(("targetUri".to_owned(), "b")));
    }

    #[test]
    fn a_misspelt_variable_is_told() {
        let env = environment(&[("REST_CASCADE_TIMOUT", "1s")]);
        assert_eq!(env.unknown(&Command::new("x")), ["REST_CASCADE_TIMOUT is not a setting of this program, ignored"]);
    }
}
