//! The figures at `/metrics`, in Prometheus' names and units.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeLabelSet, EncodeLabelValue, EncodeMetric, LabelValueEncoder, text,
};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use super::policy_metrics::PolicyMetrics;
use crate::wire::Reason;

/// Upper bounds in seconds: from a leaf's answer to the default time-out.
const BUCKETS: [f64; 14] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// All figures of one node; clones are the same figures.
#[derive(Clone, Debug)]
pub struct Metrics(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    registry: Registry,
    requests: Family<RequestLabels, Counter>,
    duration: Family<RouteLabel, Histogram>,
    in_flight: Gauge,
    downstream: Family<ReasonLabel, Counter>,
    downstream_ok: Counter,
    retries: Counter,
    policy: PolicyMetrics,
    connections: Family<SideLabel, Gauge>,
    opened: Family<SideLabel, Counter>,
    checks: Family<CheckLabels, Gauge>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CheckLabels {
    check: String,
    critical: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    route: &'static str,
    status: u16,
    outcome: Outcome,
}

/// How a request ended, apart from its status: a partial answer is a 200 too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    Complete,
    Partial,
    /// A status of 500 or above.
    Failed,
    /// The client went away before its answer.
    Cancelled,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RouteLabel {
    route: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: CallOutcome,
}

/// How a call to the next node ended: `ok`, `cancelled` (by our own caller) or a reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CallOutcome {
    Ok,
    Cancelled,
    Failed(Reason),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SideLabel {
    side: Side,
}

/// Which side of the node a connection is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// From a client to us.
    Server,
    /// From us to the target.
    Client,
}

fn write_label(encoder: &mut LabelValueEncoder<'_>, word: &str) -> Result<(), fmt::Error> {
    fmt::Write::write_str(encoder, word)
}

impl EncodeLabelValue for Outcome {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), fmt::Error> {
        let word = match self {
            Outcome::Complete => "complete",
            Outcome::Partial => "partial",
            Outcome::Failed => "failed",
            Outcome::Cancelled => "cancelled",
        };
        write_label(encoder, word)
    }
}

impl EncodeLabelValue for CallOutcome {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), fmt::Error> {
        let word = match self {
            CallOutcome::Ok => "ok",
            CallOutcome::Cancelled => "cancelled",
            CallOutcome::Failed(reason) => reason.as_str(),
        };
        write_label(encoder, word)
    }
}

impl EncodeLabelValue for Side {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), fmt::Error> {
        let word = match self {
            Side::Server => "server",
            Side::Client => "client",
        };
        write_label(encoder, word)
    }
}

/// Guard of something that is open or under way: counted until it drops.
#[derive(Debug)]
pub struct Counted(Gauge);

impl Counted {
    fn new(gauge: Gauge) -> Counted {
        gauge.inc();
        Counted(gauge)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl Metrics {
    pub fn new() -> Metrics {
        let mut all = Registry::default();
        all.register_collector(Box::new(Process));
        let registry = all.sub_registry_with_prefix("rest_cascade");
        let requests = Family::default();
        registry.register("requests", "Requests answered, by route, status and outcome", requests.clone());
        let duration = Family::new_with_constructor((|| Histogram::new(BUCKETS)) as fn() -> Histogram);
        registry.register_with_unit("request_duration", "Time to answer", Unit::Seconds, duration.clone());
        let in_flight = Gauge::default();
        registry.register("requests_in_flight", "Requests being answered", in_flight.clone());
        let downstream = Family::<ReasonLabel, Counter>::default();
        let downstream_ok = downstream.get_or_create_owned(&ReasonLabel { reason: CallOutcome::Ok });
        registry.register("downstream_calls", "Calls to the next node by how they ended", downstream.clone());
        let retries = Counter::default();
        registry.register(
            "downstream_retries",
            "Calls made anew because a kept connection had died before any byte of its answer",
            retries.clone(),
        );
        let policy = PolicyMetrics::register(registry);
        let connections = Family::default();
        registry.register("open_connections", "Open TCP connections by side", connections.clone());
        let opened = Family::default();
        registry.register("connections", "TCP connections opened since start by side", opened.clone());
        let checks = Family::default();
        registry.register("check_up", "Whether a dependency is up (1) or down (0), as /ready sees it", checks.clone());
        Metrics(Arc::new(Inner {
            registry: all,
            requests,
            duration,
            in_flight,
            downstream,
            downstream_ok,
            retries,
            policy,
            connections,
            opened,
            checks,
        }))
    }

    /// Counts one request under way until the guard drops.
    pub fn request_started(&self) -> Counted {
        Counted::new(self.0.in_flight.clone())
    }

    /// What the policies of the way out have done.
    pub fn policy(&self) -> &PolicyMetrics {
        &self.0.policy
    }

    /// The figures of one route, looked up once.
    pub fn route(&self, route: &'static str) -> RouteMetrics {
        let good = RequestLabels { route, status: 200, outcome: Outcome::Complete };
        RouteMetrics(Arc::new(RouteInner {
            route,
            good: self.0.requests.get_or_create_owned(&good),
            duration: self.0.duration.get_or_create_owned(&RouteLabel { route }),
            metrics: self.clone(),
        }))
    }

    pub fn call_ended(&self, reason: CallOutcome) {
        match reason {
            CallOutcome::Ok => self.0.downstream_ok.inc(),
            reason => self.0.downstream.get_or_create(&ReasonLabel { reason }).inc(),
        };
    }

    pub fn call_retried(&self) {
        self.0.retries.inc();
    }

    /// Counts one open connection until the guard drops.
    pub fn connection(&self, side: Side) -> Counted {
        let label = SideLabel { side };
        self.0.opened.get_or_create(&label).inc();
        Counted::new(self.0.connections.get_or_create_owned(&label))
    }

    /// The state of a dependency. To be set before the text is made: an old one would say that all is well.
    pub fn check(&self, name: &str, critical: bool, up: bool) {
        let labels = CheckLabels { check: name.to_owned(), critical: critical.to_string() };
        self.0.checks.get_or_create(&labels).set(up.into());
    }

    /// Everything in OpenMetrics' text form.
    pub fn text(&self) -> String {
        let mut text = String::new();
        text::encode(&mut text, &self.0.registry).expect("writing to a string");
        text
    }
}

/// The figures of one route, at hand: most requests end well, and those cost no lookup.
#[derive(Clone, Debug)]
pub struct RouteMetrics(Arc<RouteInner>);

#[derive(Debug)]
struct RouteInner {
    route: &'static str,
    /// Status 200, complete.
    good: Counter,
    duration: Histogram,
    metrics: Metrics,
}

impl RouteMetrics {
    pub fn ended(&self, status: u16, outcome: Outcome, took: Duration) {
        let RouteInner { route, good, duration, metrics } = &*self.0;
        match (status, outcome) {
            (200, Outcome::Complete) => good.inc(),
            _ => metrics.0.requests.get_or_create(&RequestLabels { route, status, outcome }).inc(),
        };
        duration.observe(took.as_secs_f64());
    }
}

impl Default for Metrics {
    fn default() -> Metrics {
        Metrics::new()
    }
}

/// The process's own figures, read when they are asked for.
#[derive(Debug)]
struct Process;

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        // No figure where /proc is hidden: a wrong one would be worse.
        let Ok(process) = procfs::process::Process::myself() else { return Ok(()) };
        let Ok(stat) = process.stat() else { return Ok(()) };
        let ticks = procfs::ticks_per_second() as f64;
        let mut gauge = |name: &str, help: &str, unit: Option<&Unit>, value: f64| {
            let gauge = ConstGauge::new(value);
            gauge.encode(encoder.encode_descriptor(name, help, unit, gauge.metric_type())?)
        };
        gauge(
            "process_resident_memory",
            "Resident memory",
            Some(&Unit::Bytes),
            (stat.rss * procfs::page_size()) as f64,
        )?;
        gauge("process_threads", "Threads", None, stat.num_threads as f64)?;
        if let Ok(open) = process.fd_count() {
            gauge("process_open_fds", "Open file descriptors", None, open as f64)?;
        }
        let cpu = ConstCounter::new((stat.utime + stat.stime) as f64 / ticks);
        cpu.encode(encoder.encode_descriptor(
            "process_cpu",
            "CPU time, user and system",
            Some(&Unit::Seconds),
            cpu.metric_type(),
        )?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_has_every_figure_with_its_labels() {
        let metrics = Metrics::new();
        metrics.route("/").ended(200, Outcome::Partial, Duration::from_millis(7));
        metrics.call_ended(CallOutcome::Failed(Reason::Refused));
        let open = metrics.connection(Side::Server);
        metrics.check("db", true, false);
        let text = metrics.text();
        for line in [
            r#"rest_cascade_requests_total{route="/",status="200",outcome="partial"} 1"#,
            r#"rest_cascade_request_duration_seconds_bucket{le="0.005",route="/"} 0"#,
            r#"rest_cascade_request_duration_seconds_bucket{le="0.01",route="/"} 1"#,
            r#"rest_cascade_request_duration_seconds_bucket{le="+Inf",route="/"} 1"#,
            r#"rest_cascade_downstream_calls_total{reason="refused"} 1"#,
            r#"rest_cascade_open_connections{side="server"} 1"#,
            r#"rest_cascade_check_up{check="db",critical="true"} 0"#,
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
        for name in ["process_cpu_seconds_total", "process_open_fds", "process_resident_memory_bytes"] {
            assert!(text.lines().any(|line| line.starts_with(name)), "{name} is not in\n{text}");
        }
        drop(open);
        assert!(metrics.text().contains(r#"rest_cascade_open_connections{side="server"} 0"#));
    }

    #[test]
    fn buckets_never_fall_and_end_at_the_count() {
        let metrics = Metrics::new();
        let route = metrics.route("/");
        for ms in [0, 1, 3, 30, 300, 3000, 30_000] {
            route.ended(200, Outcome::Complete, Duration::from_millis(ms));
        }
        let counts: Vec<u64> = metrics
            .text()
            .lines()
            .filter(|line| line.starts_with("rest_cascade_request_duration_seconds_bucket"))
            .map(|line| line.rsplit(' ').next().and_then(|count| count.parse().ok()).expect(line))
            .collect();
        assert!(counts.is_sorted(), "{counts:?}");
        assert_eq!(counts.last(), Some(&7));
    }
}
