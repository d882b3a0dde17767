//! A cascade with replicas: tiers of nodes, each calling all replicas of the next tier in turn, with links between.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use futures_util::future::join_all;
use thiserror::Error;

use super::link::{Link, Retransmission};
use super::{Action, Cluster, Launch, Node, Role, StartError};

/// A node must tell its address within this time.
const START_LIMIT: Duration = Duration::from_secs(10);

/// Tiers to start. Nodes are named as Swarm names tasks: `service-3-2` is the second replica of the third tier.
#[derive(Clone, Debug)]
pub struct TiersPlan {
    /// This binary.
    pub program: PathBuf,
    /// Replicas of each tier, the head first.
    pub replicas: Vec<usize>,
    /// Flags that every node gets.
    pub flags: Vec<String>,
    /// Environment variables that every node gets where the starter's environment has none of that name.
    pub variables: Vec<(String, String)>,
    /// Whether nodes call each other over links; the front door is one always.
    pub linked: bool,
    pub retransmission: Retransmission,
    pub seed: u64,
}

/// Running tiers. On drop every process is killed.
#[derive(Debug)]
pub struct Tiers {
    tiers: Vec<Tier>,
    front: Link,
}

#[derive(Debug)]
struct Tier {
    nodes: Vec<Node>,
    /// The way to each of the nodes; none where they are called directly, and none to the head.
    links: Vec<Link>,
}

#[derive(Debug, Error)]
pub enum TiersError {
    #[error(transparent)]
    Node(#[from] StartError),
    #[error("no link between nodes: {0}")]
    Link(#[from] io::Error),
}

impl Cluster {
    /// Starts the tiers from the tail, so that each one's targets listen already, and the front door before them all.
    ///
    /// # Errors
    /// If a node or a link does not start; what runs already is ended.
    pub async fn start_tiers(&self, plan: &TiersPlan) -> Result<Tiers, TiersError> {
        let mut tiers: Vec<Tier> = Vec::with_capacity(plan.replicas.len());
        for (tier, replicas) in plan.replicas.iter().enumerate().rev() {
            let target = tiers.first().map(Tier::target);
            let mut nodes = Vec::with_capacity(*replicas);
            for replica in 0..*replicas {
                nodes.push(self.start(plan.launch(tier, replica, target.clone())).await?);
            }
            let mut links = Vec::new();
            if plan.linked && tier > 0 {
                for node in &nodes {
                    links.push(plan.link(vec![address(node)]).await?);
                }
            }
            tiers.insert(0, Tier { nodes, links });
        }
        let heads = tiers.first().map_or_else(Vec::new, |head| head.nodes.iter().map(address).collect());
        Ok(Tiers { front: plan.link(heads).await?, tiers })
    }
}

impl TiersPlan {
    fn launch(&self, tier: usize, replica: usize, target: Option<String>) -> Launch {
        Launch {
            program: self.program.clone(),
            role: Role::Serve,
            name: format!("service-{}-{}", tier + 1, replica + 1),
            port: 0,
            target,
            flags: self.flags.clone(),
            variables: self.variables.clone(),
            limit: START_LIMIT,
        }
    }

    async fn link(&self, upstreams: Vec<SocketAddr>) -> io::Result<Link> {
        Link::start(upstreams, self.retransmission, self.seed).await
    }
}

fn address(node: &Node) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], node.port()))
}

impl Tier {
    /// All of them, as `--target` takes them.
    fn target(&self) -> String {
        let urls: Vec<String> = match self.links.is_empty() {
            true => self.nodes.iter().map(|node| node.url().to_owned()).collect(),
            false => self.links.iter().map(|link| format!("http://{}", link.address())).collect(),
        };
        urls.join(",")
    }
}

impl Tiers {
    /// Where load goes to: connections are spread over the head's replicas, as Swarm's ingress does.
    pub fn url(&self) -> String {
        format!("http://{}/", self.front.address())
    }

    pub fn front(&self) -> &Link {
        &self.front
    }

    /// The node at this place, counted from 0.
    pub fn node(&self, tier: usize, replica: usize) -> Option<&Node> {
        self.tiers.get(tier)?.nodes.get(replica)
    }

    /// All nodes with their tier and replica.
    pub fn nodes(&self) -> impl Iterator<Item = (usize, usize, &Node)> {
        self.tiers.iter().enumerate().flat_map(|(tier, Tier { nodes, .. })| {
            nodes.iter().enumerate().map(move |(replica, node)| (tier, replica, node))
        })
    }

    /// The link that leads to this node, the front door for the head.
    pub fn link_to(&self, tier: usize, replica: usize) -> Option<&Link> {
        if tier == 0 { Some(&self.front) } else { self.tiers.get(tier)?.links.get(replica) }
    }

    /// The links over which this tier's nodes call the next one.
    pub fn links_from(&self, tier: usize) -> &[Link] {
        self.tiers.get(tier + 1).map_or(&[], |next| &next.links)
    }

    /// Ends all nodes at once. They hold nothing that would be missed.
    pub async fn kill(self) {
        let nodes: Vec<&Node> = self.nodes().map(|(_, _, node)| node).collect();
        join_all(nodes.into_iter().map(|node| async {
            // One that has ended already allows no more.
            let _ = node.act(Action::Kill).await;
            node.ended().await;
        }))
        .await;
    }
}
