//! One HTTP/1.1 connection to the target.
//!
//! This is the one seam to the network on the way out, built on hyper's connection-level client. A pooled client
//! (reqwest, hyper-util) can neither cap its connections nor bound its waiting queue, and costs more: five hops took
//! 145 µs of CPU a request with reqwest, 117 with hyper-util's client, 88 with a pool of our own (nginx: 81).
//! A connection has no task of its own: the request that uses it drives it, which saves two task switches a call.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
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
use super::hosts::Key;
use super::target::Target;
use super::tls;
use crate::telemetry::{Counted, Metrics, Side};
use crate::wire::Reason;

/// Pause between keepalive probes, and how many go unanswered. Keepalive also keeps idle connections known to what is
/// between: Swarm's IPVS forgets them after 900 s.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_PROBES: u32 = 3;
/// The read buffer's limit is what bounds an answer's head.
const MAX_HEAD: usize = 64 * 1024;

type Driver = Pin<Box<dyn Future<Output = hyper::Result<()>> + Send>>;

/// An open connection. Dropping it closes it, which tells the target that nobody waits any more.
pub(super) struct Connection {
    sender: SendRequest<Empty<Bytes>>,
    /// `None` once the connection has ended.
    driver: Option<Driver>,
    received: Arc<AtomicU64>,
    /// The endpoint that it leads to: of a name with both address families not always the one that was asked for.
    pub(super) endpoint: Key,
    /// Requests that it has carried, the one under way included.
    pub(super) served: u32,
    pub(super) born: Instant,
    _open: Counted,
}

impl Connection {
    /// Connects, with TLS where the target asks for it.
    pub(super) async fn open(
        target: &Target,
        endpoint: Key,
        tls: Option<&TlsConnector>,
        keepalive: Duration,
        metrics: &Metrics,
    ) -> Result<Connection, CallError> {
        let stream = TcpStream::connect(endpoint.1).await.map_err(|error| refused(target, &error))?;
        let open = metrics.connection(Side::Client);
        let socket = SockRef::from(&stream);
        // Neither can fail on a TCP socket that is open; if the peer has gone already, the request finds out.
        let keepalive =
            TcpKeepalive::new().with_time(keepalive).with_interval(KEEPALIVE_INTERVAL).with_retries(KEEPALIVE_PROBES);
        let _ = socket.set_tcp_nodelay(true).and_then(|()| socket.set_tcp_keepalive(&keepalive));
        let received = Arc::new(AtomicU64::new(0));
        match tls {
            None => Connection::start(Metered { stream, received: received.clone() }, endpoint, received, open).await,
            Some(connector) => {
                let broken = |why: String| CallError::new(Reason::Tls, format!("{target}: {why}"));
                let name = tls::server_name(&target.host).map_err(broken)?;
                let stream = connector.connect(name, stream).await.map_err(|error| broken(error.to_string()))?;
                Connection::start(Metered { stream, received: received.clone() }, endpoint, received, open).await
            }
        }
        .map_err(|error| CallError::new(Reason::Protocol, format!("{target}: {error}")))
    }

    async fn start<S>(stream: S, endpoint: Key, received: Arc<AtomicU64>, open: Counted) -> hyper::Result<Connection>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (sender, driver) =
            http1::Builder::new().max_buf_size(MAX_HEAD).writev(false).handshake(TokioIo::new(stream)).await?;
        let born = Instant::now();
        Ok(Connection { sender, driver: Some(Box::pin(driver)), received, endpoint, served: 0, born, _open: open })
    }

    /// Sends a request; completes with the answer's head.
    pub(super) async fn send(&mut self, request: Request<Empty<Bytes>>) -> hyper::Result<Response<Incoming>> {
        self.received.store(0, Relaxed);
        self.served += 1;
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
    pub(super) fn is_usable(&mut self) -> bool {
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
