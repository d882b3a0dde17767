//! What probes cost: whatever a dependency does, they answer at once, ask it no more often, and leave nothing behind.

use std::time::{Duration, Instant};

use super::{SEEN, SLACK, becomes, check, status};
use crate::support::{Node, Start, Upstream, eventually, timed};

/// Asks `path` with `clients` connections at a time; each one's status and the longest wait.
fn storm(node: &Node, path: &str, clients: usize) -> (Vec<u16>, Duration) {
    let results: Vec<(u16, Duration)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..clients).map(|_| scope.spawn(|| timed(|| status(node, path)))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    let longest = results.iter().map(|(_, took)| *took).max().unwrap_or_default();
    (results.into_iter().map(|(status, _)| status).collect(), longest)
}

#[test]
fn a_database_that_hangs_holds_up_no_probe() {
    for mode in ["background", "on-demand"] {
        let node = Start::node().flags("--check-timeout 800ms --check-mode").arg(mode).start();
        node.get("/db?mode=hang");
        becomes(&node, "/ready", 503);
        let (statuses, longest) = storm(&node, "/ready", 100);
        assert!(statuses.iter().all(|status| *status == 503), "{mode}: {statuses:?}");
        // In the background nothing is waited for; on demand a probe waits for one attempt, not for each other.
        assert!(longest < Duration::from_millis(800) + SLACK, "{mode}: {longest:?}");
        let (statuses, longest) = storm(&node, "/live", 100);
        assert!(statuses.iter().all(|status| *status == 200), "{mode}: {statuses:?}");
        assert!(longest < SLACK, "{mode}: {longest:?}");
        let db = check(&node.get("/ready"), "db");
        assert_eq!(db["data"]["error"], "timeout", "{mode}");
        assert_eq!(db["data"]["timeout_ms"], 800, "{mode}");
        node.get("/db?mode=up");
        becomes(&node, "/ready", 200);
    }
}

#[test]
fn the_time_out_is_the_one_that_was_set() {
    for (limit, ms) in [("150ms", 150), ("1200ms", 1200)] {
        let node = Start::node().flags("--check db=sim:hang --check-timeout").arg(limit).start();
        let start = Instant::now();
        eventually("the first attempt is given up", || check(&node.get("/ready"), "db")["data"]["error"] == "timeout");
        assert_eq!(check(&node.get("/ready"), "db")["data"]["timeout_ms"], ms);
        assert!(start.elapsed() < Duration::from_millis(ms) + SLACK);
    }
}

#[test]
fn two_hundred_probes_of_a_half_open_database_make_at_most_one_attempt_each_refresh() {
    for mode in ["background", "on-demand"] {
        // It takes connections and says nothing, as a database behind a dead disk does.
        let database = Upstream::accepting(|peer| peer.until_gone());
        let url = format!("db=postgres://postgres@{}/x?sslmode=disable", database.address);
        let start = Instant::now();
        let node = Start::node().flags("--check").arg(url).flags("--check-mode").arg(mode).start();
        becomes(&node, "/ready", 503);
        let (statuses, longest) = storm(&node, "/ready", 200);
        assert!(statuses.iter().all(|status| *status == 503), "{mode}: {statuses:?}");
        assert!(longest < Duration::from_millis(1000) + SLACK, "{mode}: {longest:?}");
        eventually("the first attempt is given up", || check(&node.get("/ready"), "db")["data"]["error"] == "timeout");
        // Attempts begin three quarters of an interval apart at the least, and never two at a time.
        let most = start.elapsed().as_millis() / 750 + 1;
        assert!(database.connections() as u128 <= most, "{mode}: {} of {most}", database.connections());
        // One attempt in flight; the end of the one before may be seen a moment after the next has begun.
        assert!(database.most_open() <= 2, "{mode}: {} attempts at a time", database.most_open());
        assert_eq!(status(&node, "/live"), 200);
        assert_eq!(status(&node, "/work"), 200);
    }
}

#[test]
fn a_thousand_probes_leave_nothing_behind() {
    let cache = Upstream::leaf();
    let queue = Upstream::accepting(|peer| peer.until_gone());
    let node = Start::node()
        .flags("--check-interval 50ms --check")
        .arg(format!("cache=http://{}/ready", cache.address))
        .arg(format!("--check=queue=tcp://{}", queue.address))
        .start();
    becomes(&node, "/ready", 200);
    let probe = |times: usize| {
        for _ in 0..times {
            let mut socket = node.connect();
            let answer = socket.request("GET", "/ready", &[("connection", "close")]);
            assert_eq!(answer.status, 200);
            socket.until_closed();
        }
    };
    // Until every worker has opened what it keeps.
    probe(100);
    let before = node.open_files();
    probe(1000);
    eventually("the probes' connections are closed", || node.open_files() <= before + 2);
    assert_eq!(cache.connections(), 1, "one connection, used again and again");
    assert!(queue.most_open() <= 2, "{} at a time", queue.most_open());
}

#[test]
fn a_pool_that_is_used_up_fails_its_own_route_and_no_probe() {
    let node = Start::node().flags("--db-pool 2 --db-wait 100ms --db-timeout 1m").start();
    std::thread::scope(|scope| {
        let mut busy: Vec<_> = (0..2).map(|_| node.connect()).collect();
        for socket in &mut busy {
            socket.send("GET /data?ms=3000 HTTP/1.1\r\nhost: node\r\n\r\n");
        }
        let refused = scope.spawn(|| {
            eventually("the pool is full", || status(&node, "/data") == 503);
            node.get("/data")
        });
        let refused = refused.join().expect("no panic");
        assert_eq!(refused.status, 503);
        let error = refused.json()["error"].as_str().expect("a sentence").to_owned();
        assert_eq!(error, "all 2 connections of --db-pool are in use, none came free within 100ms");
        for path in ["/ready", "/live", "/work"] {
            assert_eq!(status(&node, path), 200, "{path} while the pool is full");
        }
        for socket in &mut busy {
            assert_eq!(socket.answer().status, 200);
        }
    });
    assert_eq!(status(&node, "/data"), 200);
}

#[test]
fn a_dead_dependency_does_not_hold_the_connections_of_another() {
    let node = Start::node().flags("--check db=sim: --check queue=sim:hang;optional --db-pool 1").start();
    for _ in 0..20 {
        assert_eq!(status(&node, "/data"), 200);
        assert_eq!(status(&node, "/ready"), 200);
    }
    becomes(&node, "/ready", 200);
    eventually("the dead one is told", || check(&node.get("/ready"), "queue")["data"]["error"] == "timeout");
}

#[test]
fn a_business_query_ends_at_its_time_out_and_with_its_client() {
    let node = Start::node().flags("--db-pool 1 --db-wait 100ms --db-timeout 300ms").start();
    node.get("/db?mode=hang");
    let answer = node.get("/data");
    assert_eq!(answer.status, 503);
    assert_eq!(answer.json()["error"], "the database did not answer within 300ms");
    for (query, part) in [("ms=60001", "from 0 to 60000"), ("ms=x", "ms=x"), ("sleep=1", "\"sleep\"")] {
        let answer = node.get(&format!("/data?{query}"));
        assert_eq!(answer.status, 400, "{query}");
        assert!(answer.text().contains(part.trim_matches('"')), "{}", answer.text());
    }
    let node = Start::node().flags("--db-pool 1 --db-wait 10s --db-timeout 1h").start();
    node.get("/db?mode=hang");
    let mut leaving = node.connect();
    leaving.send("GET /data HTTP/1.1\r\nhost: node\r\n\r\n");
    eventually("the query runs", || node.metric(&["requests_in_flight"]) >= 2.0);
    drop(leaving);
    node.get("/db?mode=up");
    assert_eq!(status(&node, "/data"), 200, "the seat was given back");
}

#[test]
fn a_paused_node_is_not_dead_when_it_wakes_up() {
    let node = Start::node().flags("--heartbeat-limit 200ms --workers 2").start();
    node.pause();
    std::thread::sleep(Duration::from_millis(600));
    node.resume();
    let (statuses, _) = storm(&node, "/live", 1);
    assert_eq!(statuses, [200]);
    let start = Instant::now();
    becomes(&node, "/ready", 200);
    assert!(start.elapsed() < SEEN + SLACK);
}
