//! How a client treats its next hop, in the names and units of Istio's `DestinationRule.trafficPolicy` and
//! `VirtualService.http[]`. The same structure is what `/policy` shows and takes.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::limits;
use crate::units::Span;

/// Everything that can be said about the calls to one next hop. An empty one limits nothing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Policy {
    /// The whole call with its waiting, retries and pauses; `0s` is no limit of its own.
    #[serde(deserialize_with = "limits::timeout", skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Span>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retries: Option<Retries>,
    pub connection_pool: ConnectionPool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outlier_detection: Option<OutlierDetection>,
    pub load_balancer: LoadBalancer,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_budget: Option<RetryBudget>,
    /// Not Istio's: how the connection pool behaves.
    pub pool: PoolRules,
}

impl Policy {
    /// The same where time runs `speed` times as fast: all times are shorter, all counts and shares are the same.
    pub fn scaled(mut self, speed: f64) -> Policy {
        let scale = |span: &mut Span| span.0 = span.0.div_f64(speed);
        let Policy { timeout, retries, connection_pool: ConnectionPool { tcp, http }, outlier_detection, .. } =
            &mut self;
        [
            timeout,
            &mut tcp.connect_timeout,
            &mut tcp.idle_timeout,
            &mut tcp.max_connection_duration,
            &mut http.idle_timeout,
        ]
        .into_iter()
        .flatten()
        .for_each(scale);
        if let Some(retries) = retries {
            retries.per_try_timeout.iter_mut().for_each(scale);
        }
        if let Some(rules) = outlier_detection {
            let OutlierDetection { interval, base_ejection_time, max_ejection_time, update_merge_window, .. } = rules;
            [interval, base_ejection_time, max_ejection_time, update_merge_window].into_iter().for_each(scale);
        }
        self
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Retries {
    /// Tries after the first one; 0 is none.
    #[serde(deserialize_with = "limits::attempts")]
    pub attempts: u32,
    /// One try until its answer's head; without effect where it is not shorter than the whole call's `timeout`.
    #[serde(deserialize_with = "limits::per_try", skip_serializing_if = "Option::is_none")]
    pub per_try_timeout: Option<Span>,
    /// Conditions separated by commas, as `gateway-error,reset,connect-failure`.
    #[serde(deserialize_with = "limits::retry_on", skip_serializing_if = "Option::is_none")]
    pub retry_on: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ConnectionPool {
    pub tcp: TcpPool,
    pub http: HttpPool,
}

/// As in Istio, a count of 0 is the same as none given: no limit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct TcpPool {
    /// Open connections to all endpoints together, in this process.
    #[serde(deserialize_with = "limits::count", skip_serializing_if = "Option::is_none")]
    pub max_connections: Option<u32>,
    #[serde(deserialize_with = "limits::connect", skip_serializing_if = "Option::is_none")]
    pub connect_timeout: Option<Span>,
    #[serde(deserialize_with = "limits::idle", skip_serializing_if = "Option::is_none")]
    pub idle_timeout: Option<Span>,
    #[serde(deserialize_with = "limits::life", skip_serializing_if = "Option::is_none")]
    pub max_connection_duration: Option<Span>,
}

/// As in Istio, a count of 0 is the same as none given: no limit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct HttpPool {
    /// Requests that wait for a connection, also for one that is being opened for them.
    #[serde(deserialize_with = "limits::count", skip_serializing_if = "Option::is_none")]
    pub http1_max_pending_requests: Option<u32>,
    /// Requests under way, for HTTP/1 too; one more is refused at once.
    #[serde(deserialize_with = "limits::count", skip_serializing_if = "Option::is_none")]
    pub http2_max_requests: Option<u32>,
    /// Requests that one connection carries before it is closed; 1 is no keep-alive.
    #[serde(deserialize_with = "limits::count", skip_serializing_if = "Option::is_none")]
    pub max_requests_per_connection: Option<u32>,
    /// Retries under way at the same time.
    #[serde(deserialize_with = "limits::count", skip_serializing_if = "Option::is_none")]
    pub max_retries: Option<u32>,
    /// A connection without a request is closed after this long.
    #[serde(deserialize_with = "limits::idle", skip_serializing_if = "Option::is_none")]
    pub idle_timeout: Option<Span>,
}

/// The circuit breaker: an endpoint that fails too often in a row gets no requests for a while.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct OutlierDetection {
    /// Answers of 500 and more in a row, and failures that count as such; 0 is off.
    #[serde(rename = "consecutive5xxErrors", deserialize_with = "limits::in_a_row")]
    pub consecutive_5xx_errors: u32,
    /// Answers of 502, 503 and 504 in a row, and failures that count as such; 0 is off.
    #[serde(deserialize_with = "limits::in_a_row")]
    pub consecutive_gateway_errors: u32,
    /// The time between two looks at who may return.
    #[serde(deserialize_with = "limits::interval")]
    pub interval: Span,
    /// The n-th ejection in short order lasts n times this, then until the next look.
    #[serde(deserialize_with = "limits::ejection")]
    pub base_ejection_time: Span,
    /// Not Istio's, but Envoy's: no ejection lasts longer, save where the base does.
    #[serde(deserialize_with = "limits::ejection")]
    pub max_ejection_time: Span,
    /// As in Istio, 0 is the same as none given.
    #[serde(deserialize_with = "limits::ejection_percent")]
    pub max_ejection_percent: u32,
    /// Below this share of endpoints that are not ejected, all are used; 0 is never.
    #[serde(deserialize_with = "limits::percent")]
    pub min_health_percent: u32,
    pub split_external_local_origin_errors: bool,
    #[serde(deserialize_with = "limits::in_a_row")]
    pub consecutive_local_origin_failures: u32,
    /// Not Istio's, but Envoy's `update_merge_window`: after a change of the endpoints in use, further ones wait until
    /// this is over.
    #[serde(deserialize_with = "limits::window")]
    pub update_merge_window: Span,
    /// Not Istio's, but Envoy's: one endpoint may always be ejected, whatever `maxEjectionPercent` says.
    pub always_eject_one_host: bool,
    /// Not Istio's: instead of full traffic at the next look, this many requests test an endpoint whose time is up.
    #[serde(deserialize_with = "limits::probe", skip_serializing_if = "Option::is_none")]
    pub probe: Option<u32>,
}

impl Default for OutlierDetection {
    fn default() -> OutlierDetection {
        OutlierDetection {
            consecutive_5xx_errors: 5,
            consecutive_gateway_errors: 0,
            interval: Span::secs(10),
            base_ejection_time: Span::secs(30),
            max_ejection_time: Span::secs(300),
            max_ejection_percent: 10,
            min_health_percent: 0,
            split_external_local_origin_errors: false,
            consecutive_local_origin_failures: 5,
            update_merge_window: Span::secs(1),
            always_eject_one_host: false,
            probe: None,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LoadBalancer {
    pub simple: Simple,
}

/// Who gets the next request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Simple {
    /// What Istio used when the article was written, and what a lesson can follow.
    #[default]
    RoundRobin,
    LeastRequest,
    Random,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RetryBudget {
    /// Retries under way, as a percentage of the requests that are active and pending; replaces `maxRetries`.
    #[serde(deserialize_with = "limits::budget")]
    pub percent: f64,
    /// So many retries may always be under way.
    #[serde(deserialize_with = "limits::reserve")]
    pub min_retry_concurrency: u32,
}

impl Default for RetryBudget {
    fn default() -> RetryBudget {
        RetryBudget { percent: 20.0, min_retry_concurrency: 3 }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PoolRules {
    pub rule: PoolRule,
}

/// When a connection that was closed is replaced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub enum PoolRule {
    /// As soon as a request waits (Envoy since 1.14).
    #[default]
    #[serde(rename = "modern")]
    Modern,
    /// Only once more requests wait than connections are left, which strands them (Envoy until 1.13).
    #[serde(rename = "envoy-1.13")]
    Envoy113,
}
