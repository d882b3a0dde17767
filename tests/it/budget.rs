//! How long a call may take, and which hop of a cascade gives up first.

use std::time::Duration;

use crate::support::{BlackHole, Cascade, Start, Upstream, eventually, timed};

const MS: fn(u64) -> Duration = Duration::from_millis;
/// What a busy machine may add to a time limit.
const SLACK: Duration = Duration::from_secs(4);

#[track_caller]
fn assert_about(took: Duration, limit: Duration) {
    assert!(took >= limit - MS(20) && took < limit + SLACK, "{took:?}, the limit is {limit:?}");
}

#[test]
fn the_time_out_covers_head_and_body_however_slowly_they_drip() {
    let head: fn(&mut crate::support::Peer) = |peer| peer.send("HTTP/1.1 200 OK\r\nx-drip: ");
    let body: fn(&mut crate::support::Peer) = |peer| peer.send("HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n");
    let informed: fn(&mut crate::support::Peer) = |peer| peer.send("HTTP/1.1 103 Early\r\n\r\nHTTP/1.1 103 Ea");
    let silent: fn(&mut crate::support::Peer) = |_| {};
    for begin in [head, body, informed, silent] {
        let upstream = Upstream::answering(move |peer, _| {
            begin(peer);
            for _ in 0..1000 {
                std::thread::sleep(MS(100));
                if peer.is_open() && begin as usize != silent as usize {
                    peer.send("1");
                }
            }
        });
        let node = Start::calling(upstream.uri()).flags("--timeout 700ms").start();
        let (answer, took) = timed(|| node.get("/"));
        assert_eq!(answer.reason(), "timeout", "{}", answer.text());
        assert_about(took, MS(700));
    }
}

#[test]
fn the_time_out_covers_the_connect_too() {
    let hole = BlackHole::new();
    let node = Start::calling(hole.uri()).flags("--timeout 400ms --connect-timeout 30s").start();
    let (answer, took) = timed(|| node.get("/"));
    assert_eq!(answer.reason(), "connect_timeout", "{}", answer.text());
    assert_about(took, MS(400));
}

#[test]
fn an_answer_just_within_the_time_out_arrives_whole() {
    let upstream = Upstream::answering(|peer, _| {
        std::thread::sleep(MS(1500));
        peer.json("{\"late\":true}");
    });
    // Nothing else of the node's own may end the request before: not its edge, not its pool.
    let flags = "--timeout 20s --idle-timeout 100ms --header-timeout 100ms --pool-idle-timeout 100ms";
    let node = Start::calling(upstream.uri()).flags(flags).start();
    let mut socket = node.connect();
    let answer = socket.get("/");
    assert!(answer.is_complete(), "{}", answer.text());
    assert_eq!(answer.json()["responseInfo"]["late"], true);
}

#[test]
fn the_callers_budget_shortens_ours_and_gives_the_reason() {
    let upstream = Upstream::answering(|peer, _| peer.until_gone());
    let node = Start::calling(upstream.uri()).flags("--timeout 20s").start();
    let (answer, took) = timed(|| node.get_with("/", &[("x-envoy-expected-rq-timeout-ms", "300")]));
    assert_eq!(answer.reason(), "deadline", "{}", answer.text());
    assert_about(took, MS(300));
    let left = upstream.until_request(1).header("x-envoy-expected-rq-timeout-ms").map(str::to_owned);
    let left: u64 = left.and_then(|left| left.parse().ok()).expect("the next hop's budget");
    assert!(left > 0 && left <= 280, "{left}");
    // A longer one than ours does not lengthen it; nonsense is none.
    let node = Start::calling(upstream.uri()).flags("--timeout 300ms").start();
    for budget in ["60000", "99999999999999999999999", "soon", "-5", ""] {
        let (answer, took) = timed(|| node.get_with("/", &[("x-envoy-expected-rq-timeout-ms", budget)]));
        assert_eq!(answer.reason(), "timeout", "{budget}: {}", answer.text());
        assert_about(took, MS(300));
    }
}

#[test]
fn a_budget_too_small_for_a_call_makes_none() {
    let upstream = Upstream::leaf();
    let node = Start::calling(upstream.uri()).start();
    for budget in ["0", "1", "20"] {
        let answer = node.get_with("/", &[("x-envoy-expected-rq-timeout-ms", budget)]);
        assert_eq!(answer.reason(), "deadline", "{budget}");
    }
    assert_eq!(upstream.requests().len(), 0);
}

#[test]
fn each_hop_gets_less_time_than_its_caller() {
    let upstream = Upstream::leaf();
    let cascade = Cascade::ending_at(&upstream.uri(), 4, |start| start.flags("--timeout 10s"));
    assert!(cascade.get("/").is_complete());
    let left = upstream.until_request(1).header("x-envoy-expected-rq-timeout-ms").map(str::to_owned);
    let left: u64 = left.and_then(|left| left.parse().ok()).expect("a budget");
    // Four times 2 % less, and what the hops took.
    assert!(left > 5_000 && left <= 9_224, "{left}");
}

#[test]
fn a_paused_node_is_named_by_its_neighbour_and_everyone_above_answers_in_time() {
    let mut cascade = Cascade::with(5, |start| start.flags("--timeout 3s"));
    assert!(cascade.get("/").is_complete());
    for (number, place) in [(5, "deadline; hop=5"), (3, "deadline; hop=3"), (2, "timeout; hop=2")] {
        cascade.node(number).pause();
        // Between one hop's limit and the next are 60 ms; a machine that stands still longer than that gets another try.
        let named = (0..3).any(|_| {
            let (answer, took) = timed(|| cascade.get("/"));
            assert_eq!((answer.status, answer.header("cascade-status")), (200, Some("partial")));
            assert_about(took, MS(2700));
            if answer.header("cascade-reason") != Some(place) {
                return false;
            }
            assert_eq!(answer.header("cascade-depth"), Some((number - 1).to_string().as_str()));
            // The neighbour gave up first: everyone above it still had the time to nest its answer.
            let mut level = answer.json();
            for _ in 2..number {
                assert!(level["msg"].is_null(), "{}", answer.text());
                level = level["responseInfo"].take();
            }
            let target = cascade.node(number).uri();
            let msg = match place.split(';').next() {
                Some("timeout") => format!("timeout: {target} did not answer within 3s"),
                _ => format!("deadline: {target} did not answer before its caller's time was up"),
            };
            assert_eq!(level["msg"], msg);
            true
        });
        assert!(named, "node {number} was not named by its neighbour in three tries");
        cascade.node(number).resume();
        eventually("the cascade is whole again", || cascade.get("/").is_complete());
    }
}
