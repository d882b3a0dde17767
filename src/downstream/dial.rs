//! Opens connections to the targets' endpoints, and knows which endpoints there are.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::TlsConnector;
use tracing::warn;

use super::connection::Connection;
use super::endpoints::{Family, Known, Lookup};
use super::error::CallError;
use super::hosts::{Hosts, Key};
use super::target::{Target, TargetHost};
use super::{Settings, resolve};
use crate::telemetry::Metrics;
use crate::wire::Reason;

/// One target of the list.
pub(super) struct Replica {
    pub(super) target: Target,
    known: watch::Receiver<Arc<Known>>,
    family: Family,
}

pub(super) struct Dialer {
    replicas: Vec<Replica>,
    hosts: Mutex<Hosts>,
    tls: Option<TlsConnector>,
    keepalive: Duration,
    limit: Mutex<Duration>,
    metrics: Metrics,
}

impl Replica {
    fn start(target: Target, settings: &Settings) -> Replica {
        let known = match &target.host {
            TargetHost::Name(name) => resolve::follow(name.clone(), *settings.dns_timeout, *settings.dns_refresh),
            TargetHost::Address(address) => {
                watch::channel(Arc::new(Known::Nothing.after(Lookup::Found(vec![*address])))).1
            }
        };
        Replica { target, known, family: Family::default() }
    }

    fn known(&self) -> Arc<Known> {
        Arc::clone(&self.known.borrow())
    }
}

impl Dialer {
    /// Starts to resolve the targets' names, on the current runtime.
    pub(super) fn start(settings: &Settings, tls: Option<TlsConnector>, hosts: Hosts, metrics: Metrics) -> Arc<Dialer> {
        let replicas = settings.target.0.iter().map(|target| Replica::start(target.clone(), settings)).collect();
        let dialer = Arc::new(Dialer {
            replicas,
            hosts: Mutex::new(hosts),
            tls,
            keepalive: *settings.tcp_keepalive,
            limit: Mutex::new(*settings.connect_timeout),
            metrics,
        });
        dialer.refresh();
        for replica in &dialer.replicas {
            let (mut known, dialer) = (replica.known.clone(), Arc::downgrade(&dialer));
            if matches!(replica.target.host, TargetHost::Name(_)) {
                tokio::spawn(async move {
                    while known.changed().await.is_ok() {
                        let Some(dialer) = dialer.upgrade() else { return };
                        dialer.refresh();
                    }
                });
            }
        }
        dialer
    }

    pub(super) fn hosts(&self) -> MutexGuard<'_, Hosts> {
        self.hosts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_leaf(&self) -> bool {
        self.replicas.is_empty()
    }

    pub(super) fn target(&self, key: Key) -> &Target {
        &self.replicas[key.0].target
    }

    /// A connection must stand after this long, from now on.
    pub(super) fn set_limit(&self, limit: Duration) {
        *self.limit.lock().unwrap_or_else(PoisonError::into_inner) = limit;
    }

    /// Tells the endpoints that the names have now to whoever chooses among them.
    fn refresh(&self) {
        let mut members = Vec::new();
        for (place, Replica { target, known, family }) in self.replicas.iter().enumerate() {
            let known = known.borrow();
            members.extend(known.usable(family).map(|address| (place, SocketAddr::new(address, target.port))));
        }
        let mut hosts = self.hosts();
        hosts.set_members(&members, Instant::now());
        if hosts.is_beyond_percentage() {
            // istio#20135: the percentage is looked at when an endpoint is ejected, not when a good one leaves.
            warn!(
                "{} of {} endpoint(s) are ejected, more than maxEjectionPercent, as others have left the name",
                hosts.ejected(),
                hosts.len()
            );
        }
    }

    /// Whether the first lookup of every name is still under way; else what is known is all there is.
    pub(super) fn knows_nothing(&self) -> bool {
        self.replicas.iter().all(|replica| **replica.known.borrow() == Known::Nothing)
    }

    /// Waits for the first lookups, until `end`.
    pub(super) async fn first_lookups(&self, end: Instant) {
        let looked_up = async {
            for replica in &self.replicas {
                // Fails only if the lookups have stopped; what was known last then stands.
                let _ = replica.known.clone().wait_for(|known| **known != Known::Nothing).await;
            }
        };
        // Past the end, what is known is looked at all the same: it says that the name is what was missing.
        let _ = timeout_at(end, looked_up).await;
        self.refresh();
    }

    pub(super) fn unresolved(&self) -> CallError {
        let why: Vec<String> = self
            .replicas
            .iter()
            .map(|replica| match &**replica.known.borrow() {
                Known::Missing(why) => format!("{}: {why}", replica.target),
                _ => format!("{}: {}", replica.target, resolve::NO_ANSWER),
            })
            .collect();
        CallError::new(Reason::Dns, why.join(", "))
    }

    /// Connects; a name with both address families gets a second try with the other one.
    pub(super) async fn open(&self, key: Key) -> Result<Connection, CallError> {
        let replica = &self.replicas[key.0];
        let known = replica.known();
        let mut error = match self.open_once(key).await {
            Ok(connection) => return Ok(connection),
            Err(error) => error,
        };
        if let Some(address) = known.other_way(key.1.ip()) {
            match self.open_once((key.0, SocketAddr::new(address, key.1.port()))).await {
                Ok(connection) => return Ok(connection),
                // Of two failures, the one that got further says more of the target.
                Err(second) if second.reason != Reason::Refused => error = second,
                Err(_) => {}
            }
        }
        if matches!(*known, Known::Addresses { vanished: true, .. }) {
            return Err(CallError::new(Reason::Dns, format!("{}: its name has no address any more", replica.target)));
        }
        Err(error)
    }

    async fn open_once(&self, key: Key) -> Result<Connection, CallError> {
        let Replica { target, family, .. } = &self.replicas[key.0];
        let tls = self.tls.as_ref().filter(|_| target.secure);
        let limit = *self.limit.lock().unwrap_or_else(PoisonError::into_inner);
        let opened = timeout(limit, Connection::open(target, key, tls, self.keepalive, &self.metrics)).await;
        let connection = opened.map_err(|_| too_slow(target))??;
        if family.worked(key.1.ip()) {
            self.refresh();
        }
        Ok(connection)
    }
}

pub(super) fn too_slow(target: &Target) -> CallError {
    CallError::new(Reason::ConnectTimeout, format!("{target} did not take the connection in time"))
}
