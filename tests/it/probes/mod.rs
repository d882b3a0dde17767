//! The probes of a running node: what they say in each state, and what they cost while a dependency is dead.

mod bounded;
mod dependencies;
mod downstream;
mod forms;
mod liveness;
mod postgres;
mod redis;
mod servers;
mod states;
mod toggle;
mod wrong;

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::{Answer, Node};

/// What a change may take to be seen at the default settings: an interval and a time-out. And what a busy machine may
/// add to it.
const SEEN: Duration = Duration::from_millis(1800);
const SLACK: Duration = Duration::from_secs(5);

fn status(node: &Node, path: &str) -> u16 {
    node.get(path).status
}

/// Waits until `path` answers with `expected`, at most as long as a change may take.
#[track_caller]
fn becomes(node: &Node, path: &str, expected: u16) {
    let start = Instant::now();
    loop {
        let answer = node.get(path);
        if answer.status == expected {
            return;
        }
        assert!(start.elapsed() < SEEN + SLACK, "{path} is still {}: {}", answer.status, answer.text());
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The check called `name` in a MicroProfile answer.
fn check(answer: &Answer, name: &str) -> Value {
    let json = answer.json();
    let checks = json["checks"].as_array().expect("checks");
    checks.iter().find(|check| check["name"] == name).cloned().unwrap_or_else(|| panic!("no {name} in {json}"))
}
