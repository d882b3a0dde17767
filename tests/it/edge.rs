//! The server's edge: old and new protocols, slow clients, too many clients.

use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustix::process::{Resource, Rlimit, prlimit};

use crate::support::{Node, Socket, Start, Upstream, eventually};

#[test]
fn http_1_0_keeps_the_connection_only_where_it_is_asked_to() {
    let node = Node::leaf();
    let mut socket = node.connect();
    for _ in 0..5 {
        socket.send("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
        let answer = socket.answer();
        assert!(answer.status_line.starts_with("HTTP/1.0 200"), "{}", answer.status_line);
        assert!(answer.is_complete());
        assert_eq!(answer.header("connection").map(str::to_ascii_lowercase).as_deref(), Some("keep-alive"));
        assert!(answer.header("content-length").is_some() && answer.header("transfer-encoding").is_none());
    }
    let mut socket = node.connect();
    socket.send("GET / HTTP/1.0\r\n\r\n");
    assert!(socket.answer().is_complete());
    assert_eq!(socket.until_closed(), b"");
    let mut socket = node.connect();
    socket.send("GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    let answer = socket.answer();
    assert!(answer.is_complete());
    assert_eq!(answer.header("connection"), Some("close"));
    assert_eq!(socket.until_closed(), b"");
}

#[test]
fn requests_sent_in_one_go_are_answered_in_turn() {
    let upstream = Upstream::leaf();
    let node = Start::calling(upstream.uri()).start();
    let mut socket = node.connect();
    let one = |id: usize| format!("GET / HTTP/1.1\r\nhost: x\r\nx-correlation-id: c-{id}\r\n\r\n");
    socket.send((0..20).map(one).collect::<String>());
    for id in 0..20 {
        let answer = socket.answer();
        assert!(answer.is_complete(), "{}", answer.text());
        assert_eq!(answer.json()["correlationId"], format!("c-{id}"));
    }
}

#[test]
fn a_body_that_nobody_reads_does_not_become_the_next_request() {
    let node = Node::leaf();
    let smuggled = "GET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n";
    let mut socket = node.connect();
    socket.send(format!("GET / HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{smuggled}", smuggled.len()));
    assert!(socket.answer().is_complete());
    assert_eq!(socket.get("/live").json()["status"], "UP");
}

#[test]
fn http_2_is_spoken_to_those_who_know() {
    let upstream = Upstream::leaf();
    let node = Start::calling(upstream.uri()).env("HOSTNAME", "h2").start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let stream = tokio::net::TcpStream::connect(("127.0.0.1", node.port)).await.expect("a node");
        let client = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
        let (sender, connection) = client.expect("HTTP/2");
        tokio::spawn(connection);
        let ask = |method: &'static str, path: &'static str| {
            let mut sender = sender.clone();
            let uri = format!("http://node{path}");
            let request = http::Request::builder().method(method).uri(uri).body(Empty::<Bytes>::new());
            async move {
                let answer = sender.send_request(request.expect("a request")).await.expect("an answer");
                let (head, body) = answer.into_parts();
                (head, body.collect().await.expect("a body").to_bytes())
            }
        };
        // Many at once on the one connection.
        let asked: Vec<_> = (0..50).map(|_| tokio::spawn(ask("GET", "/"))).collect();
        for answer in asked {
            let (head, body) = answer.await.expect("no panic");
            assert_eq!((head.version, head.status.as_u16()), (http::Version::HTTP_2, 200));
            assert_eq!(head.headers["cascade-status"], "complete");
            let json: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
            assert_eq!(json["host"], "h2");
        }
        let (head, body) = ask("HEAD", "/").await;
        assert!(head.status == 200 && body.is_empty());
        assert_eq!(ask("GET", "/nowhere").await.0.status, 404);
        assert_eq!(ask("DELETE", "/").await.0.status, 405);
    });
    assert_eq!(node.metric(&["connections_total", "side=\"server\""]), 2.0, "that one, and the one that asks");
}

#[test]
fn a_connection_on_which_nothing_moves_is_closed() {
    let node = Start::node().flags("--idle-timeout 300ms").start();
    let mut unused = node.connect();
    let mut used = node.connect();
    assert!(used.get("/").is_complete());
    assert_eq!(unused.until_closed(), b"");
    assert_eq!(used.until_closed(), b"");
}

#[test]
fn five_hundred_slow_clients_are_closed_and_slow_nobody_down() {
    // One worker: others may still be opening what they need when the node is announced.
    let node = Start::node().flags("--workers 1 --header-timeout 1s --access-log off").start();
    let baseline = node.open_files();
    let mut slow: Vec<Socket> = (0..500).map(|_| node.connect()).collect();
    let start = Instant::now();
    let mut served = 0;
    let mut other = node.connect();
    let mut open = true;
    for byte in "GET / HTTP/1.1\r\nx-slow: ".chars().chain(std::iter::repeat('x')) {
        // One byte to each, again and again, for as long as one of them takes it.
        open = slow.iter_mut().filter_map(|socket| socket.try_send(byte.to_string()).ok()).count() > 0;
        assert!(other.get("/").is_complete());
        served += 1;
        if !open || start.elapsed() > Duration::from_secs(20) {
            break;
        }
        thread::sleep(Duration::from_millis(100));
    }
    assert!(!open, "slow clients are still connected after {:?}", start.elapsed());
    assert!(served > 2, "others had to wait for the slow ones");
    drop(other);
    eventually("descriptors are back", || node.open_files() <= baseline);
}

#[test]
fn clients_beyond_the_limit_wait_and_one_line_tells() {
    let node = Start::node().flags("--max-connections 2 --workers 1").start();
    let mut first = node.connect();
    let mut second = node.connect();
    assert!(first.get("/").is_complete() && second.get("/").is_complete());
    let mut third = node.connect();
    third.send("GET / HTTP/1.1\r\nhost: x\r\n\r\n");
    node.log.until("WARN all 2 connections of --max-connections are open: further ones wait");
    assert!(second.get("/").is_complete(), "those who are in are served");
    assert!(third.is_silent());
    drop(first);
    assert!(third.answer().is_complete());
    let lines = node.log.lines();
    assert_eq!(lines.iter().filter(|line| line.contains("further ones wait")).count(), 1, "{lines:?}");
    drop((second, third));
    for _ in 0..5 {
        assert!(node.get("/").is_complete());
    }
}

#[test]
fn a_node_without_descriptors_left_says_so_and_recovers() {
    let upstream = Upstream::answering(|peer, _| {
        peer.json("{}");
        peer.close();
    });
    let mut node = Start::calling(upstream.uri()).flags("--workers 1").start();
    let mut inside = node.connect();
    assert!(inside.get("/").is_complete());
    let limit = |soft: u64| {
        let limit = Rlimit { current: Some(soft), maximum: Some(20_000) };
        prlimit(Some(node.rustix_pid()), Resource::Nofile, limit).expect("our own child")
    };
    // As many as it has: not one more.
    let before = limit(0);
    let mut waiting: Vec<Socket> = (0..5).map(|_| node.connect()).collect();
    node.log.until("cannot accept connections");
    assert_eq!(inside.get("/").reason(), "overflow", "no descriptor for a call either");
    assert_eq!(inside.get("/live").status, 200);
    thread::sleep(Duration::from_millis(500));
    let told = node.log.lines().iter().filter(|line| line.contains("cannot accept")).count();
    assert!(told < 50, "{told} lines: it spins");
    prlimit(Some(node.rustix_pid()), Resource::Nofile, before).expect("our own child");
    for socket in &mut waiting {
        assert!(socket.get("/").is_complete());
    }
    assert!(node.is_running());
}
