//! The way out: connections that are used again, die while they wait, and go when nobody needs them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use crate::support::{Node, Peer, Request, Start, Upstream, eventually};

/// One worker has one pool, so that a test can say which connection is used.
fn one_worker(upstream: &Upstream) -> Start {
    Start::calling(upstream.uri()).flags("--workers 1")
}

#[test]
fn a_connection_is_used_again() {
    let upstream = Upstream::leaf();
    let node = one_worker(&upstream).start();
    for _ in 0..20 {
        assert!(node.get("/").is_complete());
    }
    assert_eq!((upstream.connections(), upstream.requests().len()), (1, 20));
}

#[test]
fn a_target_that_closes_after_each_answer_gets_a_new_connection_each_time() {
    for head in ["HTTP/1.1 200 OK\r\nconnection: close\r\n", "HTTP/1.0 200 OK\r\n"] {
        let upstream = Upstream::answering(move |peer, _| {
            peer.send(format!("{head}content-length: 2\r\n\r\n{{}}"));
            peer.close();
        });
        let node = one_worker(&upstream).start();
        for _ in 0..10 {
            assert!(node.get("/").is_complete());
        }
        assert_eq!((upstream.connections(), upstream.requests().len()), (10, 10));
    }
}

#[test]
fn a_waiting_connection_that_died_costs_one_more_try_on_a_new_one() {
    let ends: [fn(&mut Peer); 2] = [Peer::close, Peer::reset];
    for end in ends {
        // Ends when it is used again: the node cannot have known.
        let upstream =
            Upstream::answering(move |peer, request| if request.number == 1 { peer.json("{}") } else { end(peer) });
        let node = one_worker(&upstream).start();
        for number in 1..=10 {
            assert!(node.get("/").is_complete());
            assert_eq!((upstream.connections(), upstream.requests().len()), (number, 2 * number - 1));
        }
        assert_eq!(node.metric(&["downstream_calls_total", "reason=\"ok\""]), 10.0);
    }
}

/// Three connections that wait in the pool of the node's one worker.
fn with_three_waiting(on_second: impl Fn(&mut Peer) + Send + Sync + 'static) -> (Node, Upstream) {
    let arrived = Arc::new(AtomicUsize::new(0));
    let upstream = Upstream::answering(move |peer: &mut Peer, request: &Request| {
        if request.target == "/?warm" {
            arrived.fetch_add(1, SeqCst);
            eventually("all three are here", || arrived.load(SeqCst) >= 3);
            peer.json("{}");
        } else {
            on_second(peer);
        }
    });
    let node = one_worker(&upstream).start();
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| assert!(node.get("/?warm").is_complete()));
        }
    });
    assert_eq!((upstream.connections(), upstream.requests().len()), (3, 3));
    (node, upstream)
}

#[test]
fn never_a_second_retry_though_more_dead_connections_wait() {
    let (node, upstream) = with_three_waiting(Peer::close);
    let answer = node.get("/");
    assert_eq!(answer.reason(), "closed", "{}", answer.text());
    assert_eq!((upstream.connections(), upstream.requests().len()), (4, 5));
}

#[test]
fn a_call_that_was_answered_in_part_is_not_made_again() {
    let ends: [fn(&mut Peer); 2] = [Peer::close, Peer::reset];
    for (end, reason) in ends.into_iter().zip(["truncated", "reset"]) {
        let (node, upstream) = with_three_waiting(move |peer| {
            peer.send("HTTP/1.1 2");
            // A reset throws away what the other side has not read yet.
            thread::sleep(Duration::from_millis(200));
            end(peer);
        });
        assert_eq!(node.get("/").reason(), reason);
        assert_eq!(upstream.requests().len(), 4, "{reason}");
    }
}

#[test]
fn a_connection_that_hangs_costs_one_time_out_and_is_not_used_again() {
    // What a dropped route looks like: the connection stands, nothing comes back on it.
    let upstream = Upstream::answering(|peer, request| {
        if request.connection == 1 && request.number > 1 { peer.until_gone() } else { peer.json("{}") }
    });
    let node = one_worker(&upstream).flags("--timeout 500ms").start();
    assert!(node.get("/").is_complete());
    assert_eq!(node.get("/").reason(), "timeout");
    assert!(node.get("/").is_complete());
    assert_eq!(upstream.connections(), 2);
}

#[test]
fn what_comes_after_an_answer_is_nobodys_answer() {
    let once = "HTTP/1.1 200 OK\r\ncontent-length: 11\r\n\r\n{\"mine\":\"1\"}";
    let smuggled = "HTTP/1.1 200 OK\r\ncontent-length: 16\r\n\r\n{\"smuggled\":true}";
    let upstream = Upstream::answering(move |peer, request| {
        if request.target == "/?evil" {
            let body = "{\"mine\":1}";
            peer.send(format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}{smuggled}{once}", body.len()));
        } else {
            peer.json("{\"mine\":2}");
        }
    });
    let node = one_worker(&upstream).start();
    for _ in 0..20 {
        assert_eq!(node.get("/?evil").json()["responseInfo"]["mine"], 1);
        let next = node.get("/");
        assert_eq!(next.json()["responseInfo"]["mine"], 2, "{}", next.text());
    }
}

#[test]
fn a_connection_nobody_uses_is_closed_after_the_pools_idle_time_out() {
    let upstream = Upstream::leaf();
    let node = one_worker(&upstream).flags("--pool-idle-timeout 300ms").start();
    assert!(node.get("/").is_complete());
    upstream.until_nobody_is_there();
    eventually("its gauge is 0", || node.metric(&["open_connections", "side=\"client\""]) == 0.0);
    assert!(node.get("/").is_complete());
}

#[test]
fn a_waiting_connection_is_kept_alive_by_the_kernel() {
    let upstream = Upstream::leaf();
    let node = one_worker(&upstream).start();
    assert!(node.get("/").is_complete());
    let peer = format!("{:04X}", upstream.address.port());
    eventually("its keepalive timer runs, for less than 900 s", || {
        let table = std::fs::read_to_string(format!("/proc/{}/net/tcp", node.pid())).expect("the kernel's table");
        table.lines().any(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            // Established (01); timer 02 is keepalive, and what follows are hundredths of a second.
            let (Some(to), Some(&"01"), Some(timer)) = (fields.get(2), fields.get(3), fields.get(5)) else {
                return false;
            };
            let left = timer.strip_prefix("02:").and_then(|left| u64::from_str_radix(left, 16).ok());
            to.ends_with(&format!(":{peer}")) && left.is_some_and(|left| left < 900 * 100)
        })
    });
}

#[test]
fn replicas_take_turns() {
    let (first, second) = (Upstream::leaf(), Upstream::leaf());
    let node = Start::calling(format!("{}, {}", first.uri(), second.uri())).start();
    for _ in 0..20 {
        assert!(node.get("/").is_complete());
    }
    assert_eq!((first.requests().len(), second.requests().len()), (10, 10));
}

#[test]
fn a_client_that_goes_away_ends_the_call() {
    let upstream = Upstream::answering(|peer, _| peer.until_gone());
    let node = Start::calling(upstream.uri()).flags("--timeout 10m").start();
    let mut client = node.connect();
    client.send("GET / HTTP/1.1\r\nhost: x\r\n\r\n");
    upstream.until_request(1);
    drop(client);
    upstream.until_nobody_is_there();
    eventually("it is counted as cancelled", || {
        node.metric(&["downstream_calls_total", "reason=\"cancelled\""]) == 1.0
            && node.metric(&["requests_total", "status=\"499\"", "outcome=\"cancelled\""]) == 1.0
    });
    assert_eq!(node.metric(&["requests_in_flight"]), 1.0, "only the one that asks");
}

const CLIENTS: usize = 200;

/// Each client sends requests one after the other and leaves every third one, if it is told to.
fn load(node: &Node, requests: usize, leaves: bool) {
    thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                let mut socket = node.connect();
                for number in 0..requests {
                    if leaves && number % 3 == 2 {
                        socket.send("GET / HTTP/1.1\r\nhost: x\r\n\r\n");
                        socket = node.connect();
                    } else {
                        let answer = socket.get("/");
                        assert!(answer.is_complete(), "{}", answer.text());
                    }
                }
            });
        }
    });
}

#[test]
fn connections_to_the_target_stay_as_few_as_the_requests_and_all_come_back() {
    let upstream = Upstream::answering(|peer, _| {
        thread::sleep(Duration::from_millis(2));
        peer.json("{}");
    });
    let flags = "--timeout 60s --pool-idle-timeout 500ms --access-log off";
    let mut node = Start::calling(upstream.uri()).flags(flags).start();
    assert!(node.get("/").is_complete());
    upstream.until_nobody_is_there();
    let baseline = node.open_files();

    load(&node, 10, false);
    assert!(upstream.most_open() <= CLIENTS + 8, "{} connections for {CLIENTS} clients", upstream.most_open());
    load(&node, 12, true);
    // A call whose client has left is noticed a moment later, and each worker has a pool of its own.
    assert!(upstream.most_open() <= 2 * CLIENTS, "{} connections for {CLIENTS} clients", upstream.most_open());

    upstream.until_nobody_is_there();
    eventually("descriptors are back", || node.open_files() <= baseline);
    eventually("no request is left", || node.metric(&["requests_in_flight"]) == 1.0);
    assert!(node.is_running());
}

#[test]
fn a_target_that_comes_back_is_called_again_at_once() {
    let alive = Arc::new(AtomicBool::new(true));
    let switch = Arc::clone(&alive);
    let upstream = Upstream::answering(move |peer, _| if switch.load(SeqCst) { peer.json("{}") } else { peer.close() });
    let node = Start::calling(upstream.uri()).start();
    for up in [true, false, true, false, true] {
        alive.store(up, SeqCst);
        assert_eq!(node.get("/").is_complete(), up);
    }
}
