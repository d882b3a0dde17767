//! What weighs on a node on request: CPU time, memory, and answers that take their time. No thread that serves is held.

use std::hint::black_box;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use http_body::{Frame, SizeHint};
use memmap2::MmapMut;
use rustix::time::{ClockId, clock_gettime};
use tokio::time::{Instant, Sleep, sleep_until};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tracing::error;

use crate::fault::{InForce, Seat};

/// In how many pieces a dribbled body goes out at most.
const PIECES: usize = 20;
const MIB: usize = 1024 * 1024;

/// Burns CPU time on a thread that serves nobody; false if the faults ended meanwhile. As many requests burn at a time
/// as there are CPUs, the others wait: more threads would burn no more.
pub(super) async fn burn(cpu: Duration, faults: &InForce) -> bool {
    let ended = faults.ended();
    let turn = tokio::select! {
        biased;
        () = ended.cancelled() => return false,
        turn = faults.burners().clone().acquire_owned() => turn.expect("the semaphore is never closed"),
    };
    // A request that is dropped stops burning, too.
    let stop = ended.child_token();
    let _stopped = stop.clone().drop_guard();
    let burned = tokio::task::spawn_blocking(move || {
        let _turn = turn;
        let (start, mut state) = (thread_time(), 1_u64);
        while thread_time() - start < cpu && !stop.is_cancelled() {
            for _ in 0..10_000 {
                state = black_box(state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
            }
        }
    });
    burned.await.is_ok() && !ended.is_cancelled()
}

fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Takes the memory that `faults` ask for, and gives it back when they end. Returns when it is held.
pub(super) async fn hold(faults: Arc<InForce>) -> Result<(), String> {
    let Some(mib) = faults.spec().hold_mib.filter(|_| faults.applies()) else { return Ok(()) };
    let (held, holding) = tokio::sync::oneshot::channel();
    // In a task of its own: the memory stays when the client that asked for it goes.
    tokio::spawn(async move {
        // One after the other: what was replaced is given back before the next takes its share.
        let _only = faults.holding().clone().acquire_owned().await;
        let ended = faults.ended().clone();
        let memory = tokio::task::spawn_blocking(move || touched(mib, &ended)).await;
        match memory.map_err(|error| error.to_string()).and_then(|memory| memory) {
            Ok(memory) => {
                faults.counts().held_mib.set(mib);
                let _ = held.send(Ok(()));
                faults.ended().cancelled().await;
                faults.counts().held_mib.set(0);
                drop(memory);
            }
            Err(why) => {
                error!("{mib} MiB cannot be held: {why}");
                let _ = held.send(Err(format!("hold_mib: {mib} MiB cannot be held: {why}")));
            }
        }
    });
    holding.await.unwrap_or_else(|_| Err("hold_mib: the node is stopping".to_owned()))
}

/// Memory that is really there: the kernel gives a page when it is first written. Mapped by itself, so that dropping it
/// gives it back at once. Stops early when the faults end.
fn touched(mib: u64, ended: &CancellationToken) -> Result<MmapMut, String> {
    let length = usize::try_from(mib).map_err(|error| error.to_string())? * MIB;
    let mut memory = MmapMut::map_anon(length).map_err(|error| error.to_string())?;
    for part in memory.chunks_mut(MIB) {
        if ended.is_cancelled() {
            break;
        }
        part.fill(1);
    }
    Ok(memory)
}

/// A body that goes out piece by piece. The head goes at once, the last piece when the time is over.
pub(super) struct Dribble {
    left: Bytes,
    piece: usize,
    pause: Duration,
    next: Pin<Box<Sleep>>,
    ended: Pin<Box<WaitForCancellationFutureOwned>>,
    /// The worker is busy until the last piece is out.
    _seat: Option<Seat>,
}

impl Dribble {
    /// `whole` spread over the time `over`.
    pub(super) fn body(whole: Bytes, over: Duration, faults: &InForce, seat: Option<Seat>) -> Body {
        let piece = whole.len().div_ceil(PIECES).max(1);
        let pieces = whole.len().div_ceil(piece).max(1);
        let pause = over / u32::try_from(pieces).unwrap_or(u32::MAX);
        Body::new(Dribble {
            piece,
            left: whole,
            pause,
            next: Box::pin(sleep_until(Instant::now() + pause)),
            ended: Box::pin(faults.ended().clone().cancelled_owned()),
            _seat: seat,
        })
    }
}

impl HttpBody for Dribble {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if self.left.is_empty() {
            return Poll::Ready(None);
        }
        // When the faults end, what is left goes out at once.
        if self.ended.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut self.left)))));
        }
        ready!(pin!(&mut self.next).poll(cx));
        let next = self.next.deadline() + self.pause;
        self.next.as_mut().reset(next);
        let piece = self.piece.min(self.left.len());
        Poll::Ready(Some(Ok(Frame::data(self.left.split_to(piece)))))
    }

    fn is_end_stream(&self) -> bool {
        self.left.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left.len() as u64)
    }
}
