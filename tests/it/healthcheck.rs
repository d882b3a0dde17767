//! The `healthcheck` command, as HEALTHCHECK and exec probes use it.

use std::time::Duration;

use rustix::process::Signal;

use crate::support::{Node, Refusal, Start, Upstream, eventually, has_ipv6, timed};

fn healthcheck(flags: &str) -> Start {
    Start::node().flags("healthcheck").flags(flags)
}

fn check(node: &Node, flags: &str) -> Refusal {
    healthcheck(flags).env("PORT", node.port.to_string()).run()
}

#[test]
fn a_live_node_is_healthy_and_the_port_is_known_from_the_same_settings() {
    let node = Node::leaf();
    let port = node.port.to_string();
    for start in [
        healthcheck("").env("PORT", &port),
        healthcheck("").env("REST_CASCADE_PORT", &port),
        healthcheck("").env("REST_CASCADE_LISTEN", format!("0.0.0.0:{port}")),
        healthcheck("").env("REST_CASCADE_LISTEN", format!("[::]:{port}")),
        healthcheck("--port").flags(&port),
        healthcheck("--ready --port").flags(&port),
        healthcheck(&format!("http://127.0.0.1:{port}/health/live")),
    ] {
        let ended = start.run();
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{ended:?}");
        assert_eq!(ended.stdout.lines().count(), 1, "{ended:?}");
        assert!(ended.stdout.contains("200 OK"), "{ended:?}");
    }
}

#[test]
fn a_node_that_is_gone_is_not() {
    let mut node = Node::leaf();
    node.kill();
    let ended = check(&node, "");
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(1), ""), "{ended:?}");
    assert_eq!(ended.stderr.lines().count(), 1, "{ended:?}");
    assert!(ended.stderr.contains(&node.port.to_string()) && ended.stderr.contains("refused"), "{ended:?}");
}

#[test]
fn a_draining_node_is_live_and_not_ready() {
    let node = Start::node().flags("--drain-delay 1m").start();
    assert_eq!(check(&node, "--ready").code, Some(0));
    node.signal(Signal::TERM);
    eventually("/ready is 503", || node.get("/ready").status == 503);
    let ended = check(&node, "--ready");
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("503"), "{ended:?}");
    assert_eq!(check(&node, "").code, Some(0));
}

#[test]
fn a_stopped_node_is_given_two_seconds() {
    let node = Node::leaf();
    node.pause();
    let (ended, took) = timed(|| check(&node, ""));
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("no answer in time"), "{ended:?}");
    assert!(took >= Duration::from_millis(1900) && took < Duration::from_secs(8), "{took:?}");
    node.resume();
    assert_eq!(check(&node, "").code, Some(0));
}

#[test]
fn localhost_is_found_on_whichever_family_the_node_listens() {
    let node = Start::node().flags("--listen 127.0.0.1:0").start();
    assert_eq!(check(&node, "").code, Some(0));
    if has_ipv6() {
        let node = Start::node().flags("--listen [::1]:0").start();
        // Also where the hosts file knows localhost as 127.0.0.1 alone.
        assert_eq!(check(&node, "").code, Some(0));
        let listen = format!("[::1]:{}", node.port);
        assert_eq!(healthcheck("").env("REST_CASCADE_LISTEN", listen).run().code, Some(0));
    }
}

#[test]
fn no_proxy_stands_between() {
    let node = Node::leaf();
    let mut start = healthcheck("--port").flags(&node.port.to_string());
    for name in ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"] {
        start = start.env(name, "http://127.0.0.1:9");
    }
    let ended = start.run();
    assert_eq!(ended.code, Some(0), "{ended:?}");
}

#[test]
fn a_redirect_is_not_followed_and_only_200_is_healthy() {
    let healthy = Upstream::leaf();
    let location = healthy.uri();
    for status in ["301 Moved", "302 Found", "308 Permanent", "204 No Content", "404 Not Found", "503 Busy"] {
        let location = location.clone();
        let upstream = Upstream::answering(move |peer, _| {
            peer.send(format!("HTTP/1.1 {status}\r\nlocation: {location}\r\ncontent-length: 0\r\n\r\n"));
        });
        let ended = healthcheck(&upstream.uri()).run();
        assert_eq!(ended.code, Some(1), "{ended:?}");
        assert!(ended.stderr.contains(&status[..3]), "{ended:?}");
    }
    assert_eq!(healthy.requests().len(), 0);
    assert_eq!(healthcheck(&location).run().code, Some(0));
}

#[test]
fn an_answer_that_drips_is_no_answer() {
    let upstream = Upstream::answering(|peer, _| {
        for _ in 0..200 {
            peer.send("H");
            std::thread::sleep(Duration::from_millis(50));
        }
    });
    let ended = healthcheck(&upstream.uri()).flags("--healthcheck-timeout 300ms").run();
    assert_eq!(ended.code, Some(1), "{ended:?}");
}

#[test]
fn wrong_use_is_told_apart_from_an_unhealthy_node() {
    for flags in ["--port abc", "nonsense", "--healthcheck-timeout 0", "--no-such-flag"] {
        let ended = healthcheck(flags).run();
        assert_eq!(ended.code, Some(2), "{flags}: {ended:?}");
        assert_eq!(ended.stderr.lines().count(), 1, "{ended:?}");
    }
}
