//! The closed loop: each connection sends its next request when its last one is answered.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::task::JoinSet;

use super::connection::Connection;
use super::outcome::{Cause, Verdict};
use super::worker::Worker;
use crate::wire::Reason;

/// After a connection that could not be had, so that a target that is gone is not asked a million times a second.
const BREATH: Duration = Duration::from_millis(1);

/// Sends this worker's part of `requests`, on `connections` at a time.
pub(super) async fn run(worker: &Worker, requests: u64, connections: usize) {
    let mut loops = JoinSet::new();
    for _ in 0..connections {
        loops.spawn_local(one(worker.clone(), requests));
    }
    while loops.join_next().await.is_some() {}
}

async fn one(worker: Worker, requests: u64) {
    let mut connection: Option<Connection> = None;
    let mut refused = false;
    while worker.shared.taken.fetch_add(1, Relaxed) < requests {
        let (verdict, kept) = worker.request(connection.take().filter(Connection::is_open), None).await;
        connection = kept;
        let before = refused;
        refused = matches!(verdict, Verdict::Failed(Cause::Broken(Reason::Refused | Reason::Overflow)));
        if refused && before {
            tokio::time::sleep(BREATH).await;
        }
    }
}
