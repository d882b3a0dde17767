//! Makes the faults that are in force, around the business routes and nothing else.
//!
//! The order: a worker, the delay, the CPU time, then an injected failure or the route's own work, and last the way in
//! which the answer goes out. When the faults end, whoever is held goes on as if there had been none.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Version, header};
use axum::middleware::Next;
use axum::response::Response;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Node;
use super::burden::{self, Dribble};
use crate::fault::{Ending, Full, InForce, Seat, Seats, Ticket, ToAbort};
use crate::wire::{Abort, DeadWork, Reason};

/// The status of an answer that is never sent, by nginx' name for it; only logs and metrics show it.
const NO_RESPONSE: u16 = 444;
/// The largest body that is dribbled; beyond it the answer goes out as it is.
const MAX_DRIBBLE: usize = 4 * 1024 * 1024;

/// How a business route says no: in the form in which its clients expect an answer.
pub(super) type Refuse = fn(&Node, &HeaderMap, Refusal) -> Response;

/// An answer in place of the route's own.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) reason: Reason,
    pub(super) status: StatusCode,
    pub(super) sentence: String,
    /// When the request came in.
    pub(super) arrived: Instant,
}

/// When a held request came in: what its caller has left is counted from then.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrived(pub(super) Instant);

#[derive(Clone)]
pub(super) struct Injector {
    pub(super) node: Node,
    pub(super) refuse: Refuse,
}

pub(super) async fn inject(State(injector): State<Injector>, request: Request, next: Next) -> Response {
    let Some(faults) = injector.node.faults().for_request() else { return next.run(request).await };
    faults.counts().requests.add();
    let ticket = match faults.seats() {
        None => None,
        Some(seats) => match seats.enter().await {
            Ok(ticket) => Some(ticket),
            Err(Full) => return injector.overflow(&faults, seats, request.headers()),
        },
    };
    let limited = ticket.is_some();
    let client = CancellationToken::new();
    let job = Job { injector, client: client.clone(), arrived: Instant::now(), faults, ticket, request, next };
    if !limited || job.faults.dead_work() == DeadWork::Cancel {
        return job.run().await;
    }
    // The work must outlive its client, whose going drops this future.
    let _gone = client.drop_guard();
    match tokio::spawn(job.run()).await {
        Ok(response) => response,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

/// One request to which faults apply.
struct Job {
    injector: Injector,
    faults: Arc<InForce>,
    /// Cancelled when the client has gone.
    client: CancellationToken,
    arrived: Instant,
    ticket: Option<Ticket>,
    request: Request,
    next: Next,
}

impl Job {
    async fn run(mut self) -> Response {
        let faults = Arc::clone(&self.faults);
        let counts = faults.counts();
        let seat = self.seat().await;
        if self.client.is_cancelled() && faults.dead_work() == DeadWork::Skip {
            counts.skipped.add();
            return Response::new(Body::empty());
        }
        if faults.ended().is_cancelled() {
            return self.work().await;
        }
        let verdict = faults.decide(Instant::now());
        let spec = faults.spec();
        if !verdict.delay.is_zero() {
            if !pause(verdict.delay, &faults).await {
                return self.work().await;
            }
            counts.delayed.add();
        }
        if let Some(cpu) = spec.burn {
            if !burden::burn(*cpu, &faults).await {
                return self.work().await;
            }
            counts.burned.add();
        }
        let close = spec.close == Some(true) && self.request.version() < Version::HTTP_2;
        let touched = !verdict.delay.is_zero() || spec.burn.is_some() || spec.dribble.is_some() || close;
        if touched || verdict.ending != Ending::Work {
            counts.injected.add();
        }
        let client = self.client.clone();
        let mut response = match verdict.ending {
            Ending::Work => self.work().await,
            Ending::Fail(status) => {
                counts.failed.add();
                self.refuse(Reason::Fault, status, "this node fails on request".to_owned())
            }
            Ending::Abort(abort) => return self.abort(abort),
        };
        if client.is_cancelled() {
            counts.dead_work.add();
        }
        if close {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        match spec.dribble {
            Some(over) => dribbled(response, *over, &faults, seat).await,
            None => response,
        }
    }

    /// A worker, where they are limited; in turn.
    async fn seat(&mut self) -> Option<Seat> {
        match self.ticket.take()? {
            Ticket::Now(seat) => Some(seat),
            Ticket::InTurn(turn) => {
                self.faults.counts().queued.add();
                tokio::select! {
                    biased;
                    () = self.faults.ended().cancelled() => None,
                    seat = turn.seat() => Some(seat),
                }
            }
        }
    }

    async fn work(mut self) -> Response {
        self.request.extensions_mut().insert(Arrived(self.arrived));
        self.next.run(self.request).await
    }

    fn refuse(&self, reason: Reason, status: StatusCode, sentence: String) -> Response {
        self.injector.refuse(self.request.headers(), Refusal { reason, status, sentence, arrived: self.arrived })
    }

    fn abort(&self, abort: Abort) -> Response {
        let status = match abort {
            // Its head is sent, and says that all is well.
            Abort::Truncate => StatusCode::OK,
            Abort::Reset | Abort::Empty | Abort::Garbage => {
                StatusCode::from_u16(NO_RESPONSE).expect("a number of three digits")
            }
        };
        let mut response = self.refuse(Reason::Fault, status, "this node breaks off on request".to_owned());
        response.extensions_mut().insert(ToAbort {
            abort,
            carried_out: self.faults.counts().aborted.clone(),
            raw: None,
        });
        response
    }
}

impl Injector {
    fn refuse(&self, headers: &HeaderMap, refusal: Refusal) -> Response {
        (self.refuse)(&self.node, headers, refusal)
    }

    fn overflow(&self, faults: &InForce, seats: &Seats, headers: &HeaderMap) -> Response {
        faults.counts().rejected.add();
        faults.counts().injected.add();
        let sentence = format!("all {} workers of this node are busy, and its queue is full", seats.workers());
        let (reason, status) = (Reason::Overflow, StatusCode::SERVICE_UNAVAILABLE);
        self.refuse(headers, Refusal { reason, status, sentence, arrived: Instant::now() })
    }
}

/// Waits; false if the faults ended meanwhile.
async fn pause(delay: Duration, faults: &InForce) -> bool {
    tokio::select! {
        biased;
        () = faults.ended().cancelled() => false,
        () = tokio::time::sleep(delay) => true,
    }
}

async fn dribbled(response: Response, over: Duration, faults: &InForce, seat: Option<Seat>) -> Response {
    let (head, body) = response.into_parts();
    let Ok(whole) = axum::body::to_bytes(body, MAX_DRIBBLE).await else {
        unreachable!("a business route answers at most a downstream answer of 1 MiB and what is around it")
    };
    // A HEAD has nothing to dribble.
    if whole.is_empty() {
        return Response::from_parts(head, Body::empty());
    }
    faults.counts().dribbled.add();
    Response::from_parts(head, Dribble::body(whole, over, faults, seat))
}
