//! The server edge: an accept loop, limits on what a client may hold, and the drain. Knows no route.

mod announce;
mod listen;
mod sabotage;
mod slot;

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub use announce::announce;
pub use axum::body::Body;
use clap::Args;
use hyper::body::Incoming;
use hyper::{Method, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use serde::Serialize;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

use listen::BACKLOG;
pub use listen::{BindError, Listeners, bind};
use sabotage::{Breakable, BrokenOff, Sabotage};
use slot::{Slot, Watched};

use crate::fault::ToAbort;
use crate::telemetry::{Metrics, Side};
use crate::units::{Span, count, span};

/// Request line and headers together, in bytes; more is answered with 431.
const MAX_HEAD: usize = 16 * 1024;
/// After a failed accept (no file descriptors left, say) the next one waits this long: trying at once would spin.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);
const TELL_AGAIN: Duration = Duration::from_secs(10);
/// Open connections to the port of `--control-listen`.
const CONTROL_CONNECTIONS: usize = 64;
/// Nobody waits to be accepted any more when nobody is for this long.
const LAST_ACCEPT: Duration = Duration::from_millis(2);
/// A request that is on its way when the listener closes has this long to arrive: its client cannot know.
const LAST_CALL: Duration = Duration::from_millis(50);
/// From then on, a connection without a whole request is given up after this long.
const LAST_HEAD: Duration = Duration::from_secs(1);

#[derive(Args, Clone, Debug, Serialize)]
#[command(next_help_heading = "Server")]
#[group(skip)]
pub struct Settings {
    /// Port to listen on, on every IPv6 and IPv4 address; 0 takes a free one
    #[arg(long, default_value_t = 8080, value_name = "PORT")]
    pub port: u16,
    /// One address to listen on instead, as ADDR:PORT, an IPv6 one in brackets; a host name is looked up once
    #[arg(long, value_name = "ADDR:PORT")]
    pub listen: Option<String>,
    /// Move control, metrics and configuration to an address of their own; probes answer on both
    #[arg(long, value_name = "ADDR:PORT")]
    pub control_listen: Option<String>,
    /// Worker threads, each with a runtime and a listener of its own; 0 = as many as the CPU quota has, 1 without one
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = count(0, 256))]
    pub workers: usize,
    /// Open client connections; further ones wait to be accepted
    #[arg(long, default_value_t = 10_000, value_name = "N", value_parser = count(1, 1_000_000))]
    pub max_connections: usize,
    /// A request's head must be complete this long after its first byte
    #[arg(long, default_value_t = Span::secs(10), value_name = "DURATION", value_parser = span(Span::millis(10), Span::secs(3600)))]
    pub header_timeout: Span,
    /// A client connection on which nothing moves is closed after this long
    #[arg(long, default_value_t = Span::secs(75), value_name = "DURATION", value_parser = span(Span::millis(10), Span::secs(3600)))]
    pub idle_timeout: Span,
    /// After SIGTERM, keep serving this long while /ready already says 503
    #[arg(long, default_value_t = Span::secs(0), value_name = "DURATION", value_parser = span(Span::secs(0), Span::secs(3600)))]
    pub drain_delay: Span,
    /// Then give the requests in flight this long to finish
    #[arg(long, default_value_t = Span::secs(10), value_name = "DURATION", value_parser = span(Span::secs(0), Span::secs(3600)))]
    pub drain_timeout: Span,
}

impl Settings {
    /// The worker threads to start: as asked for, else what the CPU quota has, else 1. Nodes come in fives on one
    /// machine, where one worker each is faster: 100 µs of CPU for five hops on two cores, 118 with two workers each.
    pub fn worker_count(&self) -> usize {
        match self.workers {
            0 => cpu_quota().unwrap_or(1),
            workers => workers,
        }
    }
}

/// The CPUs of the container's quota (cgroup v2, then v1), rounded up; `None` without a quota.
fn cpu_quota() -> Option<usize> {
    let read = |file: &str| std::fs::read_to_string(format!("/sys/fs/cgroup/{file}")).ok();
    let (quota, period) = match read("cpu.max") {
        Some(line) => line.trim().split_once(' ').map(|(quota, period)| (quota.to_owned(), period.to_owned()))?,
        None => (read("cpu/cpu.cfs_quota_us")?, read("cpu/cpu.cfs_period_us")?),
    };
    // `max` and -1 stand for no quota.
    let quota: usize = quota.trim().parse().ok()?;
    let period: usize = period.trim().parse().ok().filter(|period| *period > 0)?;
    Some(quota.div_ceil(period).max(1))
}

/// What all workers share: the limits, the open connections, the signal to close. Clones are the same server.
#[derive(Clone, Debug)]
pub struct Server {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    settings: Settings,
    places: Arc<Semaphore>,
    full: AtomicBool,
    /// The accept loops: what they still take in counts before the connections do.
    listening: TaskTracker,
    connections: TaskTracker,
    closing: CancellationToken,
    cutting: CancellationToken,
    metrics: Metrics,
}

/// What answers the requests.
pub trait Answers: Clone + Send + Sync + 'static {
    fn answer(&self, request: Request<Incoming>) -> impl Future<Output = Response<Body>> + Send;

    /// The one that answers the requests of a new connection.
    fn for_connection(&self) -> Self {
        self.clone()
    }
}

impl Server {
    pub fn new(settings: Settings, metrics: Metrics) -> Server {
        let places = Arc::new(Semaphore::new(settings.max_connections));
        Server {
            shared: Arc::new(Shared {
                settings,
                places,
                full: AtomicBool::new(false),
                listening: TaskTracker::new(),
                connections: TaskTracker::new(),
                closing: CancellationToken::new(),
                cutting: CancellationToken::new(),
                metrics,
            }),
        }
    }

    /// The same server with places of its own, for a listener that must be reached while all others are taken.
    pub fn for_control(&self) -> Server {
        let shared = Shared {
            settings: Settings { max_connections: CONTROL_CONNECTIONS, ..self.shared.settings.clone() },
            places: Arc::new(Semaphore::new(CONTROL_CONNECTIONS)),
            full: AtomicBool::new(false),
            listening: self.shared.listening.clone(),
            connections: self.shared.connections.clone(),
            closing: self.shared.closing.clone(),
            cutting: self.shared.cutting.clone(),
            metrics: self.shared.metrics.clone(),
        };
        Server { shared: Arc::new(shared) }
    }

    /// Accepts and serves connections until [`Server::close`]; the connections then finish on their own.
    ///
    /// # Errors
    /// Only if the listener cannot be registered with the runtime; failed accepts are logged and survived.
    pub async fn serve(&self, listener: std::net::TcpListener, site: impl Answers) -> io::Result<()> {
        let listener = TcpListener::from_std(listener)?;
        let shared = &self.shared;
        let _listening = shared.listening.token();
        let mut told: Option<Instant> = None;
        loop {
            let accepted = tokio::select! {
                biased;
                () = shared.closing.cancelled() => break,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, peer)) => self.take_in(stream, peer, &site).await,
                Err(error) if is_of_the_peer(&error) => {}
                Err(error) => {
                    // It fails again and again until the cause is gone: now and then is often enough to tell.
                    if told.is_none_or(|told| told.elapsed() > TELL_AGAIN) {
                        warn!(%error, "cannot accept connections: {error}; trying each {ACCEPT_BACKOFF:?}");
                        told = Some(Instant::now());
                    }
                    tokio::time::sleep(ACCEPT_BACKOFF).await;
                }
            }
        }
        // Those who wait to be accepted would be reset by the closing of the listener.
        for _ in 0..BACKLOG {
            let Ok(Ok((stream, peer))) = tokio::time::timeout(LAST_ACCEPT, listener.accept()).await else { break };
            self.take_in(stream, peer, &site).await;
        }
        Ok(())
    }

    async fn take_in(&self, stream: TcpStream, peer: SocketAddr, site: &impl Answers) {
        if let Some(place) = self.shared.place().await {
            self.shared.connections.spawn(connection(self.clone(), stream, peer, site.for_connection(), place));
        }
    }

    /// Stops accepting; idle connections close, busy ones after their answer.
    pub fn close(&self) {
        self.shared.closing.cancel();
        self.shared.listening.close();
        self.shared.connections.close();
    }

    /// Waits until every connection has ended, at most `limit`; then cuts the rest and returns how many those were.
    pub async fn drained(&self, limit: Duration) -> usize {
        let ended = async {
            self.shared.listening.wait().await;
            self.shared.connections.wait().await;
        };
        if tokio::time::timeout(limit, ended).await.is_ok() {
            return 0;
        }
        let cut = self.shared.connections.len();
        self.shared.cutting.cancel();
        cut
    }

    /// Open client connections.
    pub fn open(&self) -> usize {
        self.shared.connections.len()
    }
}

impl Shared {
    /// A place for one more connection; waits where all are taken, `None` when the server closes meanwhile.
    async fn place(&self) -> Option<OwnedSemaphorePermit> {
        if let Ok(place) = Arc::clone(&self.places).try_acquire_owned() {
            if self.full.swap(false, Ordering::Relaxed) {
                info!("below {} open connections again, accepting", self.settings.max_connections);
            }
            return Some(place);
        }
        if !self.full.swap(true, Ordering::Relaxed) {
            let limit = self.settings.max_connections;
            warn!(limit, "all {limit} connections of --max-connections are open: further ones wait");
        }
        tokio::select! {
            () = self.closing.cancelled() => None,
            place = Arc::clone(&self.places).acquire_owned() => place.ok(),
        }
    }
}

/// The client went away between its SYN and our accept: nothing of ours is wrong.
fn is_of_the_peer(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

async fn connection(
    server: Server,
    stream: TcpStream,
    peer: SocketAddr,
    site: impl Answers,
    place: OwnedSemaphorePermit,
) {
    let Shared { settings, closing, cutting, metrics, .. } = &*server.shared;
    let _open = metrics.connection(Side::Server);
    // Answers are small and written whole: waiting for more to send would only delay them.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "no TCP_NODELAY for {peer}");
    }
    let (slot, sabotage) = (Slot::new(slot::coarse), Sabotage::default());
    let service = hyper::service::service_fn(|request| {
        let (busy, site, sabotage) = (slot.busy(), site.clone(), sabotage.clone());
        async move {
            let _busy = busy;
            answer(&site, &sabotage, request).await
        }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    // No header_read_timeout of hyper's: it would also end idle connections, and costs a timer for each request.
    // No pipeline_flush: it would hold back the 400 or 431 to a head that cannot be read, until the connection is gone,
    // and drop finished answers when a connection closes while more has been received.
    // No writev: an answer's head and body are small, and one buffer is sent faster than two.
    builder.http1().timer(TokioTimer::new()).header_read_timeout(None).max_buf_size(MAX_HEAD).writev(false);
    builder.http2().timer(TokioTimer::new()).max_header_list_size(MAX_HEAD as u32).max_concurrent_streams(256);
    let stream = Watched::new(Breakable::new(stream, sabotage.clone()), slot.clone());
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let expired = slot.expired(*settings.header_timeout, *settings.idle_timeout);
    tokio::pin!(expired);
    let last_call = async {
        closing.cancelled().await;
        tokio::time::sleep(LAST_CALL).await;
    };
    tokio::pin!(last_call);
    let mut leaving = false;
    loop {
        tokio::select! {
            biased;
            ended = connection.as_mut() => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "connection of {peer} ended");
                }
                break;
            }
            () = expired.as_mut() => break,
            () = last_call.as_mut(), if !leaving => {
                leaving = true;
                connection.as_mut().graceful_shutdown();
                expired.set(slot.expired(LAST_HEAD, LAST_HEAD));
            }
            () = cutting.cancelled(), if leaving => break,
        }
    }
    drop(place);
}

async fn answer(
    site: &impl Answers,
    sabotage: &Sabotage,
    request: Request<Incoming>,
) -> Result<Response<Body>, BrokenOff> {
    let (version, head_only) = (request.version(), request.method() == Method::HEAD);
    let response = site.answer(request).await;
    match response.extensions().get::<ToAbort>().cloned() {
        None => Ok(response),
        Some(mark) => sabotage.plan(mark, response, version, head_only).await,
    }
}
