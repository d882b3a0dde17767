//! Breaks a client's connection in place of an answer, on request.
//!
//! On HTTP/1 hyper gets a stand-in for the answer. The stream finds it in what hyper writes (answers to earlier
//! requests may stand before it), writes what was planned instead, and ends. On HTTP/2 the connection belongs to other
//! requests too, so only the one stream is reset: at once, or for `truncate` in the middle of the body.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderValue, Response, Version, header, response};
use http_body::Frame;
use hyper::ext::ReasonPhrase;
use socket2::SockRef;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};

use crate::fault::{Count, ToAbort};
use crate::wire::Abort;

/// The end of the stand-in's first line; what comes before it is `HTTP/1.0` or `HTTP/1.1`.
const STAND_IN: &[u8] = b" 200 stand-in\r\n";
const VERSION: usize = b"HTTP/1.1".len();
/// A body that is to be cut is one of ours, and small.
const MAX_CUT: usize = 64 * 1024;
/// Enough for frames that are ready to be written.
const MOMENT: Duration = Duration::from_millis(50);

/// The answer is not sent: the HTTP/2 stream is reset.
#[derive(Debug, Error)]
#[error("broken off on request")]
pub(super) struct BrokenOff;

/// What is planned for one connection; clones are the same connection's.
#[derive(Clone, Debug, Default)]
pub(super) struct Sabotage(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// The one thing that a connection without faults looks at.
    armed: AtomicBool,
    plan: Mutex<Option<Plan>>,
}

#[derive(Debug)]
struct Plan {
    bytes: Vec<u8>,
    reset: bool,
    carried_out: Count,
}

impl Sabotage {
    /// Plans what `mark` asks for. The answer that comes back is for hyper, not for the client.
    ///
    /// # Errors
    /// On HTTP/2, where that resets the stream.
    pub(super) async fn plan(
        &self,
        mark: ToAbort,
        response: Response<Body>,
        version: Version,
        head_only: bool,
    ) -> Result<Response<Body>, BrokenOff> {
        let ToAbort { abort, carried_out, raw } = mark;
        let (head, body) = response.into_parts();
        let body = axum::body::to_bytes(body, MAX_CUT).await.unwrap_or_default();
        if version == Version::HTTP_2 {
            carried_out.add();
            return match abort {
                Abort::Truncate => {
                    let half = Some(body.slice(..body.len() / 2));
                    let moment = Box::pin(sleep(MOMENT));
                    Ok(Response::from_parts(head, Body::new(Cut { half, length: body.len(), moment })))
                }
                Abort::Reset | Abort::Empty | Abort::Garbage => Err(BrokenOff),
            };
        }
        let made = || match abort {
            Abort::Reset | Abort::Empty => Vec::new(),
            Abort::Garbage => garbage(),
            Abort::Truncate => truncated(&head, &body, version, head_only),
        };
        let bytes = raw.unwrap_or_else(made);
        let plan = Plan { bytes, reset: abort == Abort::Reset, carried_out };
        *self.0.plan.lock().unwrap_or_else(PoisonError::into_inner) = Some(plan);
        self.0.armed.store(true, Relaxed);
        let mut stand_in = Response::new(Body::empty());
        stand_in.extensions_mut().insert(ReasonPhrase::from_static(b"stand-in"));
        stand_in.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        Ok(stand_in)
    }
}

/// Bytes that no reader can take for the begin of an answer.
fn garbage() -> Vec<u8> {
    let mut bytes: [u8; 32] = rand::random();
    bytes[0] |= 0x80;
    bytes.to_vec()
}

/// The answer up to the middle of its only chunk. Where there can be no chunk, what is cut is the body by its length,
/// and for HEAD the head.
fn truncated(head: &response::Parts, body: &[u8], version: Version, head_only: bool) -> Vec<u8> {
    let chunked = version == Version::HTTP_11;
    let mut bytes = format!("{version:?} {}\r\n", head.status).into_bytes();
    let framing = [header::CONTENT_LENGTH, header::TRANSFER_ENCODING, header::CONNECTION];
    for (name, value) in head.headers.iter().filter(|(name, _)| !framing.contains(name)) {
        bytes.extend_from_slice(name.as_str().as_bytes());
        bytes.extend_from_slice(b": ");
        bytes.extend_from_slice(value.as_bytes());
        bytes.extend_from_slice(b"\r\n");
    }
    if head_only {
        return bytes;
    }
    let rest = match chunked {
        true => format!("transfer-encoding: chunked\r\n\r\n{:x}\r\n", body.len()),
        false => format!("content-length: {}\r\n\r\n", body.len()),
    };
    bytes.extend_from_slice(rest.as_bytes());
    bytes.extend_from_slice(&body[..body.len() / 2]);
    bytes
}

/// Half a body, then an error: after a moment, as a reset throws away what is still to be written.
struct Cut {
    half: Option<Bytes>,
    length: usize,
    moment: Pin<Box<Sleep>>,
}

impl http_body::Body for Cut {
    type Data = Bytes;
    type Error = BrokenOff;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BrokenOff>>> {
        if let Some(half) = self.half.take() {
            return Poll::Ready(Some(Ok(Frame::data(half))));
        }
        ready!(self.moment.as_mut().poll(cx));
        Poll::Ready(Some(Err(BrokenOff)))
    }

    fn size_hint(&self) -> http_body::SizeHint {
        http_body::SizeHint::with_exact(self.length as u64)
    }
}

/// A client's connection that can be broken.
pub(super) struct Breakable {
    stream: TcpStream,
    sabotage: Sabotage,
    stage: Stage,
}

enum Stage {
    Whole,
    Writing { bytes: Vec<u8>, written: usize, reset: bool, carried_out: Count },
    Broken { reset: bool },
}

impl Breakable {
    pub(super) fn new(stream: TcpStream, sabotage: Sabotage) -> Breakable {
        Breakable { stream, sabotage, stage: Stage::Whole }
    }

    fn is_armed(&self) -> bool {
        self.sabotage.0.armed.load(Relaxed)
    }

    /// Writes in the sense of the plan. To hyper it looks as if all had been written.
    fn poll_sabotage(&mut self, cx: &mut Context<'_>, bufs: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        if matches!(self.stage, Stage::Whole) {
            let all = bufs.iter().flat_map(|buf| buf.iter().copied()).collect::<Vec<_>>();
            let Some(at) = stand_in(&all) else {
                return Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
            };
            let plan = self.sabotage.0.plan.lock().unwrap_or_else(PoisonError::into_inner).take();
            let Some(Plan { bytes, reset, carried_out }) = plan else {
                return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
            };
            let bytes = [&all[..at], &bytes].concat();
            self.stage = Stage::Writing { bytes, written: 0, reset, carried_out };
        }
        if let Stage::Writing { bytes, written, reset, carried_out } = &mut self.stage {
            while *written < bytes.len() {
                *written += ready!(Pin::new(&mut self.stream).poll_write(cx, &bytes[*written..]))?;
            }
            if *reset {
                // With nothing to linger for, closing the socket sends RST.
                SockRef::from(&self.stream).set_linger(Some(Duration::ZERO))?;
            }
            carried_out.add();
            self.stage = Stage::Broken { reset: *reset };
        }
        Poll::Ready(Ok(bufs.iter().map(|buf| buf.len()).sum()))
    }

    /// Throws away what has been received: closing with unread bytes would reset the connection.
    fn discard(&mut self, cx: &mut Context<'_>) {
        let mut scratch = [0; 4096];
        loop {
            let mut buf = ReadBuf::new(&mut scratch);
            match Pin::new(&mut self.stream).poll_read(cx, &mut buf) {
                Poll::Ready(Ok(())) if !buf.filled().is_empty() => {}
                _ => return,
            }
        }
    }
}

/// Where the stand-in begins. It is the last answer that hyper writes.
fn stand_in(bytes: &[u8]) -> Option<usize> {
    bytes.windows(STAND_IN.len()).rposition(|window| window == STAND_IN)?.checked_sub(VERSION)
}

impl AsyncRead for Breakable {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Breakable {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if self.is_armed() {
            return self.poll_sabotage(cx, &[io::IoSlice::new(buf)]);
        }
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.is_armed() {
            return self.poll_sabotage(cx, bufs);
        }
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.stage {
            // A FIN would come before the RST.
            Stage::Broken { reset: true } => return Poll::Ready(Ok(())),
            Stage::Broken { reset: false } => self.discard(cx),
            Stage::Whole | Stage::Writing { .. } => {}
        }
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
