//! What the policies of the way out have done, by Envoy's names.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use serde::Serialize;

/// How full the connection pool is, and how often it was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolFigures {
    pub connections: usize,
    pub connecting: usize,
    pub idle: usize,
    pub pending: usize,
    /// Requests that have a connection.
    pub active: usize,
    pub connections_opened: u64,
    pub connect_failures: u64,
    /// Connections that were not opened as the cap was reached; the request waited.
    pub connection_overflow: u64,
    /// Requests refused as too many waited.
    pub pending_overflow: u64,
    /// Requests refused as too many were under way.
    pub request_overflow: u64,
}

#[derive(Debug, Default)]
pub struct PolicyMetrics {
    rq_timeout: Counter,
    rq_per_try_timeout: Counter,
    rq_retry: Counter,
    rq_retry_success: Counter,
    rq_retry_overflow: Counter,
    ejections: Family<CauseLabel, Counter>,
    ejections_refused: Family<CauseLabel, Counter>,
    ejections_active: Gauge,
    cx_active: Gauge,
    rq_active: Gauge,
    rq_pending_active: Gauge,
    cx_connect_fail: Counter,
    cx_overflow: Counter,
    rq_pending_overflow: Counter,
    rq_active_overflow: Counter,
    open: Family<LimitLabel, Gauge>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CauseLabel {
    cause: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LimitLabel {
    limit: &'static str,
}

impl PolicyMetrics {
    pub(super) fn register(registry: &mut Registry) -> PolicyMetrics {
        let all = PolicyMetrics::default();
        for (name, help, counter) in [
            ("upstream_rq_timeout", "Calls that did not end within their time-out", &all.rq_timeout),
            ("upstream_rq_per_try_timeout", "Attempts that ended by perTryTimeout", &all.rq_per_try_timeout),
            ("upstream_rq_retry", "Attempts after the first one of a call", &all.rq_retry),
            ("upstream_rq_retry_success", "Calls that a retry has saved", &all.rq_retry_success),
            ("upstream_rq_retry_overflow", "Retries not made by maxRetries or retryBudget", &all.rq_retry_overflow),
            ("upstream_cx_connect_fail", "Connections that did not come about", &all.cx_connect_fail),
            ("upstream_cx_overflow", "Connections not opened by maxConnections", &all.cx_overflow),
            ("upstream_rq_pending_overflow", "Calls refused by http1MaxPendingRequests", &all.rq_pending_overflow),
            ("upstream_rq_active_overflow", "Calls refused by http2MaxRequests", &all.rq_active_overflow),
        ] {
            registry.register(name, help, counter.clone());
        }
        for (name, help, gauge) in [
            ("ejections_active", "Endpoints that are ejected", &all.ejections_active),
            ("upstream_cx_active", "Connections being opened, busy and idle", &all.cx_active),
            ("upstream_rq_active", "Requests that have a connection", &all.rq_active),
            ("upstream_rq_pending_active", "Requests that wait for a connection", &all.rq_pending_active),
        ] {
            registry.register(name, help, gauge.clone());
        }
        registry.register("ejections_enforced", "Ejections by cause", all.ejections.clone());
        registry.register(
            "ejections_overflow",
            "Ejections that maxEjectionPercent did not allow, by cause",
            all.ejections_refused.clone(),
        );
        registry.register(
            "circuit_breakers_open",
            "Whether a limit of the pool is reached (1) or not (0)",
            all.open.clone(),
        );
        all
    }

    pub fn timed_out(&self) {
        self.rq_timeout.inc();
    }

    pub fn try_timed_out(&self) {
        self.rq_per_try_timeout.inc();
    }

    pub fn retry(&self) {
        self.rq_retry.inc();
    }

    pub fn retry_succeeded(&self) {
        self.rq_retry_success.inc();
    }

    pub fn retry_overflow(&self) {
        self.rq_retry_overflow.inc();
    }

    pub fn ejected(&self, cause: &'static str) {
        self.ejections.get_or_create(&CauseLabel { cause }).inc();
    }

    pub fn ejection_refused(&self, cause: &'static str) {
        self.ejections_refused.get_or_create(&CauseLabel { cause }).inc();
    }

    pub fn set_ejected(&self, endpoints: usize) {
        self.ejections_active.set(endpoints as i64);
    }

    /// As the pool is just now; `full`: whether its caps on connections, on who waits and on requests are reached.
    pub fn set_pool(&self, figures: PoolFigures, full: [bool; 3]) {
        self.cx_active.set(figures.connections as i64);
        self.rq_pending_active.set(figures.pending as i64);
        self.rq_active.set(figures.active as i64);
        for (counter, count) in [
            (&self.cx_connect_fail, figures.connect_failures),
            (&self.cx_overflow, figures.connection_overflow),
            (&self.rq_pending_overflow, figures.pending_overflow),
            (&self.rq_active_overflow, figures.request_overflow),
        ] {
            counter.inner().store(count, std::sync::atomic::Ordering::Relaxed);
        }
        for (limit, full) in ["cx", "rq_pending", "rq"].into_iter().zip(full) {
            self.open.get_or_create(&LimitLabel { limit }).set(i64::from(full));
        }
    }
}
