//! The open loop: a request goes when it is due, whatever is still unanswered.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::clock::Clock;
use super::connection::Connection;
use super::worker::Worker;

/// Further requests that go in one turn before the answers that have come are looked at.
const TURN: u32 = 64;

/// Sends every `of`-th request of the plan, with at most `most` unanswered at one time.
pub(super) async fn run(worker: &Worker, of: usize, most: u64) -> io::Result<()> {
    let clock = Clock::new()?;
    let idle: Rc<RefCell<Vec<Connection>>> = Rc::default();
    let freed = Rc::new(Notify::new());
    let mut requests = JoinSet::new();
    let start = worker.shared.start;
    let end = start + worker.on_the_clock(worker.shared.plan.length().unwrap_or_default());
    let mut turn = 0;
    for due in worker.shared.plan.schedule().skip(worker.number).step_by(of) {
        let due = start + worker.on_the_clock(due);
        clock.until(due).await?;
        while requests.try_join_next().is_some() {}
        if requests.len() as u64 >= most {
            worker.counters().waited.fetch_add(1, Relaxed);
            if !until_free(&freed, &mut requests, most, &clock, end).await? {
                break;
            }
        }
        let (worker, idle, freed) = (worker.clone(), Rc::clone(&idle), Rc::clone(&freed));
        requests.spawn_local(async move {
            let connection = take(&idle);
            if let Some(connection) = worker.request(connection, Some(due)).await {
                idle.borrow_mut().push(connection);
            }
            freed.notify_one();
        });
        turn += 1;
        if turn % TURN == 0 {
            tokio::task::yield_now().await;
        }
    }
    if worker.shared.options.cut_off {
        clock.until(end).await?;
        return Ok(());
    }
    while requests.join_next().await.is_some() {}
    Ok(())
}

/// Waits until one of `requests` is done; false if the plan ends first.
async fn until_free(
    freed: &Notify,
    requests: &mut JoinSet<()>,
    most: u64,
    clock: &Clock,
    end: Instant,
) -> io::Result<bool> {
    loop {
        tokio::select! {
            () = freed.notified() => {}
            ended = clock.until(end) => return ended.map(|()| false),
        }
        // A request says that it is done a moment before it is.
        tokio::task::yield_now().await;
        while requests.try_join_next().is_some() {}
        if (requests.len() as u64) < most {
            return Ok(true);
        }
    }
}

/// The connection that was used last and is still open.
fn take(idle: &RefCell<Vec<Connection>>) -> Option<Connection> {
    let mut idle = idle.borrow_mut();
    std::iter::from_fn(|| idle.pop()).find(Connection::is_open)
}
