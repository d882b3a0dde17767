//! The server edge: an accept loop, limits on what a client may hold, and the drain. Knows no route.

mod listen;
mod slot;

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use clap::Args;
use hyper::body::Incoming;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use serde::Serialize;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::Service;
use tracing::{info, warn};

pub use listen::{BindError, bind};
use slot::{Slot, Watched};

use crate::telemetry::{Metrics, Side};
use crate::units::{Span, count, span};

/// Request line and headers together, in bytes; more is answered with 431.
const MAX_HEAD: usize = 16 * 1024;
/// After a failed accept (no file descriptors left, say) the next one waits this long: trying at once would spin.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);

#[derive(Args, Clone, Debug, Serialize)]
#[command(next_help_heading = "Server")]
#[group(skip)]
pub struct Settings {
    /// Port to listen on, on every IPv6 and IPv4 address; 0 takes a free one
    #[arg(long, default_value_t = 8080, value_name = "PORT")]
    pub port: u16,
    /// One address to listen on instead, as ADDR:PORT or [ADDR]:PORT; a host name is looked up once
    #[arg(long, value_name = "ADDR:PORT")]
    pub listen: Option<String>,
    /// Worker threads, each with a runtime and a listener of its own; 0 = as many as the CPU quota allows
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
    /// The worker threads to start: as asked for, or what the CPU quota (cgroup, affinity) allows.
    pub fn worker_count(&self) -> usize {
        match self.workers {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            workers => workers,
        }
    }
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
    connections: TaskTracker,
    closing: CancellationToken,
    cutting: CancellationToken,
    metrics: Metrics,
}

impl Server {
    pub fn new(settings: Settings, metrics: Metrics) -> Server {
        let places = Arc::new(Semaphore::new(settings.max_connections));
        Server {
            shared: Arc::new(Shared {
                settings,
                places,
                full: AtomicBool::new(false),
                connections: TaskTracker::new(),
                closing: CancellationToken::new(),
                cutting: CancellationToken::new(),
                metrics,
            }),
        }
    }

    /// Accepts and serves connections until [`Server::close`]; the connections then finish on their own.
    ///
    /// # Errors
    /// Only if the listener cannot be registered with the runtime; failed accepts are logged and survived.
    pub async fn serve(&self, listener: std::net::TcpListener, routes: Router) -> io::Result<()> {
        let listener = TcpListener::from_std(listener)?;
        let shared = &self.shared;
        loop {
            let accepted = tokio::select! {
                biased;
                () = shared.closing.cancelled() => return Ok(()),
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, peer)) => {
                    let Some(place) = shared.place().await else { return Ok(()) };
                    let connection = connection(self.clone(), stream, peer, routes.clone(), place);
                    shared.connections.spawn(connection);
                }
                Err(error) if is_of_the_peer(&error) => {}
                Err(error) => {
                    warn!(%error, "cannot accept a connection: {error}; next try in {ACCEPT_BACKOFF:?}");
                    tokio::time::sleep(ACCEPT_BACKOFF).await;
                }
            }
        }
    }

    /// Stops accepting; idle connections close, busy ones after their answer.
    pub fn close(&self) {
        self.shared.closing.cancel();
        self.shared.connections.close();
    }

    /// Waits until every connection has ended, at most `limit`; then cuts the rest and returns how many those were.
    pub async fn drained(&self, limit: Duration) -> usize {
        if tokio::time::timeout(limit, self.shared.connections.wait()).await.is_ok() {
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

async fn connection(server: Server, stream: TcpStream, peer: SocketAddr, routes: Router, place: OwnedSemaphorePermit) {
    let Shared { settings, closing, cutting, metrics, .. } = &*server.shared;
    let _open = metrics.connection(Side::Server);
    // Answers are small and written whole: waiting for more to send would only delay them.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "no TCP_NODELAY for {peer}");
    }
    let slot = Slot::new();
    let service = hyper::service::service_fn(|request| answer(routes.clone(), slot.clone(), request));
    let mut builder = auto::Builder::new(TokioExecutor::new());
    // No header_read_timeout of hyper's: it would also end idle connections, and costs a timer for each request.
    // No pipeline_flush: it would hold back the 400 or 431 to a head that cannot be read, until the connection is gone.
    builder.http1().timer(TokioTimer::new()).header_read_timeout(None).max_buf_size(MAX_HEAD);
    builder.http2().timer(TokioTimer::new()).max_header_list_size(MAX_HEAD as u32).max_concurrent_streams(256);
    let connection = builder.serve_connection(TokioIo::new(Watched::new(stream, slot.clone())), service);
    tokio::pin!(connection);
    let expired = slot.expired(*settings.header_timeout, *settings.idle_timeout);
    tokio::pin!(expired);
    let mut closing_seen = false;
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
            () = closing.cancelled(), if !closing_seen => {
                closing_seen = true;
                connection.as_mut().graceful_shutdown();
            }
            () = cutting.cancelled(), if closing_seen => break,
        }
    }
    drop(place);
}

async fn answer(mut routes: Router, slot: Slot, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
    let _busy = slot.busy();
    routes.call(request).await
}
