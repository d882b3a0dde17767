//! The way out: one call to the next node. `Downstream::attempt` shows the order of all that happens to it.

mod answer;
mod budget;
mod connection;
mod dial;
mod endpoints;
mod error;
mod events;
#[cfg(test)]
mod experiments;
mod hosts;
mod policy;
mod pool;
mod resolve;
mod retry;
mod target;
mod tls;
mod view;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use http::{HeaderMap, HeaderValue, Request, header};
use http_body_util::Empty;
use serde::Serialize;
use tokio::time::{Instant, sleep, timeout_at};

pub use answer::Answer;
pub use budget::Budget;
pub use error::CallError;
pub use policy::StartError;
pub use target::Targets;
pub use tls::TlsError;
pub use view::{Action, Circuit, Order, OrderError, View};

use crate::telemetry::{CallOutcome, Metrics};
use crate::units::{Span, span};
use crate::wire::{ATTEMPT_COUNT, EXPECTED_TIMEOUT, Reason};
use dial::Dialer;
use events::Events;
use hosts::{Key, NoHost, Outcome, Pick};
use policy::{Rules, Ruling};
use pool::core::Full;
use pool::{Lease, Miss, Pool};
use target::Target;

#[derive(Args, Clone, Debug, Serialize)]
#[command(next_help_heading = "Next node")]
#[group(skip)]
pub struct Settings {
    /// The next node, as http://service-2:8080; several replicas separated by commas; empty = the end of the cascade
    #[arg(long, default_value = "", hide_default_value = true, value_name = "URI")]
    pub target: Targets,
    /// A call to the next node ends after this long, whatever it waits for
    #[arg(long, default_value_t = Span::secs(10), value_name = "DURATION", value_parser = span(Span::millis(1), Span::secs(3600)))]
    pub timeout: Span,
    /// A connection to it (TCP and TLS) must stand after this long
    #[arg(long, default_value_t = Span::secs(2), value_name = "DURATION", value_parser = span(Span::millis(1), Span::secs(3600)))]
    pub connect_timeout: Span,
    /// A lookup of its name must be answered after this long
    #[arg(long, default_value_t = Span::secs(2), value_name = "DURATION", value_parser = span(Span::millis(1), Span::secs(60)))]
    pub dns_timeout: Span,
    /// Its name is looked up again this often, and 1s after a lookup that failed
    #[arg(long, default_value_t = Span::secs(4), value_name = "DURATION", value_parser = span(Span::millis(100), Span::secs(3600)))]
    pub dns_refresh: Span,
    /// A dead connection to it is noticed by TCP keepalive after this long, and three unanswered probes 10s apart
    #[arg(long, default_value_t = Span::secs(30), value_name = "DURATION", value_parser = span(Span::secs(1), Span::secs(899)))]
    pub tcp_keepalive: Span,
    /// A connection to it that nobody has used for this long is closed: below a node's own --idle-timeout, and below
    /// the 900 s after which Swarm forgets it
    #[arg(long, default_value_t = Span::secs(60), value_name = "DURATION", value_parser = span(Span::millis(1), Span::secs(899)))]
    pub pool_idle_timeout: Span,
    /// Istio DestinationRule and VirtualService whose timeout, retries, connectionPool and outlierDetection the calls
    /// follow; repeatable
    #[arg(long, value_name = "FILE")]
    pub policy: Vec<PathBuf>,
    /// PEM file with the authorities to trust for an https target, instead of the system's
    #[arg(long, value_name = "FILE")]
    pub target_ca: Option<PathBuf>,
}

/// The way to the next node; clones share everything.
#[derive(Clone)]
pub struct Downstream {
    shared: Arc<Shared>,
}

struct Shared {
    settings: Settings,
    dialer: Arc<Dialer>,
    pool: Pool,
    rules: Ruling,
    retrying: AtomicUsize,
    events: Events,
    metrics: Metrics,
}

/// One call: what it forwards, and how long it may take.
#[derive(Debug)]
pub struct Outgoing<'a> {
    pub query: Option<&'a str>,
    /// What goes on from the caller, and what the cascade adds; the target's own headers are added here.
    pub headers: HeaderMap,
    pub budget: Budget,
}

/// One attempt that failed.
struct Failed {
    error: CallError,
    /// Where it was made, if another may follow; `None` where it was the call's own end.
    tried: Option<Key>,
}

impl Failed {
    fn last(error: CallError) -> Failed {
        Failed { error, tried: None }
    }
}

impl Downstream {
    /// Whether there is a next node at all.
    pub fn is_leaf(&self) -> bool {
        self.shared.dialer.is_leaf()
    }

    pub fn settings(&self) -> &Settings {
        &self.shared.settings
    }

    /// The targets as they may be shown.
    pub fn shown(&self) -> String {
        self.shared.settings.target.to_string()
    }

    /// How long a call may take at most.
    pub fn timeout(&self) -> Duration {
        self.shared.rules.now().timeout
    }

    /// Calls the next node and reads its answer. Dropping the future cancels the call and closes its connection.
    ///
    /// # Errors
    /// Every way a call can fail, with its reason; by the end of the budget at the latest.
    pub async fn call(&self, mut outgoing: Outgoing<'_>) -> Result<Answer, CallError> {
        let mut counted = CountedCall { metrics: &self.shared.metrics, outcome: CallOutcome::Cancelled };
        let result = self.attempts(&mut outgoing).await;
        counted.outcome = result.as_ref().map_or_else(|error| CallOutcome::Failed(error.reason), |_| CallOutcome::Ok);
        result
    }

    /// Attempts until one succeeds, or its failure is none to retry, or nothing is left for another.
    async fn attempts(&self, outgoing: &mut Outgoing<'_>) -> Result<Answer, CallError> {
        let rules = self.shared.rules.now();
        let mut tried: Vec<Key> = Vec::new();
        let mut retrying = None;
        for number in 1.. {
            let result = self.attempt(outgoing, &rules, number, &tried).await;
            let metrics = &self.shared.metrics;
            let Failed { mut error, tried: last } = match result {
                Ok(answer) => {
                    if retrying.is_some() {
                        metrics.policy().retry_succeeded();
                    }
                    return Ok(answer);
                }
                Err(failed) => failed,
            };
            drop(retrying.take());
            let Some(last) = last else { return Err(error) };
            if rules.retries.attempts == 0 || !rules.retries.wants(&error) {
                return Err(error);
            }
            if number > rules.retries.attempts {
                error.retries_used_up = true;
                return Err(error);
            }
            retrying = self.shared.retry(&rules);
            if retrying.is_none() {
                metrics.policy().retry_overflow();
                return Err(error);
            }
            metrics.policy().retry();
            tried.push(last);
            let pause = retry::pause(number, rand::random());
            // What is left after it is the next attempt's to see.
            let _ = timeout_at(outgoing.budget.end, sleep(pause)).await;
        }
        unreachable!("attempts end by themselves")
    }

    async fn attempt(
        &self,
        outgoing: &mut Outgoing<'_>,
        rules: &Rules,
        number: u32,
        tried: &[Key],
    ) -> Result<Answer, Failed> {
        let Shared { dialer, pool, .. } = &*self.shared;
        let Budget { end, .. } = outgoing.budget;
        // 1. What the caller has left must do for the next node and for our own answer; an attempt may have less.
        let now = Instant::now();
        let left = outgoing.budget.for_next(now).ok_or_else(|| {
            let sentence = format!("too little time was left to call {}", self.shown());
            Failed::last(CallError::new(Reason::Deadline, sentence))
        })?;
        let try_end = rules.retries.per_try.map_or(end, |limit| end.min(now + limit));
        // 2. The endpoint whose turn it is, of those that are not ejected; one that was not tried yet, if there is.
        let pick = self.shared.pick(end, tried).await.map_err(Failed::last)?;
        let target = dialer.target(pick.key);
        // From here on the endpoint is charged with how it ends, also if our caller leaves.
        let mut charge = Charge { shared: &self.shared, pick, outcome: Outcome::Cancelled };
        let left = left.min(rules.retries.per_try.unwrap_or(left));
        let more = number <= rules.retries.attempts;
        let mut request = Some(request(target, outgoing, left, number, more).map_err(Failed::last)?);
        let failed = |error: CallError, charge: &mut Charge<'_>| {
            charge.outcome = policy::outcome(&error);
            Failed { error, tried: Some(pick.key) }
        };
        let mut died_waiting = false;
        loop {
            // 3. A connection: one that waits, else a place in the queue for the next one.
            let mut lease = match timeout_at(end, pool.checkout(pick.key, rules.wear)).await {
                Ok(Ok(lease)) => lease,
                Ok(Err(Miss::Full(full))) => return Err(Failed::last(overflow(full, target))),
                Ok(Err(Miss::Failed(error))) => return Err(failed(error, &mut charge)),
                // Whoever waits for a connection is not at the endpoint yet, so that it is not to blame: unless it
                // takes no connection at all (envoy#22395).
                Err(_) if pool.is_only_connecting(pick.key) => {
                    charge.outcome = Outcome::ConnectFailure;
                    return Err(Failed::last(dial::too_slow(target)));
                }
                Err(_) => return Err(Failed::last(too_late(target, rules, outgoing.budget))),
            };
            // 4. The exchange. A connection that dies before a byte of the answer died while it waited, which says
            //    nothing about the endpoint: the attempt goes on with another one.
            let waited = lease.served > 0;
            let sent = if waited { request.clone() } else { request.take() };
            let sent = sent.expect("only a new connection takes it, and that ends the attempt");
            let (result, read_out) = exchange(&mut lease, target, sent, try_end, end).await;
            let ended = matches!(&result, Ok(Err(error)) if error.is_end());
            let again = ended && waited && !died_waiting && !lease.was_answered();
            if read_out {
                lease.give_back(rules.wear);
            } else {
                drop(lease);
            }
            if again {
                died_waiting = true;
                // Those that wait beside it have most likely died with it.
                pool.drain(pick.key);
                self.shared.metrics.call_retried();
                continue;
            }
            // 5. What the endpoint is charged with.
            return match result {
                Ok(Ok(answer)) => {
                    charge.outcome = Outcome::Status(200);
                    Ok(answer)
                }
                Ok(Err(error)) => Err(failed(error, &mut charge)),
                Err(TooLate::Try) => {
                    self.shared.metrics.policy().try_timed_out();
                    Err(failed(try_too_late(target, rules), &mut charge))
                }
                Err(TooLate::Call) => {
                    self.shared.metrics.policy().timed_out();
                    Err(Failed { tried: None, ..failed(too_late(target, rules, outgoing.budget), &mut charge) })
                }
            };
        }
    }
}

fn too_late(target: &Target, rules: &Rules, budget: Budget) -> CallError {
    let reason = budget.exhausted();
    let sentence = match reason {
        // No figure: what the caller had left differs from call to call, and an answer's length must not.
        Reason::Deadline => format!("{target} did not answer before its caller's time was up"),
        _ => format!("{target} did not answer within {}", Span(rules.timeout)),
    };
    CallError::new(reason, sentence)
}

fn try_too_late(target: &Target, rules: &Rules) -> CallError {
    let limit = Span(rules.retries.per_try.unwrap_or_default());
    CallError::new(Reason::Timeout, format!("{target} did not answer within the {limit} of one attempt"))
}

fn overflow(full: Full, target: &Target) -> CallError {
    let sentence = match full {
        Full::Pending => format!("{target} was not called: too many requests wait for a connection to it"),
        Full::Requests => format!("{target} was not called: too many requests to it are under way"),
    };
    CallError::new(Reason::Overflow, sentence)
}

/// Which limit an exchange met.
enum TooLate {
    Try,
    Call,
}

/// Sends a request and reads its answer; with the result, whether the connection was read to the answer's end. One
/// attempt's limit holds until the answer's head, the call's until its end.
async fn exchange(
    lease: &mut Lease,
    target: &Target,
    request: Request<Empty<Bytes>>,
    try_end: Instant,
    end: Instant,
) -> (Result<Result<Answer, CallError>, TooLate>, bool) {
    let response = match timeout_at(try_end, lease.send(request)).await {
        Ok(Ok(response)) => response,
        Ok(Err(error)) => return (Ok(Err(answer::none(target, &error, lease.was_answered()))), false),
        Err(_) if try_end < end => return (Err(TooLate::Try), false),
        Err(_) => return (Err(TooLate::Call), false),
    };
    match timeout_at(end, answer::read(lease, target, response)).await {
        Ok((result, read_out)) => (Ok(result), read_out),
        Err(_) => (Err(TooLate::Call), false),
    }
}

impl Shared {
    /// The endpoint for one attempt. Waits only where nothing is known yet.
    async fn pick(&self, end: Instant, tried: &[Key]) -> Result<Pick, CallError> {
        if self.dialer.knows_nothing() {
            self.dialer.first_lookups(end).await;
        }
        let picked = self.dialer.hosts().pick(Instant::now(), tried);
        picked.map_err(|none| match none {
            NoHost::Empty => self.dialer.unresolved(),
            NoHost::AllEjected => {
                let sentence = format!("{} was not called: every endpoint is ejected", self.settings.target);
                CallError::new(Reason::NoHealthy, sentence)
            }
        })
    }

    /// A place among the retries that are under way, if there is one.
    fn retry(&self, rules: &Rules) -> Option<Retrying<'_>> {
        let before = self.retrying.fetch_add(1, Relaxed);
        let retrying = Retrying(&self.retrying);
        rules.retries.allow(before, self.pool.load()).then_some(retrying)
    }
}

struct Retrying<'a>(&'a AtomicUsize);

impl Drop for Retrying<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// Charges the endpoint with how an attempt ended, also one whose future is dropped.
struct Charge<'a> {
    shared: &'a Shared,
    pick: Pick,
    outcome: Outcome,
}

impl Drop for Charge<'_> {
    fn drop(&mut self) {
        let event = self.shared.dialer.hosts().charge(self.pick, self.outcome, Instant::now());
        if let Some(event) = event {
            self.shared.happened(event);
        }
    }
}

/// Counts the call when it ends, also when its future is dropped.
struct CountedCall<'a> {
    metrics: &'a Metrics,
    outcome: CallOutcome,
}

impl Drop for CountedCall<'_> {
    fn drop(&mut self) {
        self.metrics.call_ended(self.outcome);
    }
}

/// The `number`th request of a call to `target`. Takes the headers out of `outgoing`, unless `more` may follow.
fn request(
    target: &Target,
    outgoing: &mut Outgoing<'_>,
    left: Duration,
    number: u32,
    more: bool,
) -> Result<Request<Empty<Bytes>>, CallError> {
    let path = target.path_and_query(outgoing.query).map_err(|error| {
        CallError::new(Reason::TooLarge, format!("the query for {target} cannot be forwarded: {error}"))
    })?;
    let mut request = Request::new(Empty::new());
    *request.uri_mut() = path.into();
    *request.headers_mut() = if more { outgoing.headers.clone() } else { std::mem::take(&mut outgoing.headers) };
    let headers = request.headers_mut();
    headers.insert(header::HOST, target.authority.clone());
    headers.insert(header::USER_AGENT, HeaderValue::from_static(concat!("rest-cascade/", env!("CARGO_PKG_VERSION"))));
    if let Some(authorization) = &target.authorization {
        headers.insert(header::AUTHORIZATION, authorization.clone());
    }
    headers.insert(EXPECTED_TIMEOUT, HeaderValue::from(u64::try_from(left.as_millis()).unwrap_or(u64::MAX)));
    if number > 1 {
        headers.insert(ATTEMPT_COUNT, HeaderValue::from(number));
    }
    Ok(request)
}
