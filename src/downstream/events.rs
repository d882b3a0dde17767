//! What happened to endpoints, logged and kept in the words of Envoy's outlier event log.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use tracing::{info, warn};

use super::hosts::{Cause, Event, What};

/// Events that are kept to be shown.
const KEPT: usize = 256;

/// What happened to endpoints lately.
#[derive(Debug, Default)]
pub(super) struct Events(Mutex<VecDeque<Told>>);

impl Events {
    /// Logs and keeps it.
    pub(super) fn tell(&self, event: Event) {
        let told = Told::new(event);
        told.log();
        let mut events = self.lock();
        if events.len() == KEPT {
            events.pop_front();
        }
        events.push_back(told);
    }

    /// The oldest first.
    pub(super) fn kept(&self) -> Vec<Told> {
        self.lock().iter().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Told>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An event in the words of Envoy's outlier event log.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Told {
    /// Since 1970, in ms.
    at_ms: u64,
    action: &'static str,
    endpoint: SocketAddr,
    #[serde(skip_serializing_if = "Option::is_none")]
    cause: Option<Cause>,
    /// The how many-th ejection of this endpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    num_ejections: Option<u32>,
    /// Until it may return, or how long it was out.
    #[serde(skip_serializing_if = "Option::is_none")]
    duration_ms: Option<u64>,
    enforced: bool,
}

impl Told {
    fn new(Event { key, what }: Event) -> Told {
        let told = Told {
            at_ms: ms(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()),
            action: "eject",
            endpoint: key.1,
            cause: None,
            num_ejections: None,
            duration_ms: None,
            enforced: true,
        };
        match what {
            What::Ejected { cause, number, lasts } => {
                Told { cause: Some(cause), num_ejections: Some(number), duration_ms: lasts.map(ms), ..told }
            }
            What::Refused { cause } => Told { cause: Some(cause), enforced: false, ..told },
            What::Returned { after } => Told { action: "uneject", duration_ms: Some(ms(after)), ..told },
        }
    }

    fn log(&self) {
        let text = serde_json::to_string(self).unwrap_or_default();
        match self.action {
            "eject" => warn!("outlier detection: {text}"),
            _ => info!("outlier detection: {text}"),
        }
    }
}

/// In whole ms.
pub(super) fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
