//! One HTTP/1.1 connection to the target, and those that wait to be used again.
//!
//! This is the one seam to the network on the way out, built on hyper's connection-level client. A pooled client
//! (reqwest, hyper-util) can neither cap its connections nor bound its waiting queue, and costs more: five hops took
//! 145 µs of CPU a request with reqwest, 117 with hyper-util's client, 88 with a pool of our own (nginx: 81).
//! A connection has no task of its own: the request that uses it drives it, which saves two task switches a call.

use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;

use super::error::CallError;
use super::target::Target;
use super::tls;
use crate::telemetry::{Counted, Metrics, Side};
use crate::wire::Reason;

/// Pause between keepalive probes, and how many go unanswered. Keepalive also keeps idle connections known to what is
/// between: Swarm's IPVS forgets them after 900 s.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_PROBES: u32 = 3;
/// Connections to one endpoint that are kept for a next burst, and how long after one the others are closed.
const KEPT: usize = 32;
const BURST_OVER: Duration = Duration::from_secs(2);
/// The read buffer's limit is what bounds an answer's head.
const MAX_HEAD: usize = 64 * 1024;

type Driver = Pin<Box<dyn Future<Output = hyper::Result<()>> + Send>>;

/// An open connection. Dropping it closes it, which tells the target that nobody waits any more.
pub(super) struct Connection {
    sender: SendRequest<Empty<Bytes>>,
    /// `None` once the connection has ended.
    driver: Option<Driver>,
    received: Arc<AtomicU64>,
    /// It has carried a request before.
    pub(super) reused: bool,
    _open: Counted,
}

impl Connection {
    /// Connects, with TLS where the target asks for it.
    pub(super) async fn open(
        target: &Target,
        address: SocketAddr,
        tls: Option<&TlsConnector>,
        keepalive: Duration,
        metrics: &Metrics,
    ) -> Result<Connection, CallError> {
        let stream = TcpStream::connect(address).await.map_err(|error| refused(target, &error))?;
        let open = metrics.connection(Side::Client);
        let socket = SockRef::from(&stream);
        // Neither can fail on a TCP socket that is open; if the peer has gone already, the request finds out.
        let keepalive =
            TcpKeepalive::new().with_time(keepalive).with_interval(KEEPALIVE_INTERVAL).with_retries(KEEPALIVE_PROBES);
        let _ = socket.set_tcp_nodelay(true).and_then(|()| socket.set_tcp_keepalive(&keepalive));
        let received = Arc::new(AtomicU64::new(0));
        match tls {
            None => Connection::start(Metered { stream, received: received.clone() }, received, open).await,
            Some(connector) => {
                let broken = |why: String| CallError::new(Reason::Tls, format!("{target}: {why}"));
                let name = tls::server_name(&target.host).map_err(broken)?;
                let stream = connector.connect(name, stream).await.map_err(|error| broken(error.to_string()))?;
                Connection::start(Metered { stream, received: received.clone() }, received, open).await
            }
        }
        .map_err(|error| CallError::new(Reason::Protocol, format!("{target}: {error}")))
    }

    async fn start<S>(stream: S, received: Arc<AtomicU64>, open: Counted) -> hyper::Result<Connection>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (sender, driver) =
            http1::Builder::new().max_buf_size(MAX_HEAD).writev(false).handshake(TokioIo::new(stream)).await?;
        Ok(Connection { sender, driver: Some(Box::pin(driver)), received, reused: false, _open: open })
    }

    /// Sends a request; completes with the answer's head.
    pub(super) async fn send(&mut self, request: Request<Empty<Bytes>>) -> hyper::Result<Response<Incoming>> {
        self.received.store(0, Relaxed);
        let answer = self.sender.send_request(request);
        drive(&mut self.driver, answer).await
    }

    /// Runs `work`, which reads this connection's answer, while the connection is driven.
    pub(super) async fn drive<T>(&mut self, work: impl Future<Output = T>) -> T {
        drive(&mut self.driver, work).await
    }

    /// Whether any byte came back since the last request was sent.
    pub(super) fn was_answered(&self) -> bool {
        self.received.load(Relaxed) > 0
    }

    /// Whether it can carry another request: polls it once, which notices a peer that has closed.
    fn is_usable(&mut self) -> bool {
        let Some(driver) = &mut self.driver else { return false };
        if driver.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() {
            self.driver = None;
        }
        self.driver.is_some() && self.sender.is_ready()
    }
}

async fn drive<T>(driver: &mut Option<Driver>, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    // Only the connection gets the waker. The work moves when the connection does, and is polled right after it in
    // the same poll; to be woken for that would cost one more round of the whole task.
    poll_fn(|cx| {
        if driver.as_mut().is_some_and(|driver| driver.as_mut().poll(cx).is_ready()) {
            *driver = None;
        }
        work.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    })
    .await
}

fn refused(target: &Target, error: &io::Error) -> CallError {
    use io::ErrorKind::{ConnectionRefused, ConnectionReset, TimedOut};
    let reason = match error.kind() {
        ConnectionRefused => return CallError::new(Reason::Refused, format!("{target} refused the connection")),
        ConnectionReset => Reason::Reset,
        TimedOut => Reason::ConnectTimeout,
        _ if is_exhausted(error) => Reason::Overflow,
        // No route, no such network: nobody is there to take the connection, and the network said so at once.
        _ => Reason::Refused,
    };
    CallError::new(reason, format!("{target} cannot be connected: {error}"))
}

/// We are out of descriptors or ports: our own limit, not the target's fault.
fn is_exhausted(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let codes = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
    error.raw_os_error().is_some_and(|code| codes.iter().any(|errno| errno.raw_os_error() == code))
}

/// Counts what is read, so that a connection that died before any answer is told from one that died within.
struct Metered<S> {
    stream: S,
    received: Arc<AtomicU64>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Metered<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        self.received.fetch_add((buf.filled().len() - before) as u64, Relaxed);
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Metered<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Which connections are alike: the target's place in the list, and the address.
pub(super) type Key = (usize, SocketAddr);

/// Connections that wait to be used again. Clones are the same pool; each worker has one of its own, as a connection
/// belongs to the runtime that opened it.
#[derive(Clone, Default)]
pub(super) struct Pool(Arc<Mutex<Vec<Lane>>>);

/// The connections to one endpoint. There are few of those: looking through them beats hashing.
struct Lane {
    key: Key,
    waiting: Vec<Waiting>,
}

struct Waiting {
    connection: Connection,
    since: Instant,
}

impl Pool {
    /// The connection that was used last: the others may grow old and go.
    pub(super) fn take(&self, key: Key) -> Option<Connection> {
        let mut idle = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let lane = idle.iter_mut().find(|lane| lane.key == key)?;
        while let Some(Waiting { mut connection, .. }) = lane.waiting.pop() {
            if connection.is_usable() {
                return Some(connection);
            }
        }
        None
    }

    /// Keeps a connection whose answer was read to its end, if the peer does.
    pub(super) fn give(&self, key: Key, mut connection: Connection, now: Instant) {
        connection.reused = true;
        if connection.is_usable() {
            let mut idle = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let waiting = Waiting { connection, since: now };
            match idle.iter_mut().find(|lane| lane.key == key) {
                Some(lane) => lane.waiting.push(waiting),
                None => idle.push(Lane { key, waiting: vec![waiting] }),
            }
        }
    }

    /// Closes connections that have waited longer than `limit`, that the peer has closed, or whose address is gone.
    pub(super) fn sweep(&self, now: Instant, limit: Duration, mut is_current: impl FnMut(Key) -> bool) {
        let mut idle = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain_mut(|Lane { key, waiting }| {
            let current = is_current(*key);
            // The oldest come first. What a burst has left behind goes soon, all but a few for the next one.
            let mut surplus = waiting.len().saturating_sub(KEPT);
            waiting.retain_mut(|waiting| {
                let waited = now.duration_since(waiting.since);
                let left_behind = surplus > 0 && waited > BURST_OVER;
                surplus = surplus.saturating_sub(1);
                current && !left_behind && waited < limit && waiting.connection.is_usable()
            });
            !waiting.is_empty()
        });
    }

    pub(super) fn downgrade(&self) -> impl Fn() -> Option<Pool> + Send + 'static {
        let weak = Arc::downgrade(&self.0);
        move || weak.upgrade().map(Pool)
    }
}
