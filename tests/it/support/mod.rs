//! The language of these tests: real nodes on real sockets, a scripted target, and waiting for events.
//!
//! Asserts nothing itself but that what it was asked to do could be done.

mod http;
mod node;
mod upstream;

use std::time::{Duration, Instant};

pub(crate) use http::{Answer, Socket};
pub(crate) use node::{Cascade, Node, Refusal, Start, at_once, exit_within, following, following_with};
pub(crate) use upstream::{BlackHole, Peer, Request, Upstream};

/// Nothing that is right takes this long, however busy the machine; what is waited for longer never comes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Waits until `holds`. For what can only be looked at (a counter of the kernel's, `/metrics`); events are awaited.
#[track_caller]
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "never happened: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// What `work` gives, and how long it took.
pub(crate) fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let start = Instant::now();
    (work(), start.elapsed())
}

/// A port that was free a moment ago. Whoever uses it must be ready to find it taken.
pub(crate) fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("bound").port()
}

/// Whether this machine has IPv6 at all; where it has none, a node must do without.
pub(crate) fn has_ipv6() -> bool {
    std::net::TcpListener::bind("[::1]:0").is_ok()
}
