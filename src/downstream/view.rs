//! The pool and the endpoints as `/downstream` and `/ready` show them, and what can be done to an endpoint by hand.

use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use tokio::time::Instant;

use super::events::{Told, ms};
use super::hosts::{Cause, Health};
use super::{Downstream, Shared};
use crate::telemetry::PoolFigures;

impl Downstream {
    /// Everything that can be seen of the pool and the endpoints.
    pub fn view(&self) -> View {
        self.shared.view()
    }

    /// Ejects or returns an endpoint by hand.
    ///
    /// # Errors
    /// If there is no such endpoint, or it is so already.
    pub fn order(&self, order: &Order) -> Result<(), OrderError> {
        let Order { endpoint, action } = *order;
        let (mut hosts, now) = (self.shared.dialer.hosts(), Instant::now());
        let known: Vec<SocketAddr> = hosts.views(now).iter().map(|view| view.key.1).collect();
        if !known.contains(&endpoint) {
            let known: Vec<String> = known.iter().map(SocketAddr::to_string).collect();
            return Err(OrderError::Unknown { endpoint, known: known.join(", ") });
        }
        let event = match action {
            Action::Eject => hosts.eject(endpoint, now),
            Action::Return => hosts.bring_back_by_hand(endpoint, now),
        };
        drop(hosts);
        self.shared.happened(event.ok_or(OrderError::Already { endpoint, action })?);
        Ok(())
    }

    /// Whether the circuit breaker is closed, open for some endpoints, or open for all. `None` without one, unless an
    /// endpoint was ejected by hand.
    pub fn circuit(&self) -> Option<Circuit> {
        let hosts = self.shared.dialer.hosts();
        if hosts.rules().is_none() && hosts.ejected() == 0 {
            return None;
        }
        Some(match (hosts.ejected(), hosts.len()) {
            (0, _) => Circuit::Closed,
            (ejected, all) if ejected < all => Circuit::Partly,
            _ => Circuit::Open,
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Circuit {
    Closed,
    /// Some endpoints are ejected.
    Partly,
    Open,
}

impl Circuit {
    pub const fn as_str(self) -> &'static str {
        match self {
            Circuit::Closed => "closed",
            Circuit::Partly => "partly_open",
            Circuit::Open => "open",
        }
    }
}

impl Shared {
    fn view(&self) -> View {
        let now = Instant::now();
        let rules = self.rules.now();
        let hosts = self.dialer.hosts();
        let endpoints = hosts.views(now).into_iter().map(|host| {
            let (state, since, left, cause) = match host.health {
                Health::Healthy => ("healthy", None, None, None),
                Health::Ejected { since, left, cause } => ("ejected", Some(since), left, Some(cause)),
                Health::Returned => ("returned", None, None, None),
            };
            Endpoint {
                target: self.dialer.target(host.key).to_string(),
                endpoint: host.key.1,
                state,
                in_use: host.in_use,
                active: host.active,
                failures_in_a_row: host.in_a_row.map(|(count, _)| count),
                ejects_at: host.in_a_row.map(|(_, threshold)| threshold),
                ejected_for_ms: since.map(ms),
                returns_in_ms: left.map(ms),
                cause,
                ejections: host.ejections,
                multiplier: host.multiplier,
            }
        });
        let pool = &rules.policy.connection_pool;
        View {
            pool: PoolView {
                figures: self.pool.figures(),
                max_connections: pool.tcp.max_connections,
                http1_max_pending_requests: pool.http.http1_max_pending_requests,
                http2_max_requests: pool.http.http2_max_requests,
            },
            endpoints: endpoints.collect(),
            ejections_refused: hosts.refused(),
            next_look_in_ms: hosts.next_look().map(|due| ms(due.saturating_duration_since(now))),
            retrying: self.retrying.load(Relaxed),
            events: self.events.kept(),
        }
    }
}

/// The pool and the endpoints at one moment.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct View {
    pool: PoolView,
    endpoints: Vec<Endpoint>,
    /// As too many endpoints were ejected already.
    ejections_refused: u64,
    next_look_in_ms: Option<u64>,
    retrying: usize,
    events: Vec<Told>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct PoolView {
    #[serde(flatten)]
    figures: PoolFigures,
    /// The limits; `null` is none.
    max_connections: Option<u32>,
    http1_max_pending_requests: Option<u32>,
    http2_max_requests: Option<u32>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Endpoint {
    target: String,
    endpoint: SocketAddr,
    state: &'static str,
    /// Follows the state, later by what is left of `updateMergeWindow`.
    in_use: bool,
    active: u32,
    failures_in_a_row: Option<u32>,
    ejects_at: Option<u32>,
    ejected_for_ms: Option<u64>,
    /// `null` while it is ejected by hand.
    returns_in_ms: Option<u64>,
    cause: Option<Cause>,
    ejections: u32,
    multiplier: u32,
}

/// What `POST /downstream` asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Order {
    #[schema(value_type = String, example = "127.0.0.1:8081")]
    pub endpoint: SocketAddr,
    pub action: Action,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// Out of use until it is returned.
    Eject,
    /// In use again at once, whatever ejected it.
    Return,
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum OrderError {
    #[error("{endpoint} is no endpoint of this node; known are {known}")]
    Unknown { endpoint: SocketAddr, known: String },
    #[error("{endpoint} is {} already", if *action == Action::Eject { "ejected" } else { "in use" })]
    Already { endpoint: SocketAddr, action: Action },
}
