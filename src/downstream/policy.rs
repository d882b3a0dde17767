//! What the policy says now, and what it makes happen to the pool and the endpoints.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use thiserror::Error;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_rustls::TlsConnector;
use tracing::{info, warn};

use super::dial::Dialer;
use super::error::CallError;
use super::events::Events;
use super::hosts::{Event, Hosts, Outcome, What};
use super::pool::core::Limits;
use super::pool::{Pool, Wear};
use super::retry::Retries;
use super::{Downstream, Settings, Shared, TlsError, tls};
use crate::manifest::{self, ManifestError, Policy};
use crate::telemetry::Metrics;
use crate::units::Span;
use crate::wire::Reason;

/// How often idle connections are looked at.
const SWEEP: Duration = Duration::from_secs(1);
/// What stands for no time-out at all.
const ENDLESS: Duration = Duration::from_secs(24 * 3600);

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
    pub(super) policy: Policy,
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

    /// Brings the metrics that are a state, not a count of events, up to date.
    pub fn measure(&self) {
        let Shared { pool, metrics, .. } = &*self.shared;
        metrics.policy().set_pool(pool.figures(), pool.full());
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
        self.events.tell(event);
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
