//! What is tried again, where, and how often.

use std::thread;
use std::time::Duration;

use serde_json::json;

use crate::support::{Cascade, Peer, Upstream, at_once, following};

fn failing(status: &'static str) -> Upstream {
    Upstream::answering(move |peer, _| peer.send(format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n")))
}

#[test]
fn with_one_retry_a_dead_replica_costs_nobody_an_answer() {
    // envoy#2259.
    let (bad, good) = (failing("503 x"), Upstream::leaf());
    let retries = json!({"attempts": 1, "retryOn": "gateway-error,reset,connect-failure"});
    let node = following(&format!("{},{}", bad.uri(), good.uri()), json!({"retries": retries}));
    let ok = (0..40).filter(|_| node.get("/").status == 200).count();
    assert_eq!(ok, 40);
    assert_eq!(good.requests().len(), 40);
    let retried = bad.requests().len() as f64;
    assert_eq!(node.metric(&["upstream_rq_retry_total"]), retried);
    assert_eq!(node.metric(&["upstream_rq_retry_success_total"]), retried);
    let second = good.requests().into_iter().find(|request| request.header("x-envoy-attempt-count").is_some());
    assert_eq!(second.expect("a retry").header("x-envoy-attempt-count"), Some("2"));
}

#[test]
fn each_condition_covers_what_it_covers_at_a_real_envoy() {
    type Script = fn(&mut Peer);
    let fin: Script = Peer::close;
    let rst: Script = Peer::reset;
    let garbage: Script = |peer| {
        peer.send(b"\xffnonsense\r\n\r\n");
        peer.close();
    };
    fn status<const CODE: u16>(peer: &mut Peer) {
        peer.send(format!("HTTP/1.1 {CODE} x\r\ncontent-length: 0\r\n\r\n"));
    }
    let limited: Script = |peer| peer.send("HTTP/1.1 503 x\r\nx-envoy-ratelimited: true\r\ncontent-length: 0\r\n\r\n");
    for (what, script, retried_by) in [
        ("FIN", fin, &["gateway-error", "reset", "5xx"][..]),
        ("RST", rst, &["gateway-error", "reset", "5xx"]),
        ("garbage", garbage, &["gateway-error", "reset", "5xx"]),
        ("500", status::<500>, &["5xx"]),
        ("503", status::<503>, &["gateway-error", "5xx", "503"]),
        ("409", status::<409>, &["retriable-4xx"]),
        ("429", status::<429>, &[]),
        ("503 with x-envoy-ratelimited", limited, &["envoy-ratelimited"]),
    ] {
        let upstream = Upstream::answering(move |peer, _| script(peer));
        let node = following(&upstream.uri(), json!({}));
        for condition in
            ["gateway-error", "reset", "5xx", "connect-failure", "retriable-4xx", "503", "envoy-ratelimited"]
        {
            let policy = json!({"retries": {"attempts": 1, "retryOn": condition}});
            assert_eq!(node.send("PUT", "/policy", &policy.to_string()).status, 200);
            let before = upstream.requests().len();
            let answer = node.get("/");
            let tries = upstream.requests().len() - before;
            let expected = if retried_by.contains(&condition) { 2 } else { 1 };
            assert_eq!(tries, expected, "{what} with retryOn {condition}");
            let flags = answer.header("x-resilience-flag").unwrap_or_default();
            assert_eq!(flags.starts_with("URX"), expected == 2, "{what} with retryOn {condition}: {flags}");
        }
    }
}

#[test]
fn a_refused_connection_is_covered_by_all_that_speak_of_connections() {
    let gone = Upstream::leaf();
    let uri = gone.uri();
    drop(gone);
    let node = following(&uri, json!({}));
    for (number, condition) in ["gateway-error", "reset", "connect-failure", "5xx"].into_iter().enumerate() {
        let policy = json!({"retries": {"attempts": 1, "retryOn": condition}});
        node.send("PUT", "/policy", &policy.to_string());
        assert_eq!(node.get("/").header("x-resilience-flag"), Some("URX,UF"), "{condition}");
        assert_eq!(node.metric(&["upstream_rq_retry_total"]), number as f64 + 1.0);
    }
}

#[test]
fn an_attempt_has_a_time_of_its_own_and_the_call_another() {
    let upstream = Upstream::answering(|peer, _| peer.until_gone());
    let retries = |attempts, per_try| json!({"attempts": attempts, "perTryTimeout": per_try, "retryOn": "reset"});
    for (timeout, attempts, per_try, tries, flags) in [
        ("5s", 1, "100ms", 2..=2, "URX,UT"),
        ("5s", 0, "100ms", 1..=1, "UT"),
        // Without effect where it is not the shorter one.
        ("200ms", 3, "1s", 1..=1, "UT"),
        // The pauses are drawn.
        ("350ms", 9, "100ms", 2..=4, "UT"),
    ] {
        let node = following(&upstream.uri(), json!({"timeout": timeout, "retries": retries(attempts, per_try)}));
        let before = upstream.requests().len();
        let answer = node.get("/");
        assert_eq!((answer.status, answer.header("x-resilience-flag")), (504, Some(flags)), "{timeout} {per_try}");
        let tried = upstream.requests().len() - before;
        assert!(tries.contains(&tried), "{timeout} {per_try}: {tried} tries");
        let told = upstream
            .requests()
            .pop()
            .and_then(|request| request.header("x-envoy-expected-rq-timeout-ms").and_then(|ms| ms.parse::<u64>().ok()));
        assert!(told.is_some_and(|ms| ms <= if per_try == "100ms" { 100 } else { 200 }), "{told:?}");
    }
}

#[test]
fn no_more_retries_are_under_way_than_allowed() {
    let upstream = Upstream::answering(|peer, _| {
        thread::sleep(Duration::from_millis(100));
        peer.send("HTTP/1.1 503 x\r\ncontent-length: 0\r\n\r\n");
    });
    let retries = json!({"attempts": 1, "retryOn": "5xx"});
    for (limit, least, most) in [
        (json!({"connectionPool": {"http": {"maxRetries": 1}}}), 1, 2),
        (json!({"retryBudget": {"percent": 20, "minRetryConcurrency": 3}}), 3, 5),
        (json!({"retryBudget": {"percent": 0, "minRetryConcurrency": 0}}), 0, 0),
    ] {
        let mut policy = limit.clone();
        policy["retries"] = retries.clone();
        let node = following(&upstream.uri(), policy);
        let answers = at_once(&node, 10);
        assert!(answers.iter().all(|answer| answer.status == 503));
        let retried = node.metric(&["upstream_rq_retry_total"]) as usize;
        assert!((least..=most).contains(&retried), "{limit}: {retried} retries");
        assert_eq!(node.metric(&["upstream_rq_retry_overflow_total"]), (10 - retried) as f64, "{limit}");
    }
}

#[test]
fn our_own_overflow_is_never_tried_again() {
    let upstream = Upstream::answering(|peer, _| {
        thread::sleep(Duration::from_millis(200));
        peer.json("{}");
    });
    let node = following(
        &upstream.uri(),
        json!({
            "connectionPool": {"http": {"http2MaxRequests": 1}},
            "retries": {"attempts": 3, "retryOn": "gateway-error,reset,connect-failure,5xx,503"},
        }),
    );
    let answers = at_once(&node, 3);
    assert_eq!(answers.iter().filter(|answer| answer.status == 200).count(), 1);
    assert_eq!(node.metric(&["upstream_rq_retry_total"]), 0.0);
}

#[test]
fn a_retry_never_goes_to_an_endpoint_that_was_ejected_meanwhile() {
    // envoy#31453: the other one is ejected already, and this one is by the first try.
    let (one, other) = (failing("503 x"), failing("503 x"));
    let node = following(
        &format!("{},{}", one.uri(), other.uri()),
        json!({
            "retries": {"attempts": 1, "retryOn": "5xx"},
            "outlierDetection": {
                "consecutiveGatewayErrors": 1, "maxEjectionPercent": 100, "updateMergeWindow": "0s",
            },
        }),
    );
    node.get("/");
    assert_eq!(node.get("/").reason(), "no_healthy");
    assert_eq!((one.requests().len(), other.requests().len()), (1, 1));
}

#[test]
fn retries_at_every_hop_multiply() {
    // envoy#24937: four hops with one retry each make 2^4 calls of one.
    let leaf = failing("503 x");
    let policy = tempfile::NamedTempFile::new().expect("a file");
    let text = "http:\n- retries:\n    attempts: 1\n    retryOn: 5xx\n  timeout: 20s\n";
    std::fs::write(policy.path(), text).expect("written");
    let cascade =
        Cascade::ending_at(&leaf.uri(), 4, |start| start.flags("--on-failure propagate --policy").arg(policy.path()));
    assert_eq!(cascade.get("/").status, 503);
    assert_eq!(leaf.requests().len(), 16);
}
