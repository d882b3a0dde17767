//! When a client connection has held its place too long: a head that does not end, or nothing moving at all.
//!
//! The connection's own task holds one timer and looks at these times only when it fires, so a request costs no timer.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Milliseconds since some moment, never 0.
pub(super) type Clock = fn() -> u64;

/// The kernel's coarse clock: right to a few milliseconds, and far cheaper than the precise one.
pub(super) fn coarse() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
    u64::try_from(now.tv_sec * 1000 + now.tv_nsec / 1_000_000).unwrap_or(0).max(1)
}

/// The times of one connection; clones are the same connection.
#[derive(Clone, Debug)]
pub(super) struct Slot(Arc<Times>);

#[derive(Debug)]
struct Times {
    clock: Clock,
    /// Milliseconds of the clock at which the last byte moved or the last request ended.
    moved: AtomicU64,
    /// The same of the first byte of a head that is not complete; 0 = none.
    head: AtomicU64,
    /// Requests being answered; HTTP/2 has many.
    busy: AtomicUsize,
    /// HTTP/2 frames are no heads: only the idle rule holds there.
    multiplexed: AtomicBool,
}

/// Guard of one request: the connection is busy until it drops.
pub(super) struct Busy(Slot);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.0.moved.store(self.0.now(), Relaxed);
        self.0.0.busy.fetch_sub(1, Relaxed);
    }
}

impl Slot {
    pub(super) fn new(clock: Clock) -> Slot {
        Slot(Arc::new(Times {
            clock,
            moved: AtomicU64::new(clock()),
            head: AtomicU64::new(0),
            busy: AtomicUsize::new(0),
            multiplexed: AtomicBool::new(false),
        }))
    }

    fn now(&self) -> u64 {
        (self.0.clock)()
    }

    pub(super) fn busy(&self) -> Busy {
        self.0.busy.fetch_add(1, Relaxed);
        self.0.head.store(0, Relaxed);
        Busy(self.clone())
    }

    fn received(&self, bytes: &[u8]) {
        let now = self.now();
        self.0.moved.store(now, Relaxed);
        if bytes.starts_with(b"PRI * HTTP/2.0") {
            self.0.multiplexed.store(true, Relaxed);
        }
        if self.0.busy.load(Relaxed) == 0 && self.0.head.load(Relaxed) == 0 {
            self.0.head.store(now, Relaxed);
        }
    }

    fn sent(&self) {
        self.0.moved.store(self.now(), Relaxed);
    }

    /// How long the connection may go on as things stand: `None` = its time is over.
    fn left(&self, header: Duration, idle: Duration) -> Option<Duration> {
        let since = |ms: u64| Duration::from_millis(self.now().saturating_sub(ms));
        if self.0.busy.load(Relaxed) > 0 {
            return Some(idle);
        }
        let idle_left = idle.checked_sub(since(self.0.moved.load(Relaxed)));
        match self.0.head.load(Relaxed) {
            0 => idle_left,
            _ if self.0.multiplexed.load(Relaxed) => idle_left,
            head => idle_left.min(header.checked_sub(since(head))),
        }
        .filter(|left| !left.is_zero())
    }

    /// Completes when the connection has held its place too long.
    pub(super) async fn expired(&self, header: Duration, idle: Duration) {
        while let Some(left) = self.left(header, idle) {
            // A head may begin right after this look: never sleep past its limit.
            tokio::time::sleep(left.min(header)).await;
        }
    }
}

/// A stream that tells its [`Slot`] what moves.
pub(super) struct Watched<S> {
    stream: S,
    slot: Slot,
}

impl<S> Watched<S> {
    pub(super) fn new(stream: S, slot: Slot) -> Watched<S> {
        Watched { stream, slot }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        if read.is_ready() && buf.filled().len() > before {
            self.slot.received(&buf.filled()[before..]);
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        if written.is_ready() {
            self.slot.sent();
        }
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        if written.is_ready() {
            self.slot.sent();
        }
        written
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

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    /// Tokio's clock, which the tests pause.
    fn paused() -> u64 {
        thread_local!(static START: Instant = Instant::now());
        START.with(|start| start.elapsed().as_millis() as u64 + 1)
    }

    const HEADER: Duration = Duration::from_secs(10);
    const IDLE: Duration = Duration::from_secs(75);

    async fn ends_after(slot: Slot) -> Duration {
        let start = Instant::now();
        slot.expired(HEADER, IDLE).await;
        start.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_without_a_byte_ends_at_the_idle_time_out() {
        assert_eq!(ends_after(Slot::new(paused)).await, IDLE);
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_that_drips_ends_at_the_header_time_out() {
        let slot = Slot::new(paused);
        tokio::time::advance(Duration::from_secs(5)).await;
        slot.received(b"G");
        let dripping = slot.clone();
        let drip = tokio::spawn(async move {
            loop {
                tokio::time::sleep(Duration::from_secs(1)).await;
                dripping.received(b"E");
            }
        });
        let end = ends_after(slot).await;
        assert!(end >= HEADER && end <= 2 * HEADER, "{end:?}");
        drip.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn a_busy_connection_ends_the_idle_time_out_after_its_answer() {
        let slot = Slot::new(paused);
        slot.received(b"GET / HTTP/1.1\r\n\r\n");
        let busy = slot.busy();
        let worker = slot.clone();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(300)).await;
            worker.sent();
            drop(busy);
        });
        let end = ends_after(slot).await;
        assert!(end >= Duration::from_secs(375) && end <= Duration::from_secs(386), "{end:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn http2_frames_are_no_heads() {
        let slot = Slot::new(paused);
        slot.received(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        assert!(ends_after(slot).await >= IDLE);
    }
}
