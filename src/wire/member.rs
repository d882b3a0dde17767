//! Reads single members of a JSON object, each within its limits: what is beyond them is refused, never moved to them.

use std::fmt;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, de};
use serde_json::Value;

use crate::units::Span;

/// How much of a refused value an error repeats.
const SHOWN: usize = 80;

/// Reads a JSON object strictly into a type that knows its members and their limits; `expected` is said of
/// whatever is no object.
///
/// # Errors
/// One sentence that names the member, its value and its limit.
pub(crate) fn object<T: DeserializeOwned>(json: &[u8], expected: &str) -> Result<T, String> {
    // A struct could be read from an array too; nobody means that.
    if json.trim_ascii_start().first() != Some(&b'{') {
        return Err(expected.to_owned());
    }
    let mut reader = serde_json::Deserializer::from_slice(json);
    let read = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let path = error.path().to_string();
        let why = explained(json, error.inner());
        match path.as_str() {
            "." => why,
            _ => format!("{path}: {why}"),
        }
    })?;
    reader.end().map_err(|error| explained(json, &error))?;
    Ok(read)
}

/// The parser's sentence; where the text is no JSON at all, with what stands at that place.
fn explained(json: &[u8], error: &serde_json::Error) -> String {
    let text = error.to_string();
    if error.is_data() {
        let place = format!(" at line {} column {}", error.line(), error.column());
        return text.strip_suffix(&place).unwrap_or(&text).to_owned();
    }
    let line = json.split(|byte| *byte == b'\n').nth(error.line().saturating_sub(1)).unwrap_or_default();
    let from = line.get(error.column().saturating_sub(1)..).unwrap_or_default();
    let shown: String = String::from_utf8_lossy(from).chars().take(20).collect();
    if shown.is_empty() { format!("no JSON: {text}") } else { format!("{shown:?} is no JSON: {text}") }
}

/// A member that may be absent or `null`, read by `parse`.
pub(crate) fn optional<'de, D, T>(
    deserializer: D,
    parse: impl FnOnce(&Value) -> Result<T, String>,
) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
{
    let value = Option::<Value>::deserialize(deserializer)?;
    value.as_ref().map(parse).transpose().map_err(de::Error::custom)
}

/// A member that may be absent, but is something where it is given.
pub(crate) fn required<'de, D, T>(
    deserializer: D,
    parse: impl FnOnce(&Value) -> Result<T, String>,
) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
{
    parse(&Value::deserialize(deserializer)?).map_err(de::Error::custom)
}

pub(crate) fn number(value: &Value, min: f64, max: f64) -> Result<f64, String> {
    value
        .as_f64()
        .filter(|number| (min..=max).contains(number))
        .ok_or_else(|| format!("{} must be a number from {min} to {max}", Shown(value)))
}

pub(crate) fn whole(value: &Value, min: u64, max: u64) -> Result<u64, String> {
    value
        .as_u64()
        .filter(|number| (min..=max).contains(number))
        .ok_or_else(|| format!("{} must be a whole number from {min} to {max}", Shown(value)))
}

pub(crate) fn span(value: &Value, min: Span, max: Span) -> Result<Span, String> {
    let refused = |why: String| format!("{} must be a duration from \"{min}\" to \"{max}\"{why}", Shown(value));
    let text = value.as_str().ok_or_else(|| refused(String::new()))?;
    let span: Span = text.parse().map_err(|error| refused(format!(" ({error})")))?;
    if span < min || span > max {
        return Err(refused(String::new()));
    }
    Ok(span)
}

/// A value as an error shows it: the whole of a short one.
pub(crate) struct Shown<'a>(pub(crate) &'a Value);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.to_string();
        match text.char_indices().nth(SHOWN) {
            Some((end, _)) => write!(f, "{}…", &text[..end]),
            None => f.write_str(&text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn limits_are_part_of_the_range() {
        assert_eq!(number(&json!(0), 0.0, 1.0), Ok(0.0));
        assert_eq!(number(&json!(1), 0.0, 1.0), Ok(1.0));
        assert_eq!(whole(&json!(3), 3, 3), Ok(3));
        assert_eq!(span(&json!("1h"), Span::millis(1), Span::secs(3600)), Ok(Span::secs(3600)));
    }

    #[test]
    fn a_refusal_repeats_the_value_and_names_the_limit() {
        for (refused, text) in [
            (number(&json!(2), 0.0, 1.0).map(|_| ()), "2 must be a number from 0 to 1"),
            (number(&json!(-0.1), 0.0, 1.0).map(|_| ()), "-0.1 must be a number from 0 to 1"),
            (number(&json!("0.3"), 0.0, 1.0).map(|_| ()), "\"0.3\" must be a number from 0 to 1"),
            (whole(&json!(2.5), 1, 9).map(|_| ()), "2.5 must be a whole number from 1 to 9"),
            (whole(&json!(-1), 1, 9).map(|_| ()), "-1 must be a whole number from 1 to 9"),
            (
                span(&json!(200), Span::secs(0), Span::secs(60)).map(|_| ()),
                "200 must be a duration from \"0s\" to \"1m\"",
            ),
            (
                span(&json!("61s"), Span::secs(0), Span::secs(60)).map(|_| ()),
                "\"61s\" must be a duration from \"0s\" to \"1m\"",
            ),
        ] {
            assert_eq!(refused.expect_err(text), text);
        }
    }

    #[test]
    fn a_long_value_is_not_repeated_whole() {
        let error = number(&json!("ä".repeat(5000)), 0.0, 1.0).expect_err("no number");
        assert!(error.len() < 300 && error.contains('…'), "{error}");
    }
}
