//! The command line: what can be asked for. Parses; runs nothing.

use std::ffi::OsString;
use std::io::IsTerminal as _;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::secret::redacted;
use crate::settings::{Environment, SECRETS, Settings};
use crate::{health, lab, load, stub, up};

/// Chain it, load it, break it, and watch what time-outs, pools, breakers and probes do.
///
/// Without a command it is one node: `rest-cascade` = `rest-cascade serve`.
#[derive(Debug, Parser)]
#[command(name = "rest-cascade", version, max_term_width = 120)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
#[expect(clippy::large_enum_variant, reason = "made once, at start")]
pub enum Command {
    /// One node of a cascade (the default): answers GET /, calls the next node if it has a target
    Serve(Settings),
    /// A cascade on this machine: N nodes as child processes, chained
    Up(up::Settings),
    /// Load: a closed loop as ab's, or an open one as Gatling's; complete, partial and failed answers counted apart
    Stress(Box<load::stress::Settings>),
    /// A stand-in for WireMock: its JSON mappings, its worker threads, its faults
    Stub(Box<stub::Settings>),
    /// An article's experiment replayed on this machine, with its own figures beside ours
    Lab(lab::Settings),
    /// Exit 0 if a node's probe answers 200, else 1: for HEALTHCHECK and exec probes in an image without a shell
    Healthcheck(health::ask::Settings),
}

/// Why nothing is run: what to print, where, and the exit code.
#[derive(Debug)]
pub struct Refusal {
    pub text: String,
    pub code: u8,
}

/// Parses the command line over the environment. The second part holds warnings about the environment.
///
/// # Errors
/// A [`Refusal`] with code 0 for `--help` and `--version`, with code 2 and one line for wrong use.
pub fn parse(args: &[OsString], environment: &Environment) -> Result<(Command, Vec<String>), Refusal> {
    let plain = Cli::command();
    let mut warnings = environment.warnings.clone();
    warnings.extend(environment.unknown(&plain));
    environment
        .apply(plain)
        .try_get_matches_from(with_default_command(args))
        .and_then(|matches| Cli::from_arg_matches(&matches))
        .map(|cli| (cli.command, warnings))
        .map_err(|error| refusal(&error, environment))
}

/// `rest-cascade --port 80` means `rest-cascade serve --port 80`: the image is a drop-in for others without commands.
fn with_default_command(args: &[OsString]) -> Vec<OsString> {
    let mut args = args.to_vec();
    let first = args.get(1).and_then(|arg| arg.to_str());
    let about_all = matches!(first, Some("--help" | "-h" | "--version" | "-V"));
    if args.len() < 2 || (first.is_some_and(|arg| arg.starts_with('-')) && !about_all) {
        args.insert(1.min(args.len()), "serve".into());
    }
    args
}

fn refusal(error: &clap::Error, environment: &Environment) -> Refusal {
    use clap::error::{ContextKind, ContextValue};
    if !error.use_stderr() {
        let text = error.render();
        // Colours are for people, not for pipes.
        let text = if std::io::stdout().is_terminal() { text.ansi().to_string() } else { text.to_string() };
        return Refusal { text, code: 0 };
    }
    let text_of = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.as_str(),
        _ => "",
    };
    let (arg, value) = (text_of(ContextKind::InvalidArg), text_of(ContextKind::InvalidValue));
    let mut rendered = error.render().to_string();
    let long = arg.trim_start_matches('-').split([' ', '=']).next().unwrap_or_default();
    if !value.is_empty() {
        let shown = match SECRETS.contains(&long) {
            // Also one that is refused: it is the right one but for a slip of the pen.
            true => "***".to_owned(),
            // On one line, also where it is JSON of several, and without the password that it may hold.
            false => redacted(&value.split_whitespace().collect::<Vec<_>>().join(" ")),
        };
        rendered = rendered.replace(&format!("'{value}'"), &format!("'{shown}'"));
    }
    let mut lines = rendered.lines();
    let mut line = lines.next().unwrap_or("error: wrong use").to_owned();
    if let Some(possible) = lines.find(|line| line.contains("[possible values: ")) {
        line = format!("{line} {}", possible.trim());
    }
    // A value that came from the environment is named by its variable: the flag was never typed.
    if let Some((name, found)) = environment.find(long)
        && (found == value || found.split_whitespace().any(|part| part == value))
    {
        line.push_str(&format!(" (from {name})"));
    }
    Refusal { text: line + "\n", code: 2 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_with(args: &[&str], env: &[(&str, &str)]) -> Result<(Command, Vec<String>), Refusal> {
        let args: Vec<OsString> = std::iter::once("rest-cascade").chain(args.iter().copied()).map(Into::into).collect();
        let env = Environment::new(env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        parse(&args, &env)
    }

    fn settings(args: &[&str], env: &[(&str, &str)]) -> Settings {
        match parse_with(args, env) {
            Ok((Command::Serve(settings), _)) => settings,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn no_command_is_serve_with_or_without_flags() {
        assert_eq!(settings(&[], &[]).server.port, 8080);
        assert_eq!(settings(&["--port", "81"], &[]).server.port, 81);
        assert_eq!(settings(&["serve", "--port", "82"], &[]).server.port, 82);
    }

    #[test]
    fn a_flag_wins_over_the_environment() {
        assert_eq!(settings(&[], &[("PORT", "81")]).server.port, 81);
        assert_eq!(settings(&["--port", "82"], &[("PORT", "81")]).server.port, 82);
    }

    #[test]
    fn wrong_values_give_one_line_that_names_value_limit_and_place() {
        for (args, env, parts) in [
            (&[][..], &[("PORT", "abc")][..], &["'abc'", "--port", "(from PORT)"][..]),
            (&[], &[("PORT", "70000")], &["70000", "--port", "65535", "(from PORT)"]),
            (&["--port", "-1"], &[], &["-1"]),
            (&[], &[("targetUri", "http://a b")], &["'http://a b'", "--target", "(from targetUri)"]),
            (&["--target", "http://u:p@a b"], &[], &["'http://***@a b'", "--target"]),
            (
                &[],
                &[("REST_CASCADE_TIMEOUT", "soon")],
                &["'soon'", "--timeout", "300ms", "(from REST_CASCADE_TIMEOUT)"],
            ),
            (&["--timeout", "0"], &[], &["'0'", "--timeout", "must be from 1ms to 1h"]),
            (&["--faults", "{\"error_rate\":2}"], &[], &["--faults", "error_rate: 2 ", "from 0 to 1"]),
            (
                &[],
                &[("REST_CASCADE_FAULTS", "{\n  \"status\": 99\n}")],
                &["--faults", "status: 99 ", "from 200 to 599", "(from REST_CASCADE_FAULTS)"],
            ),
            (&["--slot", "a b"], &[], &["'a b'", "--slot", "1 to 64"]),
            (&["--target", "http://u:p@a b"], &[], &["'http://***@a b'", "--target"]),
            (&["--control-token", "s3cret one"], &[], &["'***'", "--control-token", "1 to 256"]),
            (&["--check", "db=mysql://u:p@h"], &[], &["'db=mysql://***@h'", "--check", "\"mysql\""]),
            (
                &[],
                &[("REST_CASCADE_CHECK", "db=sim: x=tcp://h")],
                &["'x=tcp://h'", "port", "(from REST_CASCADE_CHECK)"],
            ),
            (&["--log-format", "xml"], &[], &["'xml'", "--log-format", "text, json"]),
            (&[], &[("REST_CASCADE_LOG_LEVEL", "inof")], &["'inof'", "debug", "(from REST_CASCADE_LOG_LEVEL)"]),
            (&["--nonsense"], &[], &["--nonsense"]),
            (&["launch"], &[], &["launch"]),
        ] {
            let refusal = parse_with(args, env).expect_err("refused");
            assert_eq!(refusal.code, 2);
            assert_eq!(refusal.text.lines().count(), 1, "{}", refusal.text);
            for part in parts {
                assert!(refusal.text.contains(part), "{:?} lacks {part}", refusal.text);
            }
        }
    }

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }
}
