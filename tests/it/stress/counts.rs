//! Every answer is one of three, and a failed one has a name.

use std::time::Duration;

use serde_json::json;

use super::{counts, figures, stress};
use crate::support::{BlackHole, Cascade, Node, Peer, Upstream, free_port};

#[test]
fn a_healthy_cascade_is_complete() {
    let cascade = Cascade::of(2);
    let (figures, code) = figures("-n 200 -c 4", cascade.nodes()[0].uri());
    assert_eq!((counts(&figures), code), ([200, 0, 0], 0), "{figures}");
    assert_eq!(figures["total"], 200);
    assert_eq!((&figures["errors"], &figures["warnings"]), (&json!({}), &json!([])), "{figures}");
    let ms = |name: &str| figures["ms"][name].as_f64().expect(name);
    let in_order = ["min", "p50", "p75", "p95", "p99", "max"].map(ms);
    assert!(in_order.is_sorted() && in_order[0] > 0.0 && ms("mean") > 0.0, "{figures}");
    let by_second: u64 =
        figures["per_second"].as_array().expect("a list").iter().map(|s| s["ok"].as_u64().expect("a count")).sum();
    assert_eq!(by_second, 200);
}

#[test]
fn half_a_cascade_is_partial_by_reason_and_place_and_no_failure() {
    let mut cascade = Cascade::of(3);
    cascade.node(3).kill();
    let (figures, code) = figures("-n 50 -c 4 -k", cascade.nodes()[0].uri());
    assert_eq!((counts(&figures), code), ([0, 50, 0], 0), "{figures}");
    assert_eq!(figures["partials"], json!({"refused; hop=3": 50}), "{figures}");
}

#[test]
fn a_dead_url_fails_with_its_reason() {
    let url = format!("http://127.0.0.1:{}/", free_port());
    let (figures, code) = figures("-n 10 -c 2", &url);
    assert_eq!((counts(&figures), code), ([0, 0, 10], 1), "{figures}");
    assert_eq!(figures["errors"], json!({"refused": 10}));
    let ended = stress("-n 10 -c 2", &url).run();
    assert!(ended.stdout.contains("(refused: 10)") && ended.code == Some(1), "{ended:?}");
}

#[test]
fn a_name_without_an_address_fails_on_one_line() {
    let ended = stress("-n 10", "http://nobody.invalid/").run();
    assert_eq!((ended.code, ended.stderr.lines().count(), ended.stdout.as_str()), (Some(1), 1, ""), "{ended:?}");
    assert!(ended.stderr.contains("dns: nobody.invalid"), "{ended:?}");
}

#[test]
fn a_node_that_is_killed_in_mid_run_is_seen_to_go() {
    let mut node = Node::leaf();
    let mut child = stress("--rate 200 --duration 2s --json", node.uri()).spawn();
    std::thread::sleep(Duration::from_millis(800));
    node.kill();
    let code = crate::support::exit_within(&mut child, crate::support::PATIENCE).code();
    let mut text = String::new();
    std::io::Read::read_to_string(&mut child.stdout.take().expect("piped"), &mut text).expect("UTF-8");
    let figures: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let [ok, partial, ko] = counts(&figures);
    assert!(ok > 0 && ko > 0 && partial == 0 && ok + ko == 400, "{figures}");
    assert!(figures["errors"]["refused"].as_u64().expect("refused") > 0, "{figures}");
    assert_eq!(code, Some(1));
}

/// The one way in which all requests to this script fail.
#[track_caller]
fn failing(flags: &str, script: impl Fn(&mut Peer) + Send + Sync + 'static) -> String {
    let upstream = Upstream::answering(move |peer, _| script(peer));
    let (figures, code) = figures(&format!("-n 6 -c 2 {flags}"), upstream.uri());
    assert_eq!((counts(&figures), code), ([0, 0, 6], 1), "{figures}");
    let errors = figures["errors"].as_object().expect("an object").clone();
    assert_eq!(errors.len(), 1, "{figures}");
    errors.keys().next().expect("one").clone()
}

#[test]
fn each_way_to_fail_has_a_name_of_its_own() {
    assert_eq!(failing("", |peer| peer.send("HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n")), "503");
    assert_eq!(failing("", |peer| peer.send("HTTP/1.1 302 Found\r\nlocation: /\r\ncontent-length: 0\r\n\r\n")), "302");
    assert_eq!(failing("", Peer::close), "closed");
    assert_eq!(failing("", Peer::reset), "reset");
    let garbage = |peer: &mut Peer| peer.send("lskdu018973t09sylgasjkfg1][]'./.sdlv");
    assert_eq!(failing("", move |peer| (garbage(peer), peer.close()).1), "protocol");
    assert_eq!(failing("--timeout 150ms", Peer::until_gone), "timeout");
    let endless = format!("HTTP/1.1 200 OK\r\n{}", format!("x: {}\r\n", "y".repeat(8000)).repeat(9));
    assert_eq!(failing("", move |peer| peer.send(&endless)), "too_large");
}

#[test]
fn a_body_that_breaks_after_200_has_failed() {
    let head = "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n";
    assert_eq!(failing("", move |peer| (peer.send(format!("{head}0123456789")), peer.close()).1), "truncated");
    let chunked = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
    assert_eq!(failing("", move |peer| (peer.send(format!("{chunked}5\r\nhello\r\n")), peer.close()).1), "truncated");
    assert_eq!(failing("", move |peer| (peer.send(format!("{chunked}lskdu0189")), peer.close()).1), "truncated");
    let dribble = move |peer: &mut Peer| (peer.send(format!("{head}0123456789")), peer.until_gone()).1;
    assert_eq!(failing("--timeout 150ms", dribble), "timeout");
}

#[test]
fn a_connection_that_nobody_takes_fails_as_such() {
    let hole = BlackHole::new();
    let (figures, code) = figures("-n 2 -c 2 --timeout 200ms", hole.uri());
    assert_eq!((&figures["errors"], code), (&json!({"connect_timeout": 2}), 1), "{figures}");
}

#[test]
fn chunked_and_unframed_bodies_and_interim_answers_are_complete() {
    let chunked = Upstream::answering(|peer, _| {
        peer.send("HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n");
        peer.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5;a=b\r\nhel");
        peer.send("lo\r\n0\r\nx-trailer: 1\r\n\r\n");
    });
    let (figures_of_chunked, code) = figures("-n 20 -c 2 -k", chunked.uri());
    assert_eq!((counts(&figures_of_chunked), code), ([20, 0, 0], 0), "{figures_of_chunked}");
    assert_eq!(chunked.connections(), 2);
    let unframed = Upstream::answering(|peer, _| {
        peer.send("HTTP/1.0 200 OK\r\n\r\nhello");
        peer.close();
    });
    let (figures, code) = figures("-n 20 -c 2 -k", unframed.uri());
    assert_eq!((counts(&figures), code), ([20, 0, 0], 0), "{figures}");
    assert_eq!(unframed.connections(), 20);
}

#[test]
fn flags_of_the_resilience_layer_are_counted() {
    let answer = "HTTP/1.1 503 Busy\r\nx-resilience-flag: UO\r\ncontent-length: 0\r\n\r\n";
    let upstream = Upstream::answering(move |peer, _| peer.send(answer));
    let (figures, _) = figures("-n 6 -c 2", upstream.uri());
    assert_eq!(figures["flags"], json!({"UO": 6}), "{figures}");
    assert_eq!(figures["per_second"][0]["flags"], json!({"UO": 6}), "{figures}");
}

#[test]
fn the_exit_code_goes_by_the_share_that_failed() {
    for (fail_over, expected) in [("", 1), ("--fail-over 0%", 1), ("--fail-over 24%", 1), ("--fail-over 25%", 0)] {
        let upstream = Upstream::answering(|peer, request| match request.connection % 4 {
            0 => peer.send("HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n"),
            _ => peer.json("{}"),
        });
        let (figures, code) = figures(&format!("-n 20 -c 1 {fail_over}"), upstream.uri());
        assert_eq!((counts(&figures), code), ([15, 0, 5], expected), "{fail_over}: {figures}");
    }
}
