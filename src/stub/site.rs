//! One request's way through the stub: queue, worker, delay, answer. A worker's job is a task of its own: it does not
//! notice when its client goes, as a thread does not.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request, Response, StatusCode, header};
use http_body::Frame;
use http_body_util::{BodyExt, Limited, StreamBody};
use hyper::body::Incoming;
use hyper::ext::ReasonPhrase;
use serde_json::json;
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;

use super::admin;
use super::book::Book;
use super::mapping::{Dribble, Fault, Stub};
use super::matching::Seen;
use super::settings::{OnQueueFull, QueueOrder, Workers};
use crate::fault::{Count, Full, Seat, Seats, Ticket, ToAbort};
use crate::server::{Answers, Body};
use crate::wire::{Abort, DeadWork};

/// The largest body of a request, in bytes.
const MAX_BODY: usize = 4 * 1024 * 1024;
/// Answered without a worker: what a lab must see while all of them are busy.
const GAUGES: &str = "/__admin/rest-cascade/workers";
const NO_STUBS: &str = "No response could be served as there are no stub mappings in this WireMock instance.";
/// What WireMock writes in place of HTTP.
const GARBAGE: &[u8] = b"lskdu018973t09sylgasjkfg1][]'./.sdlv";

/// The stub as one connection sees it.
#[derive(Clone)]
pub(super) struct Site {
    shared: Arc<Shared>,
    /// The worker that stays with this connection for a moment.
    kept: Arc<Mutex<Option<Seat>>>,
}

pub(super) struct Shared {
    pub(super) book: Book,
    pub(super) seats: Seats,
    pub(super) settings: Workers,
    pub(super) worked: Count,
    pub(super) dead_worked: Count,
    pub(super) skipped: Count,
    pub(super) refused: Count,
    pub(super) shutdown: tokio_util::sync::CancellationToken,
}

impl Site {
    pub(super) fn new(shared: Arc<Shared>) -> Site {
        Site { shared, kept: Arc::default() }
    }

    async fn respond(&self, request: Request<Incoming>) -> Response<Body> {
        let shared = &self.shared;
        let (head, body) = request.into_parts();
        if head.uri.path() == GAUGES {
            return shared.gauges();
        }
        let body = match Limited::new(body, MAX_BODY).collect().await {
            Ok(body) => body.to_bytes(),
            Err(_) => return text(StatusCode::PAYLOAD_TOO_LARGE, format!("a body is at most {MAX_BODY} bytes")),
        };
        let seen = Seen { method: head.method, uri: head.uri, headers: head.headers, body };
        // In a statement of its own: the lock must not be held while a place is waited for.
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner).take();
        let ticket = match kept {
            Some(seat) => Ticket::Now(seat),
            None => match shared.seats.enter().await {
                Ok(ticket) => ticket,
                Err(Full) => return shared.full(),
            },
        };
        let (tell, told) = oneshot::channel();
        let (shared, kept) = (Arc::clone(shared), Arc::clone(&self.kept));
        tokio::spawn(job(shared, kept, ticket, seen, tell));
        told.await.unwrap_or_else(|_| text(StatusCode::SERVICE_UNAVAILABLE, "the stub is ending".to_owned()))
    }
}

impl Answers for Site {
    async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        self.respond(request).await
    }

    fn for_connection(&self) -> Site {
        Site::new(Arc::clone(&self.shared))
    }
}

impl Shared {
    fn gauges(&self) -> Response<Body> {
        admin::json(
            StatusCode::OK,
            &json!({
                "workers": self.seats.workers(),
                "busy": self.seats.busy(),
                "queued": self.seats.waiting(),
                "worked": self.worked.get(),
                "deadWorked": self.dead_worked.get(),
                "skipped": self.skipped.get(),
                "refused": self.refused.get(),
            }),
        )
    }

    fn full(&self) -> Response<Body> {
        self.refused.add();
        match self.settings.on_queue_full {
            OnQueueFull::Refuse => {
                text(StatusCode::SERVICE_UNAVAILABLE, "every worker is busy and the queue is full".to_owned())
            }
            OnQueueFull::Close => broken(Abort::Empty, None),
        }
    }
}

/// What a worker does for one request, with its seat until the last byte is written or nobody reads it.
async fn job(
    shared: Arc<Shared>,
    kept: Arc<Mutex<Option<Seat>>>,
    ticket: Ticket,
    seen: Seen,
    mut tell: oneshot::Sender<Response<Body>>,
) {
    let cancels = shared.settings.dead_work == DeadWork::Cancel;
    let seat = match ticket {
        Ticket::Now(seat) => seat,
        Ticket::InTurn(turn) if cancels => tokio::select! {
            seat = turn.seat() => seat,
            () = tell.closed() => return shared.skipped.add(),
        },
        Ticket::InTurn(turn) => turn.seat().await,
    };
    if tell.is_closed() && shared.settings.dead_work == DeadWork::Skip {
        return shared.skipped.add();
    }
    let seat = Some(seat).filter(|_| !shared.settings.async_response_enabled);
    let work = work(&shared, &seen);
    let (response, dribble) = if cancels {
        tokio::select! {
            done = work => done,
            () = tell.closed() => return shared.skipped.add(),
        }
    } else {
        work.await
    };
    shared.worked.add();
    if tell.send(response).is_err() {
        shared.dead_worked.add();
    }
    if let Some(dribble) = dribble {
        dribble.run(cancels).await;
    }
    if let Some(seat) = seat
        && shared.settings.queue_order == QueueOrder::KeepAliveFirst
    {
        *kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(seat);
        sleep(*shared.settings.keep_alive_window).await;
        // Taken meanwhile by the connection's next request, or given free now. A later one of the same connection
        // would end early by this: it then waits in the queue like all others.
        drop(kept.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}

async fn work(shared: &Arc<Shared>, seen: &Seen) -> (Response<Body>, Option<Dribbling>) {
    if let Some(response) = admin::answer(shared, seen) {
        return (response, None);
    }
    let Some(stub) = shared.book.find(seen) else {
        let why = match shared.book.is_empty() {
            true => NO_STUBS.to_owned(),
            false => format!("No stub mapping matches {} {}", seen.method, seen.uri),
        };
        return (text(StatusCode::NOT_FOUND, why), None);
    };
    sleep_exactly(shared.book.delay(&stub)).await;
    answer(&stub)
}

async fn sleep_exactly(delay: Duration) {
    // A sleep of nothing would still wait for the next turn of the timer.
    if !delay.is_zero() {
        sleep(delay).await;
    }
}

fn answer(stub: &Stub) -> (Response<Body>, Option<Dribbling>) {
    let given = &stub.response;
    match given.fault {
        Some(Fault::EmptyResponse) => return (broken(Abort::Empty, None), None),
        Some(Fault::ConnectionResetByPeer) => return (broken(Abort::Reset, None), None),
        Some(Fault::RandomDataThenClose) => return (broken(Abort::Garbage, Some(GARBAGE.to_vec())), None),
        Some(Fault::MalformedResponseChunk) => {
            let mut bytes = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
            bytes.extend_from_slice(GARBAGE);
            return (broken(Abort::Truncate, Some(bytes)), None);
        }
        None => {}
    }
    let (body, dribbling) = match given.dribble.and_then(|dribble| Dribbling::new(dribble, given.body.clone())) {
        Some((body, dribbling)) => (body, Some(dribbling)),
        None => (Body::from(given.body.clone()), None),
    };
    let mut response = Response::new(body);
    *response.status_mut() = given.status;
    if let Some(message) = given.message.as_ref().and_then(|text| ReasonPhrase::try_from(text.as_bytes()).ok()) {
        response.extensions_mut().insert(message);
    }
    let headers = response.headers_mut();
    for (name, value) in &given.headers {
        headers.append(name, value.clone());
    }
    const STUB_ID: HeaderName = HeaderName::from_static("matched-stub-id");
    const STUB_NAME: HeaderName = HeaderName::from_static("matched-stub-name");
    headers.insert(STUB_ID, HeaderValue::try_from(stub.id.to_string()).expect("a UUID is plain"));
    if let Some(name) = stub.name.as_ref().and_then(|name| HeaderValue::from_str(name).ok()) {
        headers.insert(STUB_NAME, name);
    }
    (response, dribbling)
}

/// A connection that is broken in place of an answer, after these bytes if some are given.
fn broken(abort: Abort, raw: Option<Vec<u8>>) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    response.extensions_mut().insert(ToAbort { abort, carried_out: Count::default(), raw });
    response
}

pub(super) fn text(status: StatusCode, text: String) -> Response<Body> {
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    response
}

/// A body that comes in pieces; the worker that sends them waits before each.
struct Dribbling {
    pieces: Vec<Bytes>,
    pause: Duration,
    send: mpsc::Sender<Result<Frame<Bytes>, Infallible>>,
}

impl Dribbling {
    /// As many pieces as asked for, but none empty; nothing for an empty body.
    fn new(dribble: Dribble, body: Bytes) -> Option<(Body, Dribbling)> {
        let count = dribble.number_of_chunks.min(body.len());
        if count == 0 {
            return None;
        }
        let edge = |n: usize| body.len() * n / count;
        let pieces = (0..count).map(|n| body.slice(edge(n)..edge(n + 1))).collect();
        let pause = Duration::from_millis(dribble.total_duration) / count as u32;
        let (send, receive) = mpsc::channel(1);
        let stream = futures_util::stream::unfold(receive, |mut receive| async {
            let piece = receive.recv().await?;
            Some((piece, receive))
        });
        Some((Body::new(StreamBody::new(stream)), Dribbling { pieces, pause, send }))
    }

    async fn run(self, cancels: bool) {
        for piece in self.pieces {
            sleep_exactly(self.pause).await;
            // The thread of a client that has gone goes on, if it does not look.
            if self.send.send(Ok(Frame::data(piece))).await.is_err() && cancels {
                return;
            }
        }
    }
}
