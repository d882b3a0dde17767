//! A cascade that leads back to itself, or has no end.

use std::time::Duration;

use crate::support::{Cascade, Node, Start, Upstream, eventually, free_port, timed};

/// Two nodes that must know each other's ports before they run. A port may be taken meanwhile: then once more.
fn node_on(port: u16, target: &str) -> Option<Node> {
    Start::calling(target).env("PORT", port.to_string()).try_start().ok()
}

fn node_that_calls_itself() -> Node {
    (0..10)
        .find_map(|_| {
            let port = free_port();
            node_on(port, &format!("http://127.0.0.1:{port}/"))
        })
        .expect("one of ten ports is free")
}

fn two_nodes_in_a_ring() -> (Node, Node) {
    (0..10)
        .find_map(|_| {
            let port = free_port();
            let first = Start::calling(format!("http://127.0.0.1:{port}")).env("HOSTNAME", "a").start();
            Some((node_on(port, &first.uri())?, first))
        })
        .map(|(second, first)| (first, second))
        .expect("one of ten ports is free")
}

#[test]
fn a_node_that_calls_itself_says_so_at_once_and_lives_on() {
    let node = node_that_calls_itself();
    let mut fastest = Duration::MAX;
    for _ in 0..20 {
        let (answer, took) = timed(|| node.get("/"));
        fastest = fastest.min(took);
        let inner = answer.json()["responseInfo"].take();
        let msg = inner["msg"].as_str().expect("the second visit refuses").to_owned();
        assert!(msg.starts_with("loop: http://127.0.0.1:") && msg.ends_with("leads back to this node"), "{msg}");
        assert_eq!(answer.status, 200);
        assert_eq!(answer.header("cascade-status"), Some("partial"));
        assert_eq!(answer.header("cascade-reason"), Some("loop; hop=3"));
    }
    assert!(fastest < Duration::from_secs(1), "{fastest:?}");
    assert!(node.metric(&["downstream_calls_total", "\"loop\""]) <= 20.0);
    // One connection to itself may wait in the pool, and one is ours.
    eventually("connections close", || node.metric(&["open_connections{side=\"server\""]) <= 3.0);
}

#[test]
fn a_ring_of_two_ends_where_it_began() {
    let (first, second) = two_nodes_in_a_ring();
    let mut fastest = Duration::MAX;
    for _ in 0..5 {
        let (answer, took) = timed(|| first.get("/"));
        fastest = fastest.min(took);
        assert_eq!(answer.hosts().len(), 3, "{}", answer.text());
        assert_eq!(answer.header("cascade-reason"), Some("loop; hop=4"));
        assert_eq!(answer.header("cascade-depth"), Some("3"));
    }
    assert!(fastest < Duration::from_secs(1), "{fastest:?}");
    assert_eq!(second.get("/").header("cascade-status"), Some("partial"));
    eventually("connections close", || first.metric(&["open_connections{side=\"server\""]) <= 3.0);
}

#[test]
fn a_loop_is_passed_on_as_loop_detected() {
    let node = (0..10)
        .find_map(|_| {
            let port = free_port();
            let start = Start::calling(format!("http://127.0.0.1:{port}")).env("PORT", port.to_string());
            start.flags("--on-failure propagate").try_start().ok()
        })
        .expect("one of ten ports is free");
    let answer = node.get("/");
    assert_eq!(answer.status, 508);
    assert_eq!(answer.reason(), "bad_status");
    assert_eq!(answer.header("cascade-reason"), Some("loop; hop=3"));
}

#[test]
fn forwarded_for_headers_are_no_loop() {
    let cascade = Cascade::of(5);
    let hops = [("x-forwarded-for", "10.0.0.1, 10.0.0.2"); 10];
    let answer = cascade.nodes()[0].get_with("/", &hops);
    assert_eq!(answer.header("cascade-depth"), Some("5"), "{}", answer.text());
    assert!(answer.is_complete());
}

#[test]
fn a_cascade_ends_at_the_longest_depth_allowed() {
    let cascade = Cascade::with(4, |start| start.flags("--max-depth 3"));
    let answer = cascade.get("/");
    assert_eq!(answer.hosts(), ["service-1", "service-2", "service-3"]);
    assert_eq!(answer.header("cascade-reason"), Some("too_deep; hop=4"));
    let msg = answer.json()["responseInfo"]["responseInfo"]["msg"].clone();
    assert!(msg.as_str().is_some_and(|msg| msg.contains("3 nodes of --max-depth")), "{msg}");
}

#[test]
fn hop_headers_that_make_no_sense_are_treated_safely() {
    let upstream = Upstream::leaf();
    let node = Start::calling(upstream.uri()).start();
    for hop in ["", "-1", "1.5", "zwei", "0x10", "١", " 1 2"] {
        let answer = node.get_with("/", &[("cascade-hop", hop), ("cascade-path", ",,;;\t,")]);
        assert!(answer.is_complete(), "{hop:?}: {}", answer.text());
    }
    for hop in ["31", "32", "99999999999999999999999999"] {
        let answer = node.get_with("/", &[("cascade-hop", hop)]);
        assert_eq!(answer.header("cascade-reason"), Some("too_deep; hop=2"), "{hop}");
    }
    assert!(node.get_with("/", &[("cascade-hop", "30")]).is_complete());
    assert_eq!(upstream.requests().len(), 8);
}

#[test]
fn one_request_is_one_call_at_every_hop_though_the_end_fails() {
    for failing in [
        "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nno!",
    ] {
        let upstream = Upstream::answering(move |peer, _| peer.send(failing));
        let cascade = Cascade::ending_at(&upstream.uri(), 4, |start| start);
        for _ in 0..10 {
            assert_eq!(cascade.get("/").header("cascade-status"), Some("partial"));
        }
        assert_eq!(upstream.requests().len(), 10);
        for node in cascade.nodes() {
            assert_eq!(node.metric(&["downstream_calls_total"]), 10.0);
            assert_eq!(node.metric(&["requests_total", "route=\"/\""]), 10.0);
        }
    }
}

#[test]
fn one_request_is_one_call_at_every_hop_though_the_end_hangs_up() {
    let upstream = Upstream::answering(|peer, _| peer.close());
    let cascade = Cascade::ending_at(&upstream.uri(), 4, |start| start);
    for _ in 0..10 {
        assert_eq!(cascade.get("/").header("cascade-reason"), Some("closed; hop=5"));
    }
    assert_eq!(upstream.requests().len(), 10);
}
