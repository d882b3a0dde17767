//! How long an injected delay is: always the same, or drawn anew for each request. Draws nothing.

use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::openapi::schema::AdditionalProperties;
use utoipa::openapi::{ArrayBuilder, ObjectBuilder, OneOfBuilder, Ref, RefOr, Schema, Type};
use utoipa::{PartialSchema, ToSchema};

use super::member::{self, Shown};
use crate::units::Span;

/// No delay is longer, however it is drawn.
pub const MAX_DELAY: Span = Span::secs(3600);
/// At a sigma of 3, one draw in a hundred is a thousand times the median.
const MAX_SIGMA: f64 = 3.0;

/// `"200ms"`, `{"uniform":["100ms","300ms"]}` or `{"lognormal":{"median":"90ms","sigma":0.4}}`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Delay {
    /// Any time between the two, both included.
    Uniform(Span, Span),
    /// As measured latencies often are: half of the draws below the median, a long tail above it. A draw beyond
    /// [`MAX_DELAY`] is made again.
    Lognormal { median: Span, sigma: f64 },
    #[serde(untagged)]
    Fixed(Span),
}

impl PartialSchema for Delay {
    fn schema() -> RefOr<Schema> {
        let span = || Ref::from_schema_name(Span::name());
        let sigma = ObjectBuilder::new().schema_type(Type::Number).minimum(Some(0)).maximum(Some(MAX_SIGMA));
        let shape = ObjectBuilder::new()
            .property("median", span())
            .property("sigma", sigma)
            .required("median")
            .required("sigma")
            .additional_properties(Some(AdditionalProperties::FreeForm(false)));
        let range = ArrayBuilder::new().items(span()).min_items(Some(2)).max_items(Some(2));
        let kind = |name: &str, value: RefOr<Schema>| {
            let object = ObjectBuilder::new().property(name, value).required(name);
            object.additional_properties(Some(AdditionalProperties::FreeForm(false)))
        };
        OneOfBuilder::new()
            .item(span())
            .item(kind("uniform", range.into()))
            .item(kind("lognormal", shape.into()))
            .into()
    }
}

impl ToSchema for Delay {
    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        schemas.push((Span::name().into_owned(), Span::schema()));
    }
}

impl Delay {
    pub(super) fn read(value: &Value) -> Result<Delay, String> {
        match value {
            Value::String(_) => span(value).map(Delay::Fixed),
            Value::Object(members) if members.len() == 1 => match members.iter().next() {
                Some((kind, range)) if kind == "uniform" => uniform(range).map_err(|why| format!("uniform: {why}")),
                Some((kind, shape)) if kind == "lognormal" => {
                    lognormal(shape).map_err(|why| format!("lognormal: {why}"))
                }
                _ => Err(unknown(value)),
            },
            _ => Err(unknown(value)),
        }
    }
}

fn unknown(value: &Value) -> String {
    format!(
        r#"{} must be "200ms", {{"uniform":["100ms","300ms"]}} or {{"lognormal":{{"median":"90ms","sigma":0.4}}}}"#,
        Shown(value)
    )
}

fn span(value: &Value) -> Result<Span, String> {
    member::span(value, Span::secs(0), MAX_DELAY)
}

fn uniform(range: &Value) -> Result<Delay, String> {
    let Some([min, max]) = range.as_array().map(Vec::as_slice) else {
        return Err(format!(r#"{} must be two durations, as in ["100ms","300ms"]"#, Shown(range)));
    };
    let (min, max) = (span(min)?, span(max)?);
    if min > max {
        return Err(format!("the lower limit \"{min}\" is above the upper limit \"{max}\""));
    }
    Ok(Delay::Uniform(min, max))
}

fn lognormal(shape: &Value) -> Result<Delay, String> {
    let wrong = || format!(r#"{} must have two members, as in {{"median":"90ms","sigma":0.4}}"#, Shown(shape));
    let members: &Map<String, Value> = shape.as_object().filter(|members| members.len() == 2).ok_or_else(wrong)?;
    let median = member::span(members.get("median").ok_or_else(wrong)?, Span::secs(0), MAX_DELAY)
        .map_err(|why| format!("median: {why}"))?;
    let sigma = member::number(members.get("sigma").ok_or_else(wrong)?, 0.0, MAX_SIGMA)
        .map_err(|why| format!("sigma: {why}"))?;
    Ok(Delay::Lognormal { median, sigma })
}
