//! The connection pool's limits, counted at the target.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use serde_json::json;

use crate::support::{Answer, BlackHole, Start, Upstream, at_once, eventually, following, following_with, timed};

const MS: fn(u64) -> Duration = Duration::from_millis;

fn slow(delay: Duration) -> Upstream {
    Upstream::answering(move |peer, _| {
        thread::sleep(delay);
        peer.json("{}");
    })
}

fn statuses(answers: &[Answer]) -> (usize, usize) {
    let count = |status| answers.iter().filter(|answer| answer.status == status).count();
    (count(200), count(503))
}

#[test]
fn never_more_connections_than_the_cap_however_many_ask_and_on_however_many_workers() {
    for workers in ["1", "4"] {
        let upstream = slow(MS(5));
        let start = Start::calling(upstream.uri()).flags("--workers").arg(workers);
        let node = Arc::new(following_with(start, json!({"connectionPool": {"tcp": {"maxConnections": 3}}})));
        let clients: Vec<_> = (0..20)
            .map(|_| {
                let node = Arc::clone(&node);
                thread::spawn(move || {
                    let mut socket = node.connect();
                    (0..20).filter(|_| socket.get("/").status == 200).count()
                })
            })
            .collect();
        let ok: usize = clients.into_iter().map(|client| client.join().expect("a client")).sum();
        assert_eq!(ok, 400, "who waits is served in the end");
        assert_eq!((upstream.most_open(), upstream.connections()), (3, 3), "{workers} workers");
    }
}

#[test]
fn a_connection_that_serves_once_is_closed_by_us_before_the_next_one_is_opened() {
    // The target would keep it (hyper#4110).
    let upstream = slow(MS(2));
    let pool = json!({"tcp": {"maxConnections": 2}, "http": {"maxRequestsPerConnection": 1}});
    let node = following(&upstream.uri(), json!({"connectionPool": pool}));
    let mut socket = node.connect();
    for number in 1..=10 {
        assert_eq!(socket.get("/").status, 200);
        assert_eq!(upstream.connections(), number);
    }
    upstream.until_nobody_is_there();
}

#[test]
fn beyond_the_queue_a_request_is_refused_at_once_and_told_why() {
    let upstream = slow(MS(400));
    let pool = json!({"tcp": {"maxConnections": 1}, "http": {"http1MaxPendingRequests": 1}});
    let node = following(&upstream.uri(), json!({"connectionPool": pool}));
    // One that has the connection, one that waits for it.
    let mut first = node.connect();
    first.send("GET / HTTP/1.1\r\nhost: x\r\n\r\n");
    upstream.until_request(1);
    let mut second = node.connect();
    second.send("GET / HTTP/1.1\r\nhost: x\r\n\r\n");
    eventually("one waits", || node.downstream()["pool"]["pending"] == 1);
    let (refused, took) = timed(|| node.get("/"));
    assert_eq!((refused.status, refused.reason().as_str()), (503, "overflow"));
    assert_eq!(refused.header("x-resilience-flag"), Some("UO"));
    assert_eq!(refused.header("x-envoy-overloaded"), Some("true"));
    assert!(took < MS(300), "refused after {took:?}");
    assert_eq!((first.answer().status, second.answer().status), (200, 200));
    assert_eq!(upstream.connections(), 1);
    let pool = &node.downstream()["pool"];
    assert_eq!((&pool["pendingOverflow"], &pool["requestOverflow"]), (&json!(1), &json!(0)));
    assert_eq!(node.metric(&["upstream_rq_pending_overflow_total"]), 1.0);
}

#[test]
fn a_cold_burst_beyond_the_queue_is_refused_though_connections_would_be_allowed() {
    // As Envoy does (envoy#11326): who waits for its own connection waits.
    let upstream = slow(MS(50));
    let pool = json!({"tcp": {"maxConnections": 10}, "http": {"http1MaxPendingRequests": 1}});
    let node = following(&upstream.uri(), json!({"connectionPool": pool}));
    let (ok, refused) = statuses(&at_once(&node, 5));
    assert!(ok >= 1 && refused >= 1 && ok + refused == 5, "{ok} of 5");
}

#[test]
fn a_limit_on_requests_refuses_at_once_and_never_queues() {
    let upstream = slow(MS(300));
    let node = following(&upstream.uri(), json!({"connectionPool": {"http": {"http2MaxRequests": 3}}}));
    let (answers, _) = timed(|| at_once(&node, 6));
    assert_eq!(statuses(&answers), (3, 3));
    let pool = &node.downstream()["pool"];
    assert_eq!((&pool["requestOverflow"], &pool["pendingOverflow"]), (&json!(3), &json!(0)));
    // And again with the connections there.
    assert_eq!(statuses(&at_once(&node, 6)), (3, 3));
}

#[test]
fn a_cap_that_is_lowered_under_load_holds_from_then_on() {
    let upstream = slow(MS(50));
    let node = following(&upstream.uri(), json!({}));
    at_once(&node, 15);
    assert_eq!(node.downstream()["pool"]["connections"], 15);
    let capped = json!({"connectionPool": {"tcp": {"maxConnections": 3}}}).to_string();
    // Those that wait go at once, those that are busy after their answer.
    let mut busy: Vec<_> = (0..10).map(|_| node.connect()).collect();
    busy.iter_mut().for_each(|socket| socket.send("GET / HTTP/1.1\r\nhost: x\r\n\r\n"));
    eventually("ten are busy", || {
        node.downstream()["pool"]["active"] == 10 || node.downstream()["pool"]["active"] == 0
    });
    assert_eq!(node.send("PUT", "/policy", &capped).status, 200);
    assert!(busy.iter_mut().all(|socket| socket.answer().status == 200));
    let open = || node.downstream()["pool"]["connections"].as_u64().unwrap_or(99);
    eventually("three are left", || open() <= 3);
    assert_eq!(statuses(&at_once(&node, 15)), (15, 0));
    assert!(open() <= 3);
}

#[test]
fn without_limits_nobody_is_refused() {
    let upstream = slow(MS(100));
    let node = following(&upstream.uri(), json!({}));
    assert_eq!(statuses(&at_once(&node, 300)), (300, 0));
}

#[test]
fn zero_is_no_limit_as_in_istio() {
    let upstream = slow(MS(1));
    let pool = json!({
        "tcp": {"maxConnections": 0},
        "http": {"http1MaxPendingRequests": 0, "http2MaxRequests": 0, "maxRequestsPerConnection": 0, "maxRetries": 0},
    });
    let node = following(&upstream.uri(), json!({"connectionPool": pool, "timeout": "0s"}));
    assert_eq!(statuses(&at_once(&node, 20)), (20, 0));
}

#[test]
fn the_modern_rule_serves_who_waits_when_one_connection_closes_and_the_old_one_strands_it() {
    let run = |rule| {
        let upstream = slow(MS(200));
        let http = json!({"http1MaxPendingRequests": 1, "maxRequestsPerConnection": 1});
        let pool = json!({"tcp": {"maxConnections": 2}, "http": http});
        let node = following(&upstream.uri(), json!({"connectionPool": pool, "pool": {"rule": rule}}));
        // Two with connections, one after the other so that neither waits long; the third one waits.
        let mut sockets: Vec<_> = (0..3).map(|_| node.connect()).collect();
        for (number, socket) in sockets.iter_mut().enumerate() {
            socket.send("GET / HTTP/1.1\r\nhost: x\r\n\r\n");
            match number {
                2 => eventually("it waits", || node.downstream()["pool"]["pending"] == 1),
                number => drop(upstream.until_request(number + 1)),
            }
            if number == 0 {
                // So that their ends are apart.
                thread::sleep(MS(100));
            }
        }
        let first = sockets.remove(0).answer().status;
        let connections = || upstream.connections();
        thread::sleep(MS(30));
        let while_second_is_busy = connections();
        let rest: Vec<u16> = sockets.iter_mut().map(|socket| socket.answer().status).collect();
        (first, while_second_is_busy, rest)
    };
    assert_eq!(run("modern"), (200, 3, vec![200, 200]));
    assert_eq!(run("envoy-1.13"), (200, 2, vec![200, 200]));
}

#[test]
fn who_stops_waiting_leaves_no_gap_and_takes_no_connection_along() {
    // failsafe-lib#393, resilience4j#332.
    let upstream = slow(MS(150));
    let node = following(&upstream.uri(), json!({"connectionPool": {"tcp": {"maxConnections": 1}}}));
    for _ in 0..3 {
        let mut holder = node.connect();
        holder.send("GET / HTTP/1.1\r\nhost: x\r\n\r\n");
        eventually("one has it", || node.downstream()["pool"]["active"] == 1);
        let waiters: Vec<_> = (0..8)
            .map(|_| {
                let mut socket = node.connect();
                socket.send("GET / HTTP/1.1\r\nhost: x\r\n\r\n");
                socket
            })
            .collect();
        eventually("eight wait", || node.downstream()["pool"]["pending"] == 8);
        drop(waiters);
        eventually("nobody waits", || node.downstream()["pool"]["pending"] == 0);
        assert_eq!(holder.answer().status, 200);
        assert_eq!(node.get("/").status, 200, "the place is free");
    }
    let pool = &node.downstream()["pool"];
    assert_eq!((&pool["active"], &pool["pending"], &pool["connecting"]), (&json!(0), &json!(0), &json!(0)));
    assert!(upstream.most_open() <= 1);
}

#[test]
fn a_call_that_times_out_closes_its_connection() {
    let upstream = Upstream::answering(|peer, _| peer.until_gone());
    let node = following(&upstream.uri(), json!({"timeout": "100ms"}));
    let answers = at_once(&node, 50);
    assert!(answers.iter().all(|answer| answer.status == 504), "{:?}", statuses(&answers));
    assert_eq!(answers[0].header("x-resilience-flag"), Some("UT"));
    upstream.until_nobody_is_there();
    assert_eq!(node.downstream()["pool"]["connections"], 0);
}

#[test]
fn whoever_waits_past_the_time_out_is_told_so_and_the_target_is_not_blamed() {
    let upstream = slow(MS(400));
    let policy = json!({
        "timeout": "150ms",
        "connectionPool": {"tcp": {"maxConnections": 1}},
        "outlierDetection": {"consecutiveGatewayErrors": 2, "maxEjectionPercent": 100},
    });
    let node = following(&upstream.uri(), policy);
    let mut first = node.connect();
    first.send("GET / HTTP/1.1\r\nhost: x\r\n\r\n");
    upstream.until_request(1);
    // It gives up sooner, by its caller's time: with the same time-out it might get the connection that the first
    // one's end sets free, and be at the target after all.
    let second = node.get_with("/", &[("x-envoy-expected-rq-timeout-ms", "60")]);
    let answers = [first.answer(), second];
    assert!(answers.iter().all(|answer| answer.status == 504));
    // One charge for the one that had the connection, none for the one that waited.
    assert_eq!(node.downstream()["endpoints"][0]["failuresInARow"], 1);
}

#[test]
fn a_target_that_takes_no_connection_is_ejected_also_where_the_call_gives_up_first() {
    // envoy#22395.
    let hole = BlackHole::new();
    let policy = json!({
        "timeout": "100ms",
        "connectionPool": {"tcp": {"connectTimeout": "10s"}},
        "outlierDetection": {"consecutiveGatewayErrors": 2, "maxEjectionPercent": 100, "updateMergeWindow": "0s"},
    });
    let node = following(&hole.uri(), policy);
    for _ in 0..2 {
        assert_eq!(node.get("/").reason(), "connect_timeout");
    }
    assert_eq!(node.get("/").reason(), "no_healthy");
}

#[test]
fn one_connect_that_fails_fails_all_that_wait_for_the_endpoint() {
    let upstream = Upstream::leaf();
    let uri = upstream.uri();
    drop(upstream);
    let node = following(&uri, json!({"connectionPool": {"tcp": {"maxConnections": 2}}}));
    let answers = at_once(&node, 6);
    assert!(answers.iter().all(|answer| (answer.status, answer.reason().as_str()) == (503, "refused")));
    assert_eq!(answers[0].header("x-resilience-flag"), Some("UF"));
}

#[test]
fn a_server_that_hangs_up_on_every_new_connection_costs_one_each() {
    let upstream = Upstream::accepting(crate::support::Peer::close);
    let node = following(&upstream.uri(), json!({}));
    for number in 1..=5 {
        let answer = node.get("/");
        assert_eq!(answer.status, 503);
        assert_eq!(answer.header("x-resilience-flag"), Some("UC"));
        assert!(upstream.connections() <= 2 * number);
    }
}

#[test]
fn idle_connections_close_after_their_time_and_old_ones_are_not_used_again() {
    let upstream = Upstream::leaf();
    let pool = |tcp| json!({"connectionPool": {"tcp": tcp}});
    let node = following(&upstream.uri(), pool(json!({"idleTimeout": "200ms"})));
    assert_eq!(node.get("/").status, 200);
    upstream.until_nobody_is_there();
    assert_eq!(node.send("PUT", "/policy", &pool(json!({"maxConnectionDuration": "50ms"})).to_string()).status, 200);
    assert_eq!(node.get("/").status, 200);
    thread::sleep(MS(80));
    assert_eq!(node.get("/").status, 200);
    assert_eq!(upstream.connections(), 3);
}
