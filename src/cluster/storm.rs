//! Does to running tiers what a plan of chaos says: pauses, kills and restarts nodes, or makes their links lossy.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::chaos::{Chaos, Stroke};
use super::link::Way;
use super::tiers::Tiers;
use super::{Action, ActionError};

/// What is done to a victim.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Harm {
    /// It is held for the stroke's duration, its connections open.
    Pause,
    /// It is killed; a supervisor starts it again when the stroke's duration is over.
    Kill,
    /// This share of the segments that it sends is lost.
    Loss(f64),
}

/// Which container is which node. `None` stands for one that is not part of the cascade.
pub type Host = Vec<Option<(usize, usize)>>;

/// When a node suffered, as it was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Suffering {
    pub tier: usize,
    pub replica: usize,
    pub from: Instant,
    /// `None` while it lasts.
    pub until: Option<Instant>,
}

/// Chaos in action.
#[derive(Debug)]
pub struct Storm {
    harm: Harm,
    hosts: Vec<Host>,
    interval: Duration,
    duration: Duration,
    seed: u64,
    record: Mutex<Vec<Suffering>>,
}

impl Storm {
    pub fn new(harm: Harm, hosts: Vec<Host>, interval: Duration, duration: Duration, seed: u64) -> Storm {
        Storm { harm, hosts, interval, duration, seed, record: Mutex::default() }
    }

    /// Strikes until it is dropped; [`Storm::calm`] then heals.
    ///
    /// # Errors
    /// If a node does not start again.
    pub async fn rage(&self, tiers: &Tiers) -> Result<(), ActionError> {
        let hosts = self.hosts.iter().map(Vec::len).collect();
        let chaos = Chaos { hosts, interval: self.interval, duration: self.duration, seed: self.seed };
        let start = Instant::now();
        let mut ends: BinaryHeap<Reverse<(Instant, usize, usize)>> = BinaryHeap::new();
        for Stroke { from, until, host, container } in chaos.strokes() {
            while let Some(Reverse((end, tier, replica))) = ends.peek().copied()
                && end <= start + from
            {
                sleep_until(end).await;
                ends.pop();
                self.end(tiers, tier, replica).await?;
            }
            sleep_until(start + from).await;
            if let Some((tier, replica)) = self.hosts[host][container] {
                self.begin(tiers, tier, replica).await?;
                ends.push(Reverse((start + until, tier, replica)));
            }
        }
        // Nobody to strike.
        std::future::pending().await
    }

    /// Ends all suffering.
    ///
    /// # Errors
    /// If a node does not start again.
    pub async fn calm(&self, tiers: &Tiers) -> Result<(), ActionError> {
        let open: Vec<_> = self.record().into_iter().filter(|suffering| suffering.until.is_none()).collect();
        for Suffering { tier, replica, .. } in open {
            self.end(tiers, tier, replica).await?;
        }
        Ok(())
    }

    /// Who has suffered when so far.
    pub fn record(&self) -> Vec<Suffering> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn begin(&self, tiers: &Tiers, tier: usize, replica: usize) -> Result<(), ActionError> {
        // First the note: a node that is struck but not noted would never be healed.
        let suffering = Suffering { tier, replica, from: Instant::now(), until: None };
        self.record.lock().unwrap_or_else(PoisonError::into_inner).push(suffering);
        let Some(node) = tiers.node(tier, replica) else { return Ok(()) };
        match self.harm {
            Harm::Pause => node.act(Action::Pause).await,
            Harm::Kill => node.act(Action::Kill).await,
            Harm::Loss(share) => {
                lose(tiers, tier, replica, share);
                Ok(())
            }
        }
    }

    async fn end(&self, tiers: &Tiers, tier: usize, replica: usize) -> Result<(), ActionError> {
        if let Some(node) = tiers.node(tier, replica) {
            match self.harm {
                Harm::Pause => node.act(Action::Resume).await?,
                Harm::Kill => node.act(Action::Restart).await?,
                Harm::Loss(_) => lose(tiers, tier, replica, 0.0),
            }
        }
        let mut record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        let open = |suffering: &&mut Suffering| {
            (suffering.tier, suffering.replica) == (tier, replica) && suffering.until.is_none()
        };
        if let Some(suffering) = record.iter_mut().find(open) {
            suffering.until = Some(Instant::now());
        }
        Ok(())
    }
}

/// What a node sends: requests to the next tier, and answers to whoever called it.
fn lose(tiers: &Tiers, tier: usize, replica: usize, share: f64) {
    for link in tiers.links_from(tier) {
        link.lose(Way::There, share);
    }
    if let Some(link) = tiers.link_to(tier, replica) {
        link.lose(Way::Back, share);
    }
}
