//! `/live` is about the process: a worker that stands still fails it, and nothing outside of the process does.

use std::time::Duration;

use super::{check, status};
use crate::support::{Answer, Node, Start, eventually};

/// An answer of a worker that moves, if one takes the connection.
fn quick(node: &Node, path: &str) -> Option<Answer> {
    let mut socket = node.connect();
    socket.send(format!("GET {path} HTTP/1.1\r\nhost: node\r\n\r\n"));
    for _ in 0..20 {
        std::thread::sleep(Duration::from_millis(5));
        if !socket.is_silent() {
            return Some(socket.answer());
        }
    }
    None
}

#[test]
fn a_worker_that_stands_still_fails_liveness_as_seen_from_another() {
    let node = Start::node().flags("--workers 2 --heartbeat-limit 300ms").start();
    let mut blocking = node.connect();
    blocking.send("GET /wrong/blocking?ms=5000 HTTP/1.1\r\nhost: node\r\n\r\n");
    let mut verdict = None;
    eventually("the other worker sees it", || {
        verdict = quick(&node, "/live").filter(|answer| answer.status == 503);
        verdict.is_some()
    });
    let process = check(&verdict.expect("seen"), "process");
    let error = process["data"]["error"].as_str().expect("a sentence");
    assert!(error.starts_with("worker-") && error.contains("has not moved for"), "{error}");
    assert_eq!(blocking.answer().status, 200);
    eventually("it moves again", || status(&node, "/live") == 200);
}

#[test]
fn a_blocked_worker_keeps_every_request_waiting_and_a_right_check_none() {
    let node = Start::node().flags("--workers 1").start();
    let mut business = node.connect();
    assert_eq!(business.get("/work").status, 200);
    // The right check hangs, and nobody notices but /ready.
    node.get("/db?mode=hang");
    assert_eq!(business.get("/work").status, 200);
    assert_eq!(business.get("/live").status, 200);
    node.get("/db?mode=up");
    // The wrong one blocks: neither a business route nor /live gets through before it has ended.
    let mut blocking = node.connect();
    blocking.send("GET /chan?ms=1500 HTTP/1.1\r\nhost: node\r\n\r\n");
    let mut live = node.connect();
    eventually("the worker is blocked", || {
        business.send("GET /work HTTP/1.1\r\nhost: node\r\n\r\n");
        std::thread::sleep(Duration::from_millis(50));
        let blocked = business.is_silent();
        if !blocked {
            assert_eq!(business.answer().status, 200);
        }
        blocked
    });
    live.send("GET /live HTTP/1.1\r\nhost: node\r\n\r\n");
    std::thread::sleep(Duration::from_millis(50));
    assert!(live.is_silent() && business.is_silent());
    assert_eq!(blocking.answer().status, 200);
    assert_eq!(business.answer().status, 200);
    // That is the trap: once it is answered, it says that all is well.
    assert_eq!(live.answer().status, 200);
}

#[test]
fn no_state_of_a_dependency_touches_liveness() {
    let node = Start::node().flags("--check-interval 20ms --check-timeout 50ms").start();
    for mode in ["down", "hang", "slow&ms=60000", "flaky&p=0.5", "up"] {
        node.get(&format!("/db?mode={mode}"));
        for _ in 0..20 {
            for path in ["/live", "/livez", "/health/live", "/song"] {
                assert_eq!(status(&node, path), 200, "{path} with the database {mode}");
            }
        }
    }
}

#[test]
fn with_one_worker_frozen_readiness_is_not_taken_on_trust() {
    // The refreshers live on the first worker: while it stands still, nothing renews what is known.
    let node = Start::node().flags("--workers 2 --check-interval 50ms --check-timeout 50ms").start();
    let verdict = |answer: &Answer| check(answer, "db")["data"]["error"].as_str().map(str::to_owned);
    eventually("the first worker takes the blocking request, and the other one says stale", || {
        let mut blocking = node.connect();
        blocking.send("GET /wrong/blocking?ms=1000 HTTP/1.1\r\nhost: node\r\n\r\n");
        let mut stale = false;
        for _ in 0..8 {
            std::thread::sleep(Duration::from_millis(50));
            let answer = quick(&node, "/ready");
            stale |= answer
                .filter(|answer| answer.status == 503)
                .and_then(|answer| verdict(&answer))
                .is_some_and(|error| error.starts_with("stale"));
        }
        assert_eq!(blocking.answer().status, 200);
        stale
    });
    eventually("and it recovers", || status(&node, "/ready") == 200);
}
