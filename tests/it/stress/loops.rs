//! Closed and open loop: which connections are made, when requests go, and what a load does when it is stopped.

use std::io::Read as _;
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::{counts, figures, stress};
use crate::support::{Node, PATIENCE, Upstream, exit_within};

#[test]
fn a_closed_loop_keeps_its_connections_only_if_asked() {
    let upstream = Upstream::leaf();
    let (kept, _) = figures("-n 60 -c 3 -k", upstream.uri());
    assert_eq!((counts(&kept), upstream.connections()), ([60, 0, 0], 3), "{kept}");
    assert_eq!(kept["connects"], 3, "{kept}");
    assert!(upstream.most_open() <= 3);
    let fresh = Upstream::leaf();
    let (figures, _) = figures("-n 60 -c 3", fresh.uri());
    assert_eq!((counts(&figures), fresh.connections()), ([60, 0, 0], 60), "{figures}");
    assert!(fresh.requests().iter().all(|request| request.header("connection") == Some("close")));
}

#[test]
fn several_threads_send_as_many_as_one() {
    let node = Node::leaf();
    let (closed, _) = figures("-n 301 -c 5 -k --threads 3", node.uri());
    assert_eq!((counts(&closed), &closed["connects"]), ([301, 0, 0], &json!(5)), "{closed}");
    let (open, _) = figures("--rate 100 --duration 1s --threads 3", node.uri());
    assert_eq!(counts(&open), [100, 0, 0], "{open}");
}

#[test]
fn an_open_loop_sends_its_plan_each_request_on_its_own_connection() {
    let upstream = Upstream::leaf();
    let (figures, code) = figures("--rate 50 --ramp 1s --duration 1s", upstream.uri());
    // The ramp gives 55 percent of the full rate.
    assert_eq!((counts(&figures), code), ([78, 0, 0], 0), "{figures}");
    assert_eq!(upstream.connections(), 78);
    assert!(figures["lateness_ms"]["p99"].is_f64(), "{figures}");
    let seconds = figures["seconds"].as_f64().expect("a number");
    assert!((1.9..10.0).contains(&seconds), "{figures}");
}

#[test]
fn an_open_loop_uses_connections_again_if_asked() {
    let upstream = Upstream::leaf();
    let (figures, _) = figures("-k --rate 50 --duration 1s", upstream.uri());
    assert_eq!(counts(&figures), [50, 0, 0], "{figures}");
    assert!(upstream.connections() < 25, "{} connections", upstream.connections());
}

#[test]
fn a_slow_target_does_not_slow_an_open_loop() {
    let upstream = Upstream::answering(|peer, _| {
        std::thread::sleep(Duration::from_millis(700));
        peer.json("{}");
    });
    let (figures, _) = figures("--rate 40 --duration 1s", upstream.uri());
    assert_eq!(counts(&figures), [40, 0, 0], "{figures}");
    // A closed loop of the same length would have sent a handful.
    assert!(upstream.most_open() > 15, "{}", upstream.most_open());
}

#[test]
fn the_most_in_flight_is_never_exceeded_and_latency_counts_from_when_a_request_was_due() {
    let (asked, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let seen = Arc::clone(&most);
    let upstream = Upstream::answering(move |peer, _| {
        seen.fetch_max(asked.fetch_add(1, SeqCst) + 1, SeqCst);
        std::thread::sleep(Duration::from_millis(100));
        // Before the answer goes: the next request may be here before this is over.
        asked.fetch_sub(1, SeqCst);
        peer.json("{}");
    });
    let ended = stress("--rate 50 --duration 1s --max-in-flight 2 --json", upstream.uri()).run();
    let (figures, _) = super::read(&ended);
    assert_eq!((most.load(SeqCst), &figures["most_in_flight"]), (2, &json!(2)), "{figures}");
    let [ok, ..] = counts(&figures);
    assert_eq!(ok + figures["unsent"].as_u64().expect("a count"), 50, "{figures}");
    assert!(figures["unsent"].as_u64() > Some(10), "{figures}");
    // Each took little more than 100 ms once it went.
    assert!(figures["ms"]["max"].as_f64() > Some(400.0), "{figures}");
    assert!(figures["warnings"].to_string().contains("2 were unanswered already"), "{figures}");
    assert!(ended.stderr.contains("warning: ") && ended.stderr.contains("unanswered"), "{ended:?}");
}

#[test]
fn a_cut_off_leaves_out_what_is_unanswered_at_the_end() {
    let upstream = Upstream::answering(|peer, _| peer.until_gone());
    let (figures, code) = figures("--rate 20 --duration 500ms --cut-off", upstream.uri());
    assert_eq!((counts(&figures), &figures["unanswered"], code), ([0, 0, 0], &json!(10), 1), "{figures}");
    assert_eq!((&figures["ms"], &figures["errors"]), (&Value::Null, &json!({})), "{figures}");
    upstream.until_nobody_is_there();
}

fn interrupt(child: &Child) {
    kill_process(Pid::from_child(child), Signal::INT).expect("our own child");
}

fn output(child: &mut Child) -> String {
    let mut text = String::new();
    child.stdout.take().expect("piped").read_to_string(&mut text).expect("UTF-8");
    text
}

#[test]
fn ctrl_c_prints_what_there_is() {
    for flags in ["-n 1000000 -c 2", "--rate 100 --duration 1h"] {
        let upstream = Upstream::answering(|peer, request| match request.connection {
            30 => peer.until_gone(),
            _ => peer.json("{}"),
        });
        let mut child = stress(&format!("{flags} --json"), upstream.uri()).spawn();
        upstream.until_request(60);
        interrupt(&child);
        assert_eq!(exit_within(&mut child, PATIENCE).code(), Some(130), "{flags}");
        let figures: Value = serde_json::from_str(&output(&mut child)).expect("JSON");
        let [ok, _, ko] = counts(&figures);
        assert!(ok >= 50 && ko == 0, "{flags}: {figures}");
        assert!(figures["unanswered"].as_u64() >= Some(1), "{flags}: {figures}");
        assert!(figures["unsent"].as_u64() > Some(1000), "{flags}: {figures}");
        assert!(figures["warnings"][0].as_str().is_some_and(|text| text.contains("stopped")), "{flags}: {figures}");
    }
}

#[test]
fn ctrl_c_prints_the_table_too() {
    let upstream = Upstream::leaf();
    let mut child = stress("-n 1000000 -c 2", upstream.uri()).spawn();
    upstream.until_request(20);
    interrupt(&child);
    assert_eq!(exit_within(&mut child, PATIENCE).code(), Some(130));
    let text = output(&mut child);
    assert!(text.contains("Requests per second:") && text.contains("100%"), "{text}");
}
