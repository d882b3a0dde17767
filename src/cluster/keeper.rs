//! Keeps one node: takes orders, sends signals, notices what happens to the process, tells it all as events.

use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until};

use super::node::ActionError;
use super::process::{Happening, Process};
use super::ready::{Readiness, Seen};
use super::{Action, Cluster, Ending, Launch, State, Status, What};

/// A process that is to be restarted has this long to stop in order; then it is killed.
const RESTART_LIMIT: Duration = Duration::from_secs(10);
/// A signal of ours has had its effect by then: a different state was made by someone else.
const SETTLED: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(super) struct Order {
    pub(super) action: Action,
    pub(super) reply: oneshot::Sender<Result<(), ActionError>>,
}

pub(super) struct Keeper {
    launch: Launch,
    name: Arc<str>,
    cluster: Cluster,
    process: Option<Process>,
    orders: mpsc::Receiver<Order>,
    status: watch::Sender<Status>,
    /// Asked to stop: its end is no surprise.
    stopping: bool,
    readiness: Readiness,
    restart: Option<Restart>,
    signalled: Instant,
}

/// A restart that waits for the old process to end.
struct Restart {
    reply: oneshot::Sender<Result<(), ActionError>>,
    /// When the old process is killed; `None` when it has been.
    limit: Option<Instant>,
}

impl Keeper {
    pub(super) fn new(
        launch: Launch,
        name: Arc<str>,
        cluster: Cluster,
        process: Process,
        orders: mpsc::Receiver<Order>,
    ) -> Keeper {
        let status = Status { state: State::Running, pid: Some(process.pid), ready: None, restarts: 0 };
        Keeper {
            launch,
            name,
            cluster,
            process: Some(process),
            orders,
            status: watch::Sender::new(status),
            stopping: false,
            readiness: Readiness::default(),
            restart: None,
            signalled: Instant::now(),
        }
    }

    pub(super) fn status(&self) -> watch::Receiver<Status> {
        self.status.subscribe()
    }

    /// Until the node's handle is gone.
    pub(super) async fn run(mut self) {
        loop {
            let limit = self.restart.as_ref().and_then(|restart| restart.limit);
            tokio::select! {
                order = self.orders.recv() => match order {
                    Some(order) => self.obey(order).await,
                    None => return,
                },
                happening = next(&mut self.process) => match happening {
                    Happening::Seen(seen) => self.see(seen),
                    Happening::Ended(ending) => self.end(ending).await,
                },
                () = reached(limit) => {
                    self.signal(Signal::KILL);
                    if let Some(restart) = &mut self.restart {
                        restart.limit = None;
                    }
                }
            }
        }
    }

    async fn obey(&mut self, Order { action, reply }: Order) {
        self.look();
        let state = self.state();
        let done = match action {
            _ if !state.allows(action) => Err(ActionError::Impossible { name: self.name.to_string(), state, action }),
            Action::Restart if self.restart.is_some() => Err(ActionError::Restarting(self.name.to_string())),
            Action::Restart if state.is_alive() => {
                self.stop();
                self.restart = Some(Restart { reply, limit: Some(Instant::now() + RESTART_LIMIT) });
                // The end of the old process leads on.
                return;
            }
            Action::Restart => self.begin().await,
            Action::Kill => {
                self.signal(Signal::KILL);
                Ok(())
            }
            Action::Pause => {
                self.signal(Signal::STOP);
                self.hold(State::Paused);
                Ok(())
            }
            Action::Resume => {
                self.signal(Signal::CONT);
                self.hold(State::Running);
                Ok(())
            }
            Action::Stop => {
                if let Some(restart) = self.restart.take() {
                    let _ = restart.reply.send(Err(ActionError::CalledOff(self.name.to_string())));
                }
                self.stop();
                Ok(())
            }
        };
        // Whoever asked may have gone.
        let _ = reply.send(done);
    }

    fn stop(&mut self) {
        // Only once: a second SIGTERM makes a node end at once, with requests in flight.
        if !self.stopping {
            self.stopping = true;
            self.cluster.tell(&self.name, What::Stopping);
            self.signal(Signal::TERM);
        }
        // A process that is held takes the signal only when it goes on.
        self.signal(Signal::CONT);
        self.hold(State::Running);
    }

    fn signal(&mut self, signal: Signal) {
        if let Some(process) = &self.process {
            process.signal(signal);
            self.signalled = Instant::now();
        }
    }

    /// Notes that the process is held or goes on, if that is new.
    fn hold(&self, state: State) {
        if self.status.send_if_modified(|status| std::mem::replace(&mut status.state, state) != state) {
            self.cluster.tell(&self.name, if state == State::Paused { What::Paused } else { What::Resumed });
        }
    }

    /// Looks whether someone else has paused or resumed the process: `kill -STOP` in a terminal does.
    fn look(&self) {
        if self.signalled.elapsed() > SETTLED
            && let Some(held) = self.process.as_ref().and_then(Process::is_held)
        {
            self.hold(if held { State::Paused } else { State::Running });
        }
    }

    fn see(&mut self, seen: Seen) {
        self.look();
        self.status.send_modify(|status| status.ready = Some(seen.is_ok()));
        // A node that is asked to stop is expected not to be ready.
        if let Some(what) = self.readiness.after(seen)
            && !self.stopping
        {
            self.cluster.tell(&self.name, what);
        }
    }

    async fn end(&mut self, ending: Ending) {
        self.process = None;
        let (state, what) = match self.stopping {
            true => (State::Stopped, What::Stopped(ending)),
            false => (State::Exited, What::Exited(ending)),
        };
        self.status.send_modify(|status| *status = Status { state, pid: None, ready: None, ..*status });
        self.cluster.tell(&self.name, what);
        if let Some(restart) = self.restart.take() {
            let done = self.begin().await;
            let _ = restart.reply.send(done);
        }
    }

    /// Starts the next process, on the same port and with the same target.
    async fn begin(&mut self) -> Result<(), ActionError> {
        let process = Process::start(&self.launch, &self.name, &self.cluster).await.map_err(|error| {
            let error = Arc::new(error);
            self.cluster.tell(&self.name, What::NotRestarted(Arc::clone(&error)));
            ActionError::Start(error)
        })?;
        let pid = process.pid;
        self.process = Some(process);
        self.stopping = false;
        self.readiness = Readiness::default();
        self.status.send_modify(|status| {
            *status = Status { state: State::Running, pid: Some(pid), ready: None, restarts: status.restarts + 1 };
        });
        self.cluster.tell(&self.name, What::Restarted(pid));
        Ok(())
    }

    fn state(&self) -> State {
        self.status.borrow().state
    }
}

async fn next(process: &mut Option<Process>) -> Happening {
    match process {
        Some(process) => process.next().await,
        None => std::future::pending().await,
    }
}

async fn reached(limit: Option<Instant>) {
    match limit {
        Some(limit) => sleep_until(limit).await,
        None => std::future::pending().await,
    }
}
