//! Quantities as people write them: `300ms`, `1s`, `2m`. Knows no setting; each setting brings its own limits.

use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize, de};
use utoipa::openapi::{ObjectBuilder, RefOr, Schema, Type};
use utoipa::{PartialSchema, ToSchema};

/// A span of time, written `300ms`, `1s`, `2m`, `1h`; a bare number is refused, as its unit would be a guess.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub Duration);

impl Span {
    pub const fn millis(ms: u64) -> Span {
        Span(Duration::from_millis(ms))
    }

    pub const fn secs(secs: u64) -> Span {
        Span(Duration::from_secs(secs))
    }
}

impl Deref for Span {
    type Target = Duration;

    fn deref(&self) -> &Duration {
        &self.0
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        humantime::format_duration(self.0).fmt(f)
    }
}

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Span, String> {
        // `0` needs no unit: it is the same time in all of them.
        if text == "0" {
            return Ok(Span::default());
        }
        humantime::parse_duration(text)
            .map(Span)
            .map_err(|error| format!("{error}; write a duration such as 300ms, 1s or 2m"))
    }
}

impl Serialize for Span {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Span, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(|error| de::Error::custom(format!("{text:?}: {error}")))
    }
}

impl PartialSchema for Span {
    fn schema() -> RefOr<Schema> {
        let text =
            ObjectBuilder::new().schema_type(Type::String).pattern(Some(r"^(0|([0-9]+(\.[0-9]+)?(ms|s|m|h))+)$"));
        text.description(Some("A duration, as 300ms, 1s, 2m or 1h")).examples(["300ms"]).into()
    }
}

impl ToSchema for Span {
    fn name() -> Cow<'static, str> {
        "Duration".into()
    }
}

/// A parser for a flag that takes a duration from `min` to `max`, both included.
///
/// # Errors
/// The parser's error names the limit that the value breaks.
pub fn span(min: Span, max: Span) -> impl Fn(&str) -> Result<Span, String> + Clone + Send + Sync + 'static {
    move |text| within(text.parse()?, min, max)
}

/// A parser for a flag that takes a whole number from `min` to `max`, both included.
///
/// # Errors
/// The parser's error names the limit that the value breaks.
pub fn count(min: usize, max: usize) -> impl Fn(&str) -> Result<usize, String> + Clone + Send + Sync + 'static {
    move |text| {
        let number = text.parse().map_err(|_| format!("must be a whole number from {min} to {max}"))?;
        within(number, min, max)
    }
}

fn within<T: PartialOrd + fmt::Display>(value: T, min: T, max: T) -> Result<T, String> {
    if value < min || value > max {
        return Err(format!("must be from {min} to {max}"));
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_reads_and_writes_the_same_text() {
        for text in ["300ms", "1s", "2m", "1h", "9s 800ms"] {
            assert_eq!(text.parse::<Span>().expect(text).to_string(), text);
        }
        assert_eq!("0".parse(), Ok(Span::default()));
    }

    #[test]
    fn a_span_may_be_written_as_go_writes_it() {
        for (text, same) in [("1.5s", "1s 500ms"), ("0.25ms", "250us"), ("1.5h", "1h 30m"), ("1h30m", "1h 30m")] {
            assert_eq!(text.parse::<Span>().expect(text).to_string(), same);
        }
    }

    #[test]
    fn a_span_without_a_unit_or_with_a_sign_is_refused() {
        for text in ["10", "-1s", "soon", "", "1 fortnight", "99999999999999999999s", "1.5", "-1.5s", "1.5x"] {
            let error = text.parse::<Span>().expect_err(text);
            assert!(error.contains("300ms"), "{text}: {error}");
        }
    }

    #[test]
    fn a_value_beyond_its_limit_is_refused_and_the_limit_named() {
        let parse = span(Span::millis(1), Span::secs(60));
        assert_eq!(parse("61s").expect_err("out of range"), "must be from 1ms to 1m");
        assert_eq!(parse("0").expect_err("out of range"), "must be from 1ms to 1m");
        assert_eq!(count(1, 64)("65").expect_err("out of range"), "must be from 1 to 64");
        assert_eq!(count(1, 64)("-1").expect_err("out of range"), "must be a whole number from 1 to 64");
    }
}
