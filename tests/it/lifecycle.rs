//! How a node starts, drains and ends.

use std::os::unix::process::ExitStatusExt as _;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::support::{Node, Socket, Start, Upstream, eventually, exit_within, timed};

const MS: fn(u64) -> Duration = Duration::from_millis;

/// A node whose next node never answers, and a request that waits for it.
fn busy_node(flags: &str) -> (Node, Upstream, Socket) {
    let upstream = Upstream::answering(|peer, _| peer.until_gone());
    let node = Start::calling(upstream.uri()).flags("--timeout 50s").flags(flags).start();
    let mut socket = node.connect();
    socket.send("GET / HTTP/1.1\r\nhost: x\r\n\r\n");
    upstream.until_request(1);
    (node, upstream, socket)
}

#[test]
fn the_announcement_tells_where_the_node_is() {
    let node = Start::node().env("HOSTNAME", "service-3").start();
    let port = node.port;
    assert_eq!(node.announcement["listening"], format!("http://127.0.0.1:{port}"));
    assert_eq!(node.announcement["name"], "service-3");
    assert_eq!(node.announcement["pid"], node.pid());
    assert_eq!(node.get("/live").status, 200);
    assert_eq!(node.get("/ready").status, 200);
}

#[test]
fn a_term_takes_the_node_out_of_traffic_first_and_closes_the_port_later() {
    let mut node = Start::node().flags("--workers 3 --drain-delay 3s").start();
    let mut open = node.connect();
    assert_eq!(open.get("/ready").status, 200);
    node.signal(Signal::TERM);
    let (_, took) = timed(|| eventually("/ready is 503", || node.get("/ready").status == 503));
    assert!(took < MS(1500), "{took:?}");
    // Each worker, on new connections and on the old one, and everything but /ready goes on.
    for _ in 0..12 {
        assert_eq!(node.get("/ready").status, 503);
        assert_eq!(node.get("/live").status, 200);
        assert!(node.get("/").is_complete());
    }
    // The old connection gets its answer, and with it the word to look for another node.
    let last = open.get("/");
    assert!(last.is_complete());
    assert_eq!(last.header("connection"), Some("close"));
    assert_eq!(open.until_closed(), b"");
    let status = node.end();
    assert_eq!(status.code(), Some(0));
    assert!(Socket::try_connect(("127.0.0.1", node.port)).is_err());
}

#[test]
fn a_client_that_waits_to_be_accepted_when_the_port_closes_gets_its_answer() {
    let mut node = Start::node().flags("--drain-delay 300ms").start();
    node.signal(Signal::TERM);
    node.log.until("now answers 503");
    // Held still, it accepts nobody until the delay is over, and then finds both at once.
    node.pause();
    let mut waiting: Vec<Socket> = (0..3).map(|_| node.connect()).collect();
    waiting.iter_mut().for_each(|socket| socket.send("GET / HTTP/1.1\r\nhost: x\r\n\r\n"));
    std::thread::sleep(MS(400));
    node.resume();
    for socket in &mut waiting {
        let answer = socket.answer();
        assert!(answer.is_complete());
        assert_eq!(answer.header("connection"), Some("close"));
    }
    assert_eq!(node.end().code(), Some(0));
}

#[test]
fn a_head_that_never_ends_does_not_hold_the_exit_up() {
    let mut node = Start::node().flags("--drain-timeout 60s").start();
    let mut socket = node.connect();
    socket.send("GET / HT");
    assert_eq!(node.get("/").status, 200);
    node.signal(Signal::TERM);
    assert_eq!(node.end().code(), Some(0));
    socket.until_closed();
}

#[test]
fn the_drain_is_logged_step_by_step_with_both_its_times() {
    let mut node = Start::node().flags("--drain-delay 100ms --drain-timeout 7s").start();
    node.signal(Signal::TERM);
    assert_eq!(node.end().code(), Some(0));
    let log = node.log.whole();
    let steps = [
        "SIGTERM: /ready now answers 503; serving for another 100ms",
        "listener closed; requests in flight have 7s to finish",
        "every request was answered; stopped",
    ];
    let places: Vec<Option<usize>> = steps.iter().map(|step| log.find(step)).collect();
    assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{places:?}\n{log}");
}

#[test]
fn an_idle_node_ends_at_once() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut node = Node::leaf();
        let mut idle = node.connect();
        assert!(idle.get("/").is_complete());
        node.signal(signal);
        let (status, took) = timed(|| node.end());
        assert_eq!(status.code(), Some(0));
        assert!(took < MS(8000), "an idle connection held it for {took:?}");
    }
}

#[test]
fn an_interrupt_does_not_wait_for_the_drain_delay() {
    let mut node = Start::node().flags("--drain-delay 1m").start();
    node.signal(Signal::INT);
    assert_eq!(node.end().code(), Some(0));
}

#[test]
fn a_request_in_flight_gets_its_answer_and_then_its_connection_closes() {
    let closed = Arc::new(AtomicBool::new(false));
    let until_closed = Arc::clone(&closed);
    let upstream = Upstream::answering(move |peer, _| {
        eventually("the port is closed", || until_closed.load(SeqCst));
        peer.json("{\"late\":true}");
    });
    let mut node = Start::calling(upstream.uri()).flags("--drain-timeout 1m --timeout 1m").start();
    let mut socket = node.connect();
    socket.send("GET / HTTP/1.1\r\nhost: x\r\n\r\n");
    upstream.until_request(1);
    node.signal(Signal::TERM);
    node.log.until("listener closed");
    eventually("the port is closed", || Socket::try_connect(("127.0.0.1", node.port)).is_err());
    closed.store(true, SeqCst);
    let answer = socket.answer();
    assert!(answer.is_complete() && answer.json()["responseInfo"]["late"] == true, "{}", answer.text());
    assert_eq!(answer.header("connection"), Some("close"));
    assert_eq!(socket.until_closed(), b"");
    assert_eq!(node.end().code(), Some(0));
}

#[test]
fn a_request_that_takes_longer_than_the_drain_is_cut() {
    let (mut node, upstream, mut socket) = busy_node("--drain-timeout 300ms");
    node.signal(Signal::TERM);
    assert_eq!(node.end().code(), Some(0));
    node.log.until("1 connections were still busy after 300ms and were cut");
    socket.until_closed();
    upstream.until_nobody_is_there();
}

#[test]
fn a_second_signal_ends_the_node_at_once() {
    for (first, second, code) in [
        (Signal::TERM, Signal::TERM, 143),
        (Signal::INT, Signal::INT, 130),
        (Signal::TERM, Signal::INT, 130),
        (Signal::INT, Signal::TERM, 143),
    ] {
        let (mut node, _upstream, _socket) = busy_node("--drain-timeout 50s");
        node.signal(first);
        node.log.until("now answers 503");
        node.signal(second);
        assert_eq!(node.end().code(), Some(code), "{first:?} {second:?}");
        node.log.until("while draining: stopped at once");
    }
}

#[test]
fn a_port_in_use_is_named_and_ends_with_1() {
    let other = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = other.local_addr().expect("bound").port().to_string();
    for workers in ["1", "3"] {
        let refusal = Start::node().env("PORT", &port).flags("--workers").flags(workers).run();
        assert_eq!((refusal.code, refusal.stdout.as_str()), (Some(1), ""), "{refusal:?}");
        assert!(refusal.stderr.contains(&format!("cannot listen on port {port}")), "{refusal:?}");
    }
    let node = Node::leaf();
    let refusal = Start::node().env("PORT", node.port.to_string()).run();
    assert_eq!(refusal.code, Some(1), "two nodes on one port: {refusal:?}");
}

/// Whether the process catches TERM, by the kernel's word.
fn catches_term(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let mask = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (Signal::TERM.as_raw() - 1) & 1 == 1
}

#[test]
fn a_term_that_comes_before_the_port_is_open_is_a_clean_exit() {
    for _ in 0..10 {
        let mut child = Start::node().spawn();
        let pid = Pid::from_child(&child);
        while !catches_term(child.id()) {
            std::hint::spin_loop();
        }
        kill_process(pid, Signal::TERM).expect("our own child");
        assert_eq!(exit_within(&mut child, Duration::from_secs(10)).code(), Some(0));
    }
}

#[test]
fn a_term_at_any_moment_ends_the_node() {
    for delay in 0..20 {
        let mut child = Start::node().spawn();
        std::thread::sleep(Duration::from_micros(delay * 500));
        kill_process(Pid::from_child(&child), Signal::TERM).expect("our own child");
        let status = exit_within(&mut child, Duration::from_secs(10));
        // Before the program runs at all, the kernel ends it.
        assert!(status.code() == Some(0) || status.signal() == Some(15), "{delay}: {status}");
    }
}

#[test]
fn every_worker_serves() {
    for workers in [1, 3] {
        let node = Start::node().flags("--workers").flags(&workers.to_string()).start();
        let serving = || {
            let threads = std::fs::read_dir(format!("/proc/{}/task", node.pid())).expect("a running child");
            let names = threads.filter_map(|thread| std::fs::read_to_string(thread.ok()?.path().join("comm")).ok());
            names.filter(|name| name.starts_with("worker-")).count()
        };
        // A thread gets its name a moment after it starts; the main thread is a worker too.
        eventually("all workers are there", || serving() == workers - 1);
        for _ in 0..30 {
            assert!(node.get("/").is_complete());
        }
        assert_eq!(node.metric(&["requests_total", "route=\"/\""]), 30.0);
    }
}

#[test]
#[ignore = "needs root and pid namespaces"]
fn as_pid_1_a_node_heeds_term_and_int() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut unshare = Command::new("/usr/bin/unshare");
        unshare.args(["--pid", "--fork", "--mount-proc", env!("CARGO_BIN_EXE_rest-cascade")]);
        let mut node = Start::by(unshare).env("PORT", "0").start();
        assert_eq!(node.announcement["pid"], 1, "not in a pid namespace of its own");
        let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", node.pid())).expect("a child");
        let inner = children.trim().parse().ok().and_then(Pid::from_raw).expect("one child");
        kill_process(inner, signal).expect("a process of ours");
        let (status, took) = timed(|| node.end());
        assert_eq!(status.code(), Some(0));
        assert!(took < Duration::from_secs(2), "{took:?}");
    }
}
