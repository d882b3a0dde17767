//! Child processes of this binary: starts them, waits for their address, watches, pauses, kills and restarts them.
//! Knows a node by its flags, its announcement and its HTTP answers alone; prints nothing.

mod ask;
mod cascade;
mod chaos;
mod keeper;
mod lines;
mod link;
mod node;
mod process;
mod ready;
mod state;
mod storm;
mod tiers;

use std::sync::Arc;

use tokio::sync::broadcast;

pub use ask::AskError;
pub use cascade::{Cascade, Plan};
pub use chaos::{Chaos, Stroke, free_share};
pub use link::{Link, Retransmission, Way};
pub use node::{ActionError, Node};
pub use process::{Launch, Role, StartError};
pub use state::{Action, Ending, State, Status};
pub use storm::{Harm, Host, Storm, Suffering};
pub use tiers::{Tiers, TiersError, TiersPlan};

/// Events that a slow reader may be behind; further ones are lost to it, and it is told how many.
const EVENTS: usize = 1024;

/// Something that happened to a node.
#[derive(Clone, Debug)]
pub struct Event {
    pub node: Arc<str>,
    pub what: What,
}

#[derive(Clone, Debug)]
pub enum What {
    /// Asked to stop in order; [`What::Stopped`] follows.
    Stopping,
    /// The process ended after it was asked to stop.
    Stopped(Ending),
    /// The process ended without being asked to stop.
    Exited(Ending),
    Paused,
    Resumed,
    /// A new process, with this id.
    Restarted(u32),
    NotRestarted(Arc<StartError>),
    /// It no longer answers /ready with 200, for this reason.
    Unready(String),
    ReadyAgain,
    /// A line on its stderr.
    Said(String),
}

/// What the nodes of one run share; clones share it too. The nodes are held by whoever starts them.
#[derive(Clone, Debug)]
pub struct Cluster {
    events: broadcast::Sender<Event>,
    client: reqwest::Client,
}

impl Cluster {
    /// # Errors
    /// If no HTTP client can be made.
    pub fn new() -> anyhow::Result<Cluster> {
        Ok(Cluster { events: broadcast::Sender::new(EVENTS), client: ready::client()? })
    }

    /// Everything that happens to the nodes from now on.
    pub fn events(&self) -> broadcast::Receiver<Event> {
        self.events.subscribe()
    }

    fn tell(&self, node: &Arc<str>, what: What) {
        // Nobody has to listen.
        let _ = self.events.send(Event { node: Arc::clone(node), what });
    }
}
