//! How a node answers.

use std::fmt;
use std::str::FromStr;

use axum::http::StatusCode;
use clap::Args;
use serde::Serialize;

use crate::units::count;

#[derive(Args, Clone, Debug, Serialize)]
#[command(next_help_heading = "Answer")]
#[group(skip)]
pub struct Settings {
    /// The node's name in its answers; else the host name
    #[arg(long, default_value = "", hide_default_value = true, value_name = "NAME")]
    pub name: String,
    /// When the next node fails: degrade (200 with the reason in msg), propagate (the status Envoy would give), map=CODE
    #[arg(long, default_value = "degrade", value_name = "HOW")]
    pub on_failure: OnFailure,
    /// The longest cascade: the node at this position calls no further
    #[arg(long, default_value_t = 32, value_name = "N", value_parser = count(1, 64))]
    pub max_depth: usize,
    /// Start a W3C trace where a request brings none
    #[arg(long, action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true", default_value_t = false, value_name = "BOOL")]
    pub trace: bool,
    /// Whatever changes the node (never a probe) then needs the header Authorization: Bearer TOKEN
    #[arg(long, value_name = "TOKEN")]
    pub control_token: Option<Token>,
}

/// A secret that is compared and never shown.
#[derive(Clone)]
pub struct Token(String);

impl Token {
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Token {
    type Err = String;

    fn from_str(text: &str) -> Result<Token, String> {
        let plain = !text.is_empty() && text.len() <= 256 && text.bytes().all(|byte| byte.is_ascii_graphic());
        if plain { Ok(Token(text.to_owned())) } else { Err("must be 1 to 256 visible ASCII characters".to_owned()) }
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl Serialize for Token {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str("***")
    }
}

/// What becomes of a failed downstream call. Its text is `degrade`, `propagate` or `map=CODE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFailure {
    Degrade,
    Propagate,
    Map(StatusCode),
}

impl FromStr for OnFailure {
    type Err = String;

    fn from_str(text: &str) -> Result<OnFailure, String> {
        match text.split_once('=') {
            None if text == "degrade" => Ok(OnFailure::Degrade),
            None if text == "propagate" => Ok(OnFailure::Propagate),
            Some(("map", code)) => match code.parse().ok().filter(|code| (200..=599).contains(code)) {
                // 204 and 304 have no body, and the body is what tells the reason.
                Some(204 | 205 | 304) | None => {
                    Err(format!("map={code}: the code must be from 200 to 599 and allow a body"))
                }
                Some(code) => StatusCode::from_u16(code).map(OnFailure::Map).map_err(|error| error.to_string()),
            },
            _ => Err("must be degrade, propagate or map=CODE".to_owned()),
        }
    }
}

impl fmt::Display for OnFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OnFailure::Degrade => f.write_str("degrade"),
            OnFailure::Propagate => f.write_str("propagate"),
            OnFailure::Map(status) => write!(f, "map={}", status.as_u16()),
        }
    }
}

impl Serialize for OnFailure {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn on_failure_reads_what_it_writes_and_refuses_the_rest() {
        for text in ["degrade", "propagate", "map=502", "map=200"] {
            assert_eq!(text.parse::<OnFailure>().expect(text).to_string(), text);
        }
        for text in ["", "Degrade", "map", "map=", "map=99", "map=199", "map=204", "map=600", "map=5o2", "drop"] {
            assert!(text.parse::<OnFailure>().is_err(), "{text}");
        }
    }
}
