//! Readiness and the next node: by default they have nothing to do with each other.

use super::{becomes, check, status};
use crate::support::{Cascade, Node, Start};

#[test]
fn a_dead_node_at_the_end_takes_nobody_out() {
    let mut cascade = Cascade::of(5);
    cascade.node(5).kill();
    for _ in 0..5 {
        assert_eq!(cascade.get("/").header("cascade-status"), Some("partial"));
    }
    for node in &cascade.nodes()[..4] {
        for path in ["/ready", "/live", "/startup"] {
            assert_eq!(status(node, path), 200, "{path}");
        }
    }
}

#[test]
fn strict_readiness_takes_the_whole_cascade_out_and_says_so_at_start() {
    let mut cascade = Cascade::with(5, |start| start.flags("--check-interval 50ms --ready-follows-downstream"));
    for node in cascade.nodes() {
        becomes(node, "/ready", 200);
    }
    for node in &cascade.nodes()[..4] {
        let warning = node.log.until("--ready-follows-downstream");
        assert!(warning.contains("one dead node empties the whole cascade"), "{warning}");
    }
    assert!(cascade.nodes()[4].log.until("--ready-follows-downstream").contains("no --target to follow"));
    cascade.node(5).kill();
    for node in cascade.nodes()[..4].iter().rev() {
        becomes(node, "/ready", 503);
        assert_eq!(status(node, "/live"), 200);
    }
    assert_eq!(check(&cascade.nodes()[3].get("/ready"), "downstream")["data"]["error"], "connection refused");
    assert_eq!(check(&cascade.nodes()[0].get("/ready"), "downstream")["data"]["error"], "status 503");
    cascade.restart(5);
    for node in cascade.nodes()[..4].iter().rev() {
        becomes(node, "/ready", 200);
    }
}

#[test]
fn one_ready_replica_is_enough() {
    let (one, other) = (Node::leaf(), Node::leaf());
    let node = Start::calling(format!("{}/a?b=c,{}", one.uri(), other.uri()))
        .flags("--check-interval 50ms --ready-follows-downstream")
        .start();
    becomes(&node, "/ready", 200);
    one.get("/db?up=false");
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert_eq!(status(&node, "/ready"), 200);
    other.get("/db?up=false");
    becomes(&node, "/ready", 503);
}
