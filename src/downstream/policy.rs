//! What the policy says now, what it makes happen to endpoints, and how that is shown and changed.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use thiserror::Error;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_rustls::TlsConnector;
use tracing::{info, warn};

use super::dial::Dialer;
use super::error::CallError;
use super::hosts::{Cause, Event, Health, Hosts, Outcome, What};
use super::pool::core::Limits;
use super::pool::{Pool, Wear};
use super::retry::Retries;
use super::{Downstream, Settings, Shared, TlsError, tls};
use crate::manifest::{self, ManifestError, Policy};
use crate::telemetry::{Metrics, PoolFigures};
use crate::units::Span;
use crate::wire::Reason;

/// How often idle connections are looked at.
const SWEEP: Duration = Duration::from_secs(1);
/// What stands for no time-out at all.
const ENDLESS: Duration = Duration::from_secs(24 * 3600);
/// Events that are kept to be shown.
const KEPT: usize = 256;

/// Why there is no way out.
#[derive(Debug, Error)]
pub enum StartError {
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error(transparent)]
    Policy(#[from] ManifestError),
}

/// The policy as the calls read it.
#[derive(Debug)]
pub(super) struct Rules {
    policy: Policy,
    pub(super) timeout: Duration,
    pub(super) retries: Retries,
    pub(super) wear: Wear,
    idle: Duration,
    connect: Duration,
}

impl Rules {
    fn new(policy: Policy, settings: &Settings) -> Rules {
        let some = |span: Option<Span>| span.map(|span| *span);
        let timeout = some(policy.timeout).unwrap_or(*settings.timeout);
        let (tcp, http) = (&policy.connection_pool.tcp, &policy.connection_pool.http);
        let idle = [some(tcp.idle_timeout), some(http.idle_timeout)].into_iter().flatten().min();
        Rules {
            timeout: if timeout.is_zero() { ENDLESS } else { timeout },
            retries: Retries::new(&policy),
            wear: Wear {
                requests: http.max_requests_per_connection.unwrap_or(u32::MAX),
                age: some(tcp.max_connection_duration).unwrap_or(ENDLESS * 365),
            },
            idle: idle.unwrap_or(*settings.pool_idle_timeout),
            connect: some(tcp.connect_timeout).unwrap_or(*settings.connect_timeout),
            policy,
        }
    }

    fn limits(&self) -> Limits {
        Limits::new(&self.policy.connection_pool, self.policy.pool.rule)
    }
}

/// The rules that are in force; a call keeps those it began with.
#[derive(Debug)]
pub(super) struct Ruling {
    rules: RwLock<Arc<Rules>>,
    /// Someone may have to look at the endpoints earlier than was planned.
    changed: Notify,
}

impl Ruling {
    pub(super) fn now(&self) -> Arc<Rules> {
        Arc::clone(&self.rules.read().unwrap_or_else(PoisonError::into_inner))
    }
}

/// What happened to endpoints lately.
#[derive(Debug, Default)]
pub(super) struct Events(Mutex<VecDeque<Told>>);

/// An event in the words of Envoy's outlier event log.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Told {
    /// Since 1970, in ms.
    at_ms: u64,
    action: &'static str,
    endpoint: SocketAddr,
    #[serde(skip_serializing_if = "Option::is_none")]
    cause: Option<Cause>,
    /// The how many-th ejection of this endpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    num_ejections: Option<u32>,
    /// Until it may return, or how long it was out.
    #[serde(skip_serializing_if = "Option::is_none")]
    duration_ms: Option<u64>,
    enforced: bool,
}

impl Told {
    fn new(Event { key, what }: Event) -> Told {
        let ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let told = Told {
            at_ms: ms(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()),
            action: "eject",
            endpoint: key.1,
            cause: None,
            num_ejections: None,
            duration_ms: None,
            enforced: true,
        };
        match what {
            What::Ejected { cause, number, lasts } => {
                Told { cause: Some(cause), num_ejections: Some(number), duration_ms: lasts.map(ms), ..told }
            }
            What::Refused { cause } => Told { cause: Some(cause), enforced: false, ..told },
            What::Returned { after } => Told { action: "uneject", duration_ms: Some(ms(after)), ..told },
        }
    }

    fn log(&self) {
        let text = serde_json::to_string(self).unwrap_or_default();
        match self.action {
            "eject" => warn!("outlier detection: {text}"),
            _ => info!("outlier detection: {text}"),
        }
    }
}

/// What an endpoint is charged with for an attempt that failed so.
pub(super) fn outcome(error: &CallError) -> Outcome {
    match error.reason {
        Reason::BadStatus => error.status.map_or(Outcome::Broken, |status| Outcome::Status(status.as_u16())),
        Reason::Refused | Reason::ConnectTimeout | Reason::Dns | Reason::Tls => Outcome::ConnectFailure,
        Reason::Timeout | Reason::Deadline => Outcome::Timeout,
        // Envoy charges nobody for an answer that breaks off after its head.
        Reason::Reset | Reason::Closed | Reason::Truncated | Reason::Protocol => Outcome::Broken,
        // It answered; what we make of that is ours.
        Reason::BadJson | Reason::Empty | Reason::TooLarge | Reason::Redirect => Outcome::Status(200),
        Reason::Loop | Reason::TooDeep | Reason::Overflow | Reason::NoHealthy | Reason::Fault => Outcome::Cancelled,
    }
}

impl Downstream {
    /// Reads the policy, and starts to resolve the targets' names, on the current runtime.
    ///
    /// # Errors
    /// If a policy file is wrong, or an https target's authorities cannot be loaded.
    pub fn start(settings: Settings, metrics: Metrics) -> Result<Downstream, StartError> {
        let (policy, warnings) = manifest::policy(&settings.policy)?;
        for warning in warnings {
            warn!("{warning}");
        }
        let targets = &settings.target.0;
        // A file that was named is read also where no target needs it: a wrong name must not wait for the day it does.
        let tls = match settings.target_ca.is_some() || targets.iter().any(|target| target.secure) {
            true => Some(TlsConnector::from(tls::config(settings.target_ca.as_deref())?)),
            false => None,
        };
        let rules = Rules::new(policy, &settings);
        let Policy { outlier_detection, load_balancer, .. } = rules.policy.clone();
        let hosts = Hosts::new(outlier_detection, load_balancer.simple, Instant::now(), rand::random());
        let dialer = Dialer::start(&settings, tls, hosts, metrics.clone());
        dialer.set_limit(rules.connect);
        let shared = Arc::new(Shared {
            pool: Pool::new(rules.limits(), Arc::clone(&dialer)),
            dialer,
            rules: Ruling { rules: RwLock::new(Arc::new(rules)), changed: Notify::new() },
            retrying: Default::default(),
            events: Events::default(),
            metrics,
            settings,
        });
        shared.warn_of_too_few();
        tokio::spawn(sweep(Arc::clone(&shared)));
        tokio::spawn(look(Arc::clone(&shared)));
        Ok(Downstream { shared })
    }

    pub fn policy(&self) -> Policy {
        self.shared.rules.now().policy.clone()
    }

    /// The policy of all calls from now on. Connections and the endpoints' records stay.
    pub fn set_policy(&self, policy: Policy) {
        let shared = &self.shared;
        let rules = Arc::new(Rules::new(policy, &shared.settings));
        info!(policy = %serde_json::to_string(&rules.policy).unwrap_or_default(), "new policy");
        *shared.rules.rules.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&rules);
        shared.dialer.set_limit(rules.connect);
        shared.pool.set_limits(rules.limits());
        let Policy { outlier_detection, load_balancer, .. } = rules.policy.clone();
        shared.dialer.hosts().set_rules(outlier_detection, load_balancer.simple, Instant::now());
        shared.rules.changed.notify_one();
        shared.warn_of_too_few();
    }

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

    /// Brings the metrics that are a state, not a count of events, up to date.
    pub fn measure(&self) {
        let Shared { pool, metrics, .. } = &*self.shared;
        metrics.policy().set_pool(pool.figures(), pool.full());
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
    pub(super) fn happened(&self, event: Event) {
        match event.what {
            What::Ejected { cause, .. } => {
                self.metrics.policy().ejected(cause.as_str());
                self.pool.drain(event.key);
                self.rules.changed.notify_one();
            }
            What::Refused { cause } => self.metrics.policy().ejection_refused(cause.as_str()),
            What::Returned { .. } => {}
        }
        self.metrics.policy().set_ejected(self.dialer.hosts().ejected());
        let told = Told::new(event);
        told.log();
        let mut events = self.events.0.lock().unwrap_or_else(PoisonError::into_inner);
        if events.len() == KEPT {
            events.pop_front();
        }
        events.push_back(told);
    }

    /// A breaker that can never eject is a trap: two endpoints and Istio's default of 10 %.
    fn warn_of_too_few(&self) {
        let hosts = self.dialer.hosts();
        let Some(rules) = hosts.rules() else { return };
        let (count, percent) = (hosts.len(), rules.max_ejection_percent);
        if count > 0 && (percent as usize) * count < 100 && !rules.always_eject_one_host {
            warn!(
                "outlierDetection.maxEjectionPercent {percent} of {count} endpoint(s) is less than one: nothing is ever \
                 ejected"
            );
        }
    }

    fn view(&self) -> View {
        let now = Instant::now();
        let rules = self.rules.now();
        let hosts = self.dialer.hosts();
        let ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let endpoints = hosts.views(now).into_iter().map(|host| Endpoint {
            target: self.dialer.target(host.key).to_string(),
            endpoint: host.key.1,
            state: match host.health {
                Health::Healthy => "healthy",
                Health::Ejected { .. } => "ejected",
                Health::Returned => "returned",
            },
            in_use: host.in_use,
            active: host.active,
            failures_in_a_row: host.in_a_row.map(|(count, _)| count),
            ejects_at: host.in_a_row.map(|(_, threshold)| threshold),
            ejected_for_ms: match host.health {
                Health::Ejected { since, .. } => Some(ms(since)),
                Health::Healthy | Health::Returned => None,
            },
            returns_in_ms: match host.health {
                Health::Ejected { left, .. } => left.map(ms),
                Health::Healthy | Health::Returned => None,
            },
            cause: match host.health {
                Health::Ejected { cause, .. } => Some(cause),
                Health::Healthy | Health::Returned => None,
            },
            ejections: host.ejections,
            multiplier: host.multiplier,
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
            retrying: self.retrying.load(std::sync::atomic::Ordering::Relaxed),
            events: self.events.0.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect(),
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

/// Closes what nobody uses, for ever.
async fn sweep(shared: Arc<Shared>) {
    loop {
        sleep(SWEEP.min(shared.rules.now().idle)).await;
        let rules = shared.rules.now();
        // Asked before the pool is locked: whoever has one of the locks never waits for the other.
        let in_use: Vec<_> = {
            let hosts = shared.dialer.hosts();
            hosts.views(Instant::now()).into_iter().filter(|host| host.in_use).map(|host| host.key).collect()
        };
        shared.pool.sweep(rules.idle, rules.wear, |key| in_use.contains(&key));
    }
}

/// Looks who may come back, whenever it is time for that.
async fn look(shared: Arc<Shared>) {
    loop {
        let due = shared.dialer.hosts().due();
        let wait = async {
            match due {
                Some(due) => sleep_until(due).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = wait => {}
            () = shared.rules.changed.notified() => {}
        }
        let events = shared.dialer.hosts().look(Instant::now());
        for event in events {
            shared.happened(event);
        }
    }
}
