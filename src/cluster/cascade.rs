//! Nodes in a chain: started from the tail, so that each one's target listens already; stopped from the head.

use std::path::PathBuf;
use std::time::Duration;

use tokio::time::{Instant, timeout, timeout_at};

use super::{Action, Cluster, Launch, Node, Role, StartError, State};

/// A node must tell its address within this time.
const START_LIMIT: Duration = Duration::from_secs(10);
/// A killed process is gone within this time.
const KILLED: Duration = Duration::from_secs(2);

/// A chain to start.
#[derive(Clone, Debug)]
pub struct Plan {
    /// This binary.
    pub program: PathBuf,
    pub nodes: usize,
    /// Port of the first node, the others follow; 0 takes any free one for each.
    pub base_port: u16,
    /// Flags that every node gets.
    pub flags: Vec<String>,
    /// Environment variables that every node gets where the starter's environment has none of that name.
    pub variables: Vec<(String, String)>,
}

/// A running chain, the head first. On drop every process is killed.
#[derive(Debug)]
pub struct Cascade {
    nodes: Vec<Node>,
}

impl Plan {
    fn launch(&self, index: usize, target: Option<String>) -> Launch {
        let port = match self.base_port {
            0 => 0,
            base => base.saturating_add(u16::try_from(index).unwrap_or(u16::MAX)),
        };
        Launch {
            program: self.program.clone(),
            role: Role::Serve,
            name: format!("service-{}", index + 1),
            port,
            target,
            flags: self.flags.clone(),
            variables: self.variables.clone(),
            limit: START_LIMIT,
        }
    }
}

impl Cluster {
    /// Starts `service-1` → `service-2` → …
    ///
    /// # Errors
    /// If one of them does not start; those that run already are stopped again.
    pub async fn start_cascade(&self, plan: &Plan) -> Result<Cascade, StartError> {
        let mut cascade = Cascade { nodes: Vec::with_capacity(plan.nodes) };
        for index in (0..plan.nodes).rev() {
            let target = cascade.nodes.first().map(|node| node.url().to_owned());
            match self.start(plan.launch(index, target)).await {
                Ok(node) => cascade.nodes.insert(0, node),
                Err(error) => {
                    // They have served nobody yet.
                    cascade.kill().await;
                    return Err(error);
                }
            }
        }
        Ok(cascade)
    }
}

impl Cascade {
    /// The head first.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Stops the nodes in order, the head first, as its requests in flight need the others. What is left after
    /// `limit` is killed; returns how many those were.
    pub async fn stop(&self, limit: Duration) -> usize {
        let end = Instant::now() + limit;
        for node in &self.nodes {
            if node.status().state == State::Paused {
                // So that requests held in it are answered. It may have ended just now, which is as good.
                let _ = timeout_at(end, node.act(Action::Resume)).await;
            }
        }
        // Each has its turn, and half of the time is left for the last one when those before it take all of theirs.
        let turn = limit / (2 * self.nodes.len().max(1) as u32);
        for node in &self.nodes {
            let _ = timeout(turn, async {
                let _ = node.act(Action::Stop).await;
                node.ended().await;
            })
            .await;
        }
        for node in &self.nodes {
            let _ = timeout_at(end, node.ended()).await;
        }
        self.kill().await
    }

    async fn kill(&self) -> usize {
        let mut killed = 0;
        for node in self.nodes.iter().filter(|node| node.status().state.is_alive()) {
            killed += 1;
            let _ = timeout(KILLED, async {
                let _ = node.act(Action::Kill).await;
                node.ended().await;
            })
            .await;
        }
        killed
    }
}
