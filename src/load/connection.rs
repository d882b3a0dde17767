//! One connection to the target: opens it, sends a request, reads the answer, says what went wrong and when.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Instant;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::Sleep;
use tokio_rustls::TlsConnector;

use super::aim::Aim;
use super::answer::{self, Body, Head, MAX_HEAD};
use super::outcome::{Cause, Flag, Verdict};
use crate::wire::Reason;

/// Most answers fit into it whole.
const BUFFER: usize = 16 * 1024;

trait Stream: AsyncRead + AsyncWrite + Unpin {}
impl<S: AsyncRead + AsyncWrite + Unpin> Stream for S {}

/// An open connection.
pub(super) struct Connection {
    stream: Transport,
    buffer: Vec<u8>,
    deadline: Deadline,
    pub(super) received: u64,
}

enum Transport {
    Plain(TcpStream),
    // Boxed: it is large, and rare.
    Tls(Box<dyn Stream>),
}

/// What is asked of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ask<'a> {
    pub(super) request: &'a [u8],
    /// It is a HEAD request: no body follows.
    pub(super) to_head: bool,
    /// Say what the server calls itself.
    pub(super) wants_server: bool,
}

/// What came back for one request.
#[derive(Clone, Debug, Default)]
pub(super) struct Reply {
    pub(super) status: Option<u16>,
    pub(super) flag: Option<Flag>,
    pub(super) body: u64,
    /// When its first byte came.
    pub(super) first_byte: Option<Instant>,
    pub(super) server: Option<String>,
    /// The connection can be used again.
    pub(super) keeps: bool,
}

impl Connection {
    /// Connects to the first address that takes it, with TLS where the aim asks for it.
    pub(super) async fn open(aim: &Aim, until: Instant) -> Result<Connection, Reason> {
        let mut deadline = Deadline::new(until);
        let opened = deadline.limit(until, connect(aim)).await;
        let stream = opened.unwrap_or(Err(Reason::ConnectTimeout))?;
        // It cannot fail on a TCP socket that is open; if the peer has gone already, the request finds out.
        let _ = stream.set_nodelay(true);
        let stream = match aim.tls() {
            None => Transport::Plain(stream),
            Some((config, name)) => {
                let shaken = deadline.limit(until, TlsConnector::from(config).connect(name, stream)).await;
                let stream = shaken.ok_or(Reason::ConnectTimeout)?.map_err(|_| Reason::Tls)?;
                Transport::Tls(Box::new(stream))
            }
        };
        Ok(Connection { stream, buffer: vec![0; BUFFER], deadline, received: 0 })
    }

    /// Sends a request and reads the whole answer.
    pub(super) async fn exchange(&mut self, ask: Ask<'_>, until: Instant) -> (Verdict, Reply) {
        self.received = 0;
        let mut reply = Reply::default();
        let Connection { stream, buffer, deadline, received } = self;
        let work = async {
            match stream {
                Transport::Plain(stream) => exchange(stream, buffer, received, ask, &mut reply).await,
                Transport::Tls(stream) => exchange(stream, buffer, received, ask, &mut reply).await,
            }
        };
        let ended = deadline.limit(until, work).await.unwrap_or(Err(Reason::Timeout));
        let verdict = match ended {
            Ok(verdict) => verdict,
            Err(reason) => {
                reply.keeps = false;
                Verdict::Failed(Cause::Broken(reason))
            }
        };
        (verdict, reply)
    }

    /// Whether the peer has left it open while it was idle; asks the kernel only if there is news.
    pub(super) fn is_open(&self) -> bool {
        match &self.stream {
            Transport::Plain(stream) => {
                matches!(stream.try_read(&mut [0]), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
            }
            // Whether what is there is an end or a ticket only a read can tell.
            Transport::Tls(_) => true,
        }
    }
}

async fn connect(aim: &Aim) -> Result<TcpStream, Reason> {
    let mut last = Reason::Refused;
    for (place, address) in aim.addresses() {
        match TcpStream::connect(address).await {
            Ok(stream) => {
                aim.was_good(place);
                return Ok(stream);
            }
            Err(error) => last = not_connected(&error),
        }
    }
    Err(last)
}

async fn exchange<S: Stream>(
    stream: &mut S,
    buffer: &mut Vec<u8>,
    received: &mut u64,
    ask: Ask<'_>,
    reply: &mut Reply,
) -> Result<Verdict, Reason> {
    let written = stream.write_all(ask.request).await;
    // A peer may answer before it has read all, and close: what it said counts.
    let mut filled = 0;
    let mut head = loop {
        if filled == buffer.len() {
            buffer.resize((filled * 2).min(MAX_HEAD), 0);
        }
        let read = stream.read(&mut buffer[filled..]).await.map_err(|error| broken(&error, filled))?;
        if read == 0 {
            let nothing = if written.is_err() { Reason::Reset } else { Reason::Closed };
            return Err(if filled == 0 { nothing } else { Reason::Truncated });
        }
        reply.first_byte.get_or_insert_with(Instant::now);
        *received += read as u64;
        filled += read;
        let Some(mut head) = final_head(buffer, &mut filled, ask.to_head)? else { continue };
        reply.status = Some(head.status);
        reply.flag = head.flag;
        reply.keeps = head.keeps;
        if ask.wants_server {
            reply.server = answer::server(&buffer[..head.length]);
        }
        let (taken, content) = head.body.take(&buffer[head.length..filled])?;
        reply.body = content;
        // What follows the answer was not asked for; the two ends no longer agree on where a message begins.
        reply.keeps &= taken == filled - head.length;
        break head;
    };
    read_body(stream, buffer, received, &mut head.body, reply).await?;
    Ok(match head.status {
        200..300 | 304 if head.partial => Verdict::Partial(head.failure),
        200..300 | 304 => Verdict::Complete,
        status => Verdict::Failed(Cause::Status(status)),
    })
}

/// The answer's own head; interim ones before it are dropped from the buffer.
fn final_head(buffer: &mut [u8], filled: &mut usize, to_head: bool) -> Result<Option<Head>, Reason> {
    loop {
        let Some(head) = Head::parse(&buffer[..*filled], to_head)? else { return Ok(None) };
        if !head.is_interim() {
            return Ok(Some(head));
        }
        buffer.copy_within(head.length..*filled, 0);
        *filled -= head.length;
    }
}

async fn read_body<S: Stream>(
    stream: &mut S,
    buffer: &mut [u8],
    received: &mut u64,
    body: &mut Body,
    reply: &mut Reply,
) -> Result<(), Reason> {
    while !body.is_over() {
        let read = match stream.read(buffer).await {
            Ok(0) if body.ends_by_close() => return Ok(()),
            Ok(0) => return Err(Reason::Truncated),
            Ok(read) => read,
            Err(error) => return Err(broken(&error, 1)),
        };
        *received += read as u64;
        let (taken, content) = body.take(&buffer[..read])?;
        reply.body += content;
        reply.keeps &= taken == read;
    }
    Ok(())
}

/// Nobody took the connection.
fn not_connected(error: &io::Error) -> Reason {
    use io::ErrorKind::{AddrInUse, AddrNotAvailable, ConnectionReset, TimedOut};
    use rustix::io::Errno;
    let exhausted = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
    match error.kind() {
        ConnectionReset => Reason::Reset,
        TimedOut => Reason::ConnectTimeout,
        // Out of ports, or of descriptors: the load's own limit, not the target's fault.
        AddrInUse | AddrNotAvailable => Reason::Overflow,
        _ if exhausted.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error())) => Reason::Overflow,
        _ => Reason::Refused,
    }
}

/// The connection broke after `read` bytes of an answer.
fn broken(error: &io::Error, read: usize) -> Reason {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    match error.kind() {
        ConnectionReset | BrokenPipe | ConnectionAborted => Reason::Reset,
        UnexpectedEof if read > 0 => Reason::Truncated,
        UnexpectedEof => Reason::Closed,
        _ => Reason::Reset,
    }
}

/// A timer for one exchange after the other. Setting a timer for each costs more than the rest of the loop; this one
/// is left as it is until it goes off, and only then set to what is due by then.
struct Deadline(Pin<Box<Sleep>>);

impl Deadline {
    fn new(until: Instant) -> Deadline {
        Deadline(Box::pin(tokio::time::sleep_until(until.into())))
    }

    /// `None` if `work` is not done by `until`.
    async fn limit<T>(&mut self, until: Instant, work: impl Future<Output = T>) -> Option<T> {
        let mut work = pin!(work);
        poll_fn(|cx| {
            if let Poll::Ready(done) = work.as_mut().poll(cx) {
                return Poll::Ready(Some(done));
            }
            while self.0.as_mut().poll(cx).is_ready() {
                if Instant::now() >= until {
                    return Poll::Ready(None);
                }
                self.0.as_mut().reset(until.into());
            }
            Poll::Pending
        })
        .await
    }
}
