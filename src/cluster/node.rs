//! A node that was started: where it is, how it is, and what can be done to it.

use std::sync::Arc;

use thiserror::Error;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::task::AbortOnDropHandle;

use super::keeper::{Keeper, Order};
use super::process::Process;
use super::{Action, Cluster, Launch, StartError, State, Status};

/// Orders that may wait while a node starts anew.
const ORDERS: usize = 16;

/// A node of a cluster. On drop its process is killed.
#[derive(Debug)]
pub struct Node {
    name: Arc<str>,
    url: String,
    port: u16,
    target: Option<String>,
    orders: mpsc::Sender<Order>,
    status: watch::Receiver<Status>,
    _keeper: AbortOnDropHandle<()>,
}

/// Why something was not done to a node.
#[derive(Clone, Debug, Error)]
pub enum ActionError {
    #[error("{name} is {state}: {action} is not possible, only {} is", possible(*state))]
    Impossible { name: String, state: State, action: Action },
    #[error("{0} is restarting already")]
    Restarting(String),
    #[error("the restart of {0} was called off: it was told to stop meanwhile")]
    CalledOff(String),
    #[error(transparent)]
    Start(Arc<StartError>),
    #[error("{0} is no longer kept")]
    Gone(String),
}

fn possible(state: State) -> String {
    let actions = Action::ALL.into_iter().filter(|action| state.allows(*action));
    actions.map(Action::as_str).collect::<Vec<_>>().join(", ")
}

impl Cluster {
    /// Starts a node and waits until it listens. The process is tied to the thread that calls: it ends with it.
    ///
    /// # Errors
    /// If the process ends, or stays silent, before it has told its address.
    pub async fn start(&self, launch: Launch) -> Result<Node, StartError> {
        let name: Arc<str> = launch.name.as_str().into();
        let process = Process::start(&launch, &name, self).await?;
        let (url, port) = (process.announced.listening.clone(), process.announced.port);
        let target = launch.target.clone();
        let (orders, received) = mpsc::channel(ORDERS);
        let launch = Launch { port, ..launch };
        let keeper = Keeper::new(launch, Arc::clone(&name), self.clone(), process, received);
        let status = keeper.status();
        let keeper = AbortOnDropHandle::new(tokio::spawn(keeper.run()));
        Ok(Node { name, url, port, target, orders, status, _keeper: keeper })
    }
}

impl Node {
    pub fn name(&self) -> &str {
        &self.name
    }

    /// As `http://127.0.0.1:8080`.
    pub fn url(&self) -> &str {
        &self.url
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// URL of the next node.
    pub fn target(&self) -> Option<&str> {
        self.target.as_deref()
    }

    pub fn status(&self) -> Status {
        *self.status.borrow()
    }

    /// Does something to the node. A restart is done when the new process listens; a stop or a kill when the signal
    /// was sent: [`Node::ended`] waits for what follows.
    ///
    /// # Errors
    /// If the node's state does not allow it, or the new process of a restart does not start.
    pub async fn act(&self, action: Action) -> Result<(), ActionError> {
        let (reply, done) = oneshot::channel();
        let gone = || ActionError::Gone(self.name.to_string());
        self.orders.send(Order { action, reply }).await.map_err(|_| gone())?;
        done.await.map_err(|_| gone())?
    }

    /// Waits until the process has ended.
    pub async fn ended(&self) {
        // An error says that the keeper is gone, and the process with it.
        let _ = self.status.clone().wait_for(|status| !status.state.is_alive()).await;
    }
}
