//! The way out: one call to the next node. [`Downstream::call`] shows the order of all that happens to it.

mod answer;
mod budget;
mod connection;
mod endpoints;
mod error;
mod resolve;
mod target;
mod tls;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use http::{HeaderMap, HeaderValue, Request, header};
use http_body_util::Empty;
use serde::Serialize;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;

pub use answer::Answer;
pub use budget::Budget;
pub use error::CallError;
pub use target::Targets;
pub use tls::TlsError;

use crate::telemetry::{CallOutcome, Metrics};
use crate::units::{Span, span};
use crate::wire::{EXPECTED_TIMEOUT, Reason};
use connection::{Connection, Key, Pool};
use endpoints::{Family, Known, RoundRobin};
use target::{Target, TargetHost};

/// How often idle connections are looked at.
const SWEEP: Duration = Duration::from_secs(1);

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
    /// PEM file with the authorities to trust for an https target, instead of the system's
    #[arg(long, value_name = "FILE")]
    pub target_ca: Option<PathBuf>,
}

/// The way to the next node; clones share everything. [`Downstream::on_this_worker`] has connections of its own.
#[derive(Clone)]
pub struct Downstream {
    shared: Arc<Shared>,
    pool: Pool,
}

struct Shared {
    settings: Settings,
    replicas: Vec<Replica>,
    turns: RoundRobin,
    tls: Option<TlsConnector>,
    metrics: Metrics,
}

/// One target of the list.
struct Replica {
    target: Target,
    known: watch::Receiver<Arc<Known>>,
    family: Family,
}

/// One call: what it forwards, and how long it may take.
#[derive(Debug)]
pub struct Outgoing<'a> {
    pub query: Option<&'a str>,
    /// What goes on from the caller, and what the cascade adds; the target's own headers are added here.
    pub headers: HeaderMap,
    pub budget: Budget,
}

impl Downstream {
    /// Starts to resolve the targets' names, on the current runtime.
    ///
    /// # Errors
    /// If an https target's authorities cannot be loaded.
    pub fn start(settings: Settings, metrics: Metrics) -> Result<Downstream, TlsError> {
        let targets = &settings.target.0;
        // A file that was named is read also where no target needs it: a wrong name must not wait for the day it does.
        let tls = match settings.target_ca.is_some() || targets.iter().any(|target| target.secure) {
            true => Some(TlsConnector::from(tls::config(settings.target_ca.as_deref())?)),
            false => None,
        };
        let replicas = targets.iter().map(|target| Replica::start(target.clone(), &settings)).collect();
        let shared = Shared { replicas, turns: RoundRobin::default(), tls, metrics, settings };
        Ok(Downstream { shared: Arc::new(shared), pool: Pool::default() })
    }

    /// The same way out with connections of its own, which live on the current runtime.
    pub fn on_this_worker(&self) -> Downstream {
        let pool = Pool::default();
        let (shared, still) = (Arc::clone(&self.shared), pool.downgrade());
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(SWEEP).await;
                let Some(pool) = still() else { return };
                let limit = *shared.settings.pool_idle_timeout;
                pool.sweep(Instant::now(), limit, |key| shared.is_current(key));
            }
        });
        Downstream { shared: Arc::clone(&self.shared), pool }
    }

    /// Whether there is a next node at all.
    pub fn is_leaf(&self) -> bool {
        self.shared.replicas.is_empty()
    }

    pub fn settings(&self) -> &Settings {
        &self.shared.settings
    }

    /// The targets as they may be shown.
    pub fn shown(&self) -> String {
        self.shared.settings.target.to_string()
    }

    /// Calls the next node and reads its answer. Dropping the future cancels the call and closes its connection.
    ///
    /// # Errors
    /// Every way a call can fail, with its reason; by the end of the budget at the latest.
    pub async fn call(&self, mut outgoing: Outgoing<'_>) -> Result<Answer, CallError> {
        let mut counted = CountedCall { metrics: &self.shared.metrics, outcome: CallOutcome::Cancelled };
        let result = self.attempt(&mut outgoing).await;
        counted.outcome = result.as_ref().map_or_else(|error| CallOutcome::Failed(error.reason), |_| CallOutcome::Ok);
        result
    }

    async fn attempt(&self, outgoing: &mut Outgoing<'_>) -> Result<Answer, CallError> {
        let end = outgoing.budget.end;
        // 1. What the caller has left must do for the next node and for our own answer.
        let left = outgoing.budget.for_next(Instant::now()).ok_or_else(|| {
            CallError::new(Reason::Deadline, format!("too little time was left to call {}", self.shown()))
        })?;
        // 2. The next replica in turn, at an address that its name has now.
        let endpoint = self.shared.next_endpoint(end).await?;
        let request = request(&endpoint.replica.target, outgoing, left)?;
        // 3. A connection that waits. If it dies before a byte of the answer, it died while it waited, which says
        //    nothing about the target: the call goes on with a new one.
        if let Some(connection) = self.pool.take(endpoint.key()) {
            match self.exchange(connection, &endpoint, request.clone(), outgoing.budget).await {
                Err(Unanswered::DiedWaiting) => self.shared.metrics.call_retried(),
                Err(Unanswered::Failed(error)) => return Err(error),
                Ok(answer) => return Ok(answer),
            }
        }
        // 4. Else a new connection.
        let (endpoint, connection) = self.shared.connect(endpoint, end).await?;
        self.exchange(connection, &endpoint, request, outgoing.budget).await.map_err(|unanswered| match unanswered {
            Unanswered::Failed(error) => error,
            Unanswered::DiedWaiting => unreachable!("a new connection never waited"),
        })
    }

    async fn exchange(
        &self,
        mut connection: Connection,
        endpoint: &Endpoint<'_>,
        request: Request<Empty<Bytes>>,
        budget: Budget,
    ) -> Result<Answer, Unanswered> {
        let target = &endpoint.replica.target;
        let exchange = async {
            match connection.send(request).await {
                Ok(response) => answer::read(&mut connection, target, response).await,
                Err(error) => (Err(answer::none(target, &error, connection.was_answered())), false),
            }
        };
        let (result, read_out) = timeout_at(budget.end, exchange).await.map_err(|_| self.too_late(target, budget))?;
        if read_out {
            self.pool.give(endpoint.key(), connection, Instant::now());
            return result.map_err(Unanswered::Failed);
        }
        result.map_err(|error| match error.reason {
            Reason::Closed | Reason::Reset if connection.reused && !connection.was_answered() => {
                Unanswered::DiedWaiting
            }
            _ => Unanswered::Failed(error),
        })
    }
}

impl Downstream {
    fn too_late(&self, target: &Target, budget: Budget) -> CallError {
        let reason = budget.exhausted();
        let sentence = match reason {
            // No figure: what the caller had left differs from call to call, and an answer's length must not.
            Reason::Deadline => format!("{target} did not answer before its caller's time was up"),
            _ => format!("{target} did not answer within {}", self.shared.settings.timeout),
        };
        CallError::new(reason, sentence)
    }
}

/// Why an exchange gave no answer.
enum Unanswered {
    Failed(CallError),
    /// A connection that had waited in the pool ended before any byte of an answer.
    DiedWaiting,
}

impl From<CallError> for Unanswered {
    fn from(error: CallError) -> Unanswered {
        Unanswered::Failed(error)
    }
}

/// One address of one replica, as chosen for one call.
struct Endpoint<'a> {
    place: usize,
    replica: &'a Replica,
    address: IpAddr,
}

impl Endpoint<'_> {
    fn key(&self) -> Key {
        (self.place, SocketAddr::new(self.address, self.replica.target.port))
    }
}

impl Replica {
    fn start(target: Target, settings: &Settings) -> Replica {
        let known = match &target.host {
            TargetHost::Name(name) => resolve::follow(name.clone(), *settings.dns_timeout, *settings.dns_refresh),
            TargetHost::Address(address) => {
                watch::channel(Arc::new(Known::Nothing.after(endpoints::Lookup::Found(vec![*address])))).1
            }
        };
        Replica { target, known, family: Family::default() }
    }

    fn known(&self) -> Arc<Known> {
        Arc::clone(&self.known.borrow())
    }
}

impl Shared {
    /// The next endpoint in turn over all addresses of all replicas. Waits only where nothing is known yet.
    async fn next_endpoint(&self, end: Instant) -> Result<Endpoint<'_>, CallError> {
        let looked_up = async {
            for replica in &self.replicas {
                // Fails only if the lookups have stopped; what was known last then stands.
                let _ = replica.known.clone().wait_for(|known| **known != Known::Nothing).await;
            }
        };
        if self.replicas.iter().all(|replica| **replica.known.borrow() == Known::Nothing) {
            // Past the end, what is known is looked at all the same: it says that the name is what was missing.
            let _ = timeout_at(end, looked_up).await;
        }
        let count = |replica: &Replica| replica.known.borrow().usable(&replica.family).count();
        let mut turn = self.turns.next(self.replicas.iter().map(count).sum());
        for (place, replica) in self.replicas.iter().enumerate() {
            let Some(left) = turn else { break };
            let known = replica.known.borrow();
            match known.usable(&replica.family).nth(left) {
                Some(address) => return Ok(Endpoint { place, replica, address }),
                None => turn = left.checked_sub(known.usable(&replica.family).count()),
            }
        }
        // None at all; or a lookup has just taken away the one whose turn it was.
        Err(self.unresolved())
    }

    fn unresolved(&self) -> CallError {
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
    async fn connect<'a>(&self, endpoint: Endpoint<'a>, end: Instant) -> Result<(Endpoint<'a>, Connection), CallError> {
        let known = endpoint.replica.known();
        let mut error = match self.connect_once(&endpoint, end).await {
            Ok(connection) => return Ok((endpoint, connection)),
            Err(error) => error,
        };
        if let Some(address) = known.other_way(endpoint.address) {
            let other = Endpoint { address, ..endpoint };
            match self.connect_once(&other, end).await {
                Ok(connection) => return Ok((other, connection)),
                // Of two failures, the one that got further says more of the target.
                Err(second) if second.reason != Reason::Refused => error = second,
                Err(_) => {}
            }
        }
        if matches!(*known, Known::Addresses { vanished: true, .. }) {
            return Err(CallError::new(
                Reason::Dns,
                format!("{}: its name has no address any more", endpoint.replica.target),
            ));
        }
        Err(error)
    }

    async fn connect_once(&self, endpoint: &Endpoint<'_>, end: Instant) -> Result<Connection, CallError> {
        let Endpoint { replica: Replica { target, family, .. }, address, .. } = endpoint;
        let tls = self.tls.as_ref().filter(|_| target.secure);
        let limit = end.min(Instant::now() + *self.settings.connect_timeout);
        let opened = timeout_at(
            limit,
            Connection::open(target, endpoint.key().1, tls, *self.settings.tcp_keepalive, &self.metrics),
        )
        .await;
        let connection = opened.map_err(|_| {
            CallError::new(Reason::ConnectTimeout, format!("{target} did not take the connection in time"))
        })??;
        family.worked(*address);
        Ok(connection)
    }

    fn is_current(&self, (place, address): Key) -> bool {
        self.replicas.get(place).is_some_and(|replica| replica.known.borrow().addresses().contains(&address.ip()))
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

/// The request to `target`. Takes the headers out of `outgoing`: they are needed nowhere else.
fn request(target: &Target, outgoing: &mut Outgoing<'_>, left: Duration) -> Result<Request<Empty<Bytes>>, CallError> {
    let path = target.path_and_query(outgoing.query).map_err(|error| {
        CallError::new(Reason::TooLarge, format!("the query for {target} cannot be forwarded: {error}"))
    })?;
    let mut request = Request::new(Empty::new());
    *request.uri_mut() = path.into();
    *request.headers_mut() = std::mem::take(&mut outgoing.headers);
    let headers = request.headers_mut();
    headers.insert(header::HOST, target.authority.clone());
    headers.insert(header::USER_AGENT, HeaderValue::from_static(concat!("rest-cascade/", env!("CARGO_PKG_VERSION"))));
    if let Some(authorization) = &target.authorization {
        headers.insert(header::AUTHORIZATION, authorization.clone());
    }
    headers.insert(EXPECTED_TIMEOUT, HeaderValue::from(u64::try_from(left.as_millis()).unwrap_or(u64::MAX)));
    Ok(request)
}
