//! The circuit breaker as a user meets it: who is ejected, who is asked instead, what is told of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{Node, Start, Upstream, at_once, eventually, following, following_with, timed};

fn failing(status: u16) -> Upstream {
    Upstream::answering(move |peer, _| peer.send(format!("HTTP/1.1 {status} x\r\ncontent-length: 0\r\n\r\n")))
}

fn breaker(more: Value) -> Value {
    let mut rules = json!({
        "consecutiveGatewayErrors": 2, "consecutive5xxErrors": 0, "maxEjectionPercent": 100, "updateMergeWindow": "0s",
    });
    for (name, value) in more.as_object().expect("an object") {
        rules[name] = value.clone();
    }
    json!({"outlierDetection": rules})
}

fn state(node: &Node, number: usize) -> String {
    node.downstream()["endpoints"][number]["state"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn a_failing_replica_is_ejected_and_the_other_one_gets_everything() {
    let (bad, good) = (failing(503), Upstream::leaf());
    let node = following(&format!("{},{}", bad.uri(), good.uri()), breaker(json!({})));
    let statuses: Vec<u16> = (0..20).map(|_| node.get("/").status).collect();
    assert_eq!(statuses.iter().filter(|status| **status == 503).count(), 2, "{statuses:?}");
    assert_eq!((bad.requests().len(), good.requests().len()), (2, 18));
    let endpoint = &node.downstream()["endpoints"][0];
    assert_eq!((&endpoint["state"], &endpoint["cause"]), (&json!("ejected"), &json!("CONSECUTIVE_GATEWAY_FAILURE")));
    assert!(endpoint["returnsInMs"].as_u64().is_some_and(|left| (20_000..=30_000).contains(&left)), "{endpoint}");
    // Connections that wait to it are closed.
    bad.until_nobody_is_there();
    let event = node.downstream()["events"][0].clone();
    assert_eq!(
        (&event["action"], &event["enforced"], &event["numEjections"]),
        (&json!("eject"), &json!(true), &json!(1))
    );
    assert!(node.log.until("outlier detection").contains("CONSECUTIVE_GATEWAY_FAILURE"));
    assert_eq!(node.metric(&["ejections_enforced_total", "consecutive_gateway_failure"]), 1.0);
    assert_eq!(node.metric(&["ejections_active"]), 1.0);
}

#[test]
fn where_all_are_ejected_the_answer_comes_at_once_and_the_node_stays_ready() {
    let bad = failing(502);
    let node = following(&bad.uri(), breaker(json!({})));
    assert_eq!((node.get("/").status, node.get("/").status), (502, 502));
    let (answer, took) = timed(|| node.get("/"));
    assert_eq!((answer.status, answer.reason().as_str()), (503, "no_healthy"));
    assert_eq!(answer.header("x-resilience-flag"), Some("UH"));
    assert_eq!(answer.header("x-envoy-overloaded"), None);
    assert!(took < Duration::from_secs(1), "{took:?}");
    assert_eq!(bad.requests().len(), 2);
    // resilience4j#607: an open breaker is no reason to take this node out, too.
    let ready = node.get("/ready");
    assert_eq!(ready.status, 200);
    let check = ready.json()["checks"]
        .as_array()
        .and_then(|checks| checks.iter().find(|check| check["name"] == "breaker").cloned());
    assert_eq!(check.expect("a breaker")["data"]["breaker"], "open");
}

#[test]
fn an_ejected_replica_comes_back_at_the_look_after_its_time() {
    let healthy = Arc::new(AtomicUsize::new(0));
    let switch = Arc::clone(&healthy);
    let upstream = Upstream::answering(move |peer, _| match switch.load(SeqCst) {
        0 => peer.send("HTTP/1.1 503 x\r\ncontent-length: 0\r\n\r\n"),
        _ => peer.json("{}"),
    });
    let node = following(&upstream.uri(), breaker(json!({"interval": "100ms", "baseEjectionTime": "250ms"})));
    node.get("/");
    node.get("/");
    assert_eq!(state(&node, 0), "ejected");
    healthy.store(1, SeqCst);
    eventually("it comes back", || state(&node, 0) == "returned");
    assert_eq!(node.get("/").status, 200);
    let events = node.downstream()["events"].clone();
    assert_eq!(events[1]["action"], "uneject");
    let out = events[1]["durationMs"].as_u64().expect("a time");
    assert!(out >= 250, "{out}");
}

#[test]
fn in_a_panic_all_are_used_rather_than_none() {
    let (one, other) = (failing(502), failing(502));
    let uri = format!("{},{}", one.uri(), other.uri());
    let node = following(&uri, breaker(json!({"minHealthPercent": 50})));
    let statuses: Vec<u16> = (0..12).map(|_| node.get("/").status).collect();
    assert_eq!(statuses, [502; 12]);
    assert!(one.requests().len() > 3 && other.requests().len() > 3);
}

#[test]
fn istios_default_share_of_two_is_nobody_and_the_log_says_so() {
    let (bad, good) = (failing(502), Upstream::leaf());
    let uri = format!("{},{}", bad.uri(), good.uri());
    let node = following(&uri, breaker(json!({"maxEjectionPercent": 10})));
    node.log.until("maxEjectionPercent 10 of 2 endpoint(s) is less than one");
    for _ in 0..10 {
        node.get("/");
    }
    assert_eq!((state(&node, 0).as_str(), bad.requests().len()), ("healthy", 5));
    assert_eq!(node.downstream()["ejectionsRefused"], 2);
}

#[test]
fn a_caller_that_leaves_is_no_failure_and_no_success() {
    let upstream = Upstream::answering(|peer, request| match request.target.as_str() {
        "/?hang" => peer.until_gone(),
        _ => peer.send("HTTP/1.1 502 x\r\ncontent-length: 0\r\n\r\n"),
    });
    let node = following(&upstream.uri(), breaker(json!({"consecutiveGatewayErrors": 3})));
    node.get("/");
    node.get("/");
    let mut leaving = node.connect();
    leaving.send("GET /?hang HTTP/1.1\r\nhost: x\r\n\r\n");
    upstream.until_request(3);
    drop(leaving);
    eventually("it has left", || node.metric(&["downstream_calls_total", "cancelled"]) == 1.0);
    assert_eq!(state(&node, 0), "healthy");
    node.get("/");
    assert_eq!(state(&node, 0), "ejected");
}

#[test]
fn an_answer_that_breaks_off_is_a_failure() {
    let upstream = Upstream::answering(|peer, _| {
        peer.send("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{");
        peer.close();
    });
    let node = following(&upstream.uri(), breaker(json!({})));
    assert_eq!((node.get("/").reason().as_str(), node.get("/").reason().as_str()), ("truncated", "truncated"));
    assert_eq!(node.get("/").reason(), "no_healthy");
}

#[test]
fn only_one_caller_of_many_is_the_probe() {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let upstream = Upstream::answering(move |peer, _| match count.fetch_add(1, SeqCst) {
        0 | 1 => peer.send("HTTP/1.1 503 x\r\ncontent-length: 0\r\n\r\n"),
        _ => {
            thread::sleep(Duration::from_millis(200));
            peer.json("{}");
        }
    });
    let rules = json!({"probe": 1, "baseEjectionTime": "100ms", "interval": "1h"});
    let node = following(&upstream.uri(), breaker(rules));
    node.get("/");
    node.get("/");
    assert_eq!(state(&node, 0), "ejected");
    eventually("its time is up", || node.downstream()["endpoints"][0]["returnsInMs"] == 0);
    let answers = at_once(&node, 50);
    assert_eq!(answers.iter().filter(|answer| answer.status == 200).count(), 1);
    assert_eq!(asked.load(SeqCst), 3);
    assert_eq!((state(&node, 0).as_str(), node.get("/").status), ("returned", 200));
}

#[test]
fn an_operator_ejects_and_returns_and_is_told_what_makes_no_sense() {
    let (one, other) = (Upstream::leaf(), Upstream::leaf());
    let node = following_with(Start::calling(format!("{},{}", one.uri(), other.uri())), json!({}));
    let order = |endpoint: &str, action: &str| {
        node.send("POST", "/downstream", &json!({"endpoint": endpoint, "action": action}).to_string())
    };
    let address = one.address.to_string();
    assert_eq!(order(&address, "eject").status, 200);
    for _ in 0..6 {
        assert_eq!(node.get("/").status, 200);
    }
    assert_eq!((one.requests().len(), other.requests().len()), (0, 6));
    for (endpoint, action, status, part) in [
        (address.as_str(), "eject", 409, "is ejected already"),
        ("127.0.0.1:1", "eject", 404, "127.0.0.1:1 is no endpoint of this node"),
        (&address, "explode", 400, "explode"),
        ("here", "eject", 400, "endpoint"),
    ] {
        let refused = order(endpoint, action);
        assert_eq!(refused.status, status, "{}", refused.text());
        assert!(refused.text().contains(part), "{} lacks {part:?}", refused.text());
    }
    assert_eq!(order(&address, "return").status, 200);
    assert_eq!(order(&address, "return").status, 409);
    for _ in 0..6 {
        node.get("/");
    }
    assert_eq!(one.requests().len(), 3);
}

#[test]
fn a_policy_that_makes_no_sense_changes_nothing_and_is_named() {
    let node = following("http://127.0.0.1:9", json!({"timeout": "3s"}));
    let before = node.get("/policy").json();
    for (policy, parts) in [
        ("[]", &["JSON object"][..]),
        ("{\"timeout\":\"soon\"}", &["timeout", "soon"]),
        ("{\"timeot\":\"1s\"}", &["timeot"]),
        ("{\"connectionPool\":{\"tcp\":{\"maxConnections\":-1}}}", &["connectionPool.tcp.maxConnections", "-1"]),
        ("{\"outlierDetection\":{\"interval\":\"0s\"}}", &["outlierDetection.interval", "0s", "1ms"]),
        ("{\"outlierDetection\":{\"maxEjectionPercent\":101}}", &["maxEjectionPercent", "101", "100"]),
        ("{\"retries\":{\"attempts\":1,\"retryOn\":\"sometimes\"}}", &["retryOn", "sometimes", "gateway-error"]),
        ("{\"loadBalancer\":{\"simple\":\"LUCK\"}}", &["loadBalancer", "LUCK"]),
        ("{\"pool\":{\"rule\":\"old\"}}", &["pool.rule", "old"]),
    ] {
        let refused = node.send("PUT", "/policy", policy);
        assert_eq!(refused.status, 400, "{policy}");
        let error = refused.json()["error"].as_str().unwrap_or_default().to_owned();
        assert!(parts.iter().all(|part| error.contains(part)) && !error.contains('\n'), "{policy}: {error}");
    }
    assert_eq!(node.get("/policy").json(), before);
    assert_eq!(node.get("/config").json()["policy"], before);
}
