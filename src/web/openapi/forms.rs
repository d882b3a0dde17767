//! The shapes of answers that are written by hand elsewhere, for the document alone.
#![expect(dead_code, reason = "described, never made")]

use std::collections::BTreeMap;

use utoipa::ToSchema;

#[derive(ToSchema)]
#[schema(rename_all = "UPPERCASE")]
pub(super) enum Status {
    Up,
    Down,
}

/// A probe's answer as MicroProfile Health 4 has it.
#[derive(ToSchema)]
pub(super) struct Health {
    status: Status,
    checks: Vec<HealthCheck>,
    /// Only in the answer of a wrong probe: why it is wrong.
    #[schema(nullable = false)]
    wrong: Option<String>,
}

#[derive(ToSchema)]
pub(super) struct HealthCheck {
    #[schema(example = "db")]
    name: String,
    status: Status,
    data: CheckData,
}

#[derive(ToSchema)]
pub(super) struct CheckData {
    /// Without it the node is not ready.
    critical: bool,
    /// How long the last attempt took.
    ms: u64,
    /// How long ago it ended.
    age_ms: u64,
    #[schema(nullable = false)]
    error: Option<String>,
    #[schema(nullable = false)]
    timeout_ms: Option<u64>,
}

/// A probe's answer as vertx-health-check has it: for `?format=vertx` and at the Vietnamese paths.
#[derive(ToSchema)]
pub(super) struct VertxHealth {
    status: Status,
    checks: Vec<VertxCheck>,
    outcome: Status,
    /// Only in the answer of a wrong probe: why it is wrong.
    #[schema(nullable = false)]
    wrong: Option<String>,
}

#[derive(ToSchema)]
pub(super) struct VertxCheck {
    #[schema(example = "csdl")]
    id: String,
    status: Status,
    #[schema(nullable = false)]
    data: Option<VertxData>,
}

/// At the Vietnamese paths `loi` alone, and only for what is down.
#[derive(ToSchema)]
pub(super) struct VertxData {
    #[schema(nullable = false)]
    critical: Option<bool>,
    #[schema(nullable = false)]
    ms: Option<u64>,
    #[schema(nullable = false)]
    age_ms: Option<u64>,
    #[schema(nullable = false)]
    error: Option<String>,
    #[schema(nullable = false)]
    timeout_ms: Option<u64>,
    /// The reason.
    #[schema(nullable = false)]
    loi: Option<String>,
}

/// A probe's answer as `application/health+json`.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(super) struct HealthJson {
    status: Grade,
    version: String,
    release_id: String,
    checks: BTreeMap<String, Vec<Measurement>>,
    /// Only in the answer of a wrong probe: why it is wrong.
    #[schema(nullable = false)]
    wrong: Option<String>,
}

#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
pub(super) enum Grade {
    Pass,
    Warn,
    Fail,
}

#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(super) struct Measurement {
    component_type: String,
    observed_value: u64,
    observed_unit: String,
    status: Grade,
    #[schema(nullable = false)]
    affected_endpoints: Option<Vec<String>>,
    #[schema(format = DateTime)]
    time: String,
    #[schema(nullable = false)]
    output: Option<String>,
}

/// Whether start-up is done.
#[derive(ToSchema)]
pub(super) struct Done {
    done: bool,
}

/// The answer of `/data`.
#[derive(ToSchema)]
pub(super) struct Data {
    host: String,
    #[schema(example = "ok")]
    data: String,
}

/// The answer to OPTIONS.
#[derive(ToSchema)]
pub(super) struct Allowed {
    host: String,
    allow: Vec<String>,
}
