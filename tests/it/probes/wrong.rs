//! The wrong ways do the harm that they are there for, say so, and harm nothing else.

use super::{check, status};
use crate::support::{Node, Start, Upstream, eventually};

#[test]
fn every_wrong_answer_is_labelled_in_header_and_body() {
    let node = Node::leaf();
    for path in
        ["/wrong/live", "/gop-sai", "/wrong/blocking", "/chan", "/wrong/no-timeout", "/wrong/shallow", "/wrong/leaky"]
    {
        let answer = node.get(path);
        assert_eq!(answer.status, 200, "{path}");
        let why = answer.header("x-rest-cascade-wrong").expect("a label").to_owned();
        assert!(!why.is_empty());
        assert_eq!(answer.json()["wrong"], why, "{path}");
        assert_eq!(answer.header("cache-control"), Some("no-store"));
    }
    for path in ["/live", "/ready", "/startup", "/song", "/san-sang", "/work", "/data"] {
        let answer = node.get(path);
        assert_eq!(answer.header("x-rest-cascade-wrong"), None, "{path}");
        assert!(!answer.text().contains("\"wrong\""), "{path}");
    }
}

#[test]
fn a_dependency_in_liveness_is_the_time_bomb() {
    let node = Node::leaf();
    node.get("/dat?csdl=false");
    assert_eq!((status(&node, "/live"), status(&node, "/wrong/live")), (200, 503));
    assert_eq!((status(&node, "/song"), status(&node, "/gop-sai")), (200, 503));
}

#[test]
fn a_check_without_a_time_out_hangs_as_long_as_the_database_does() {
    let node = Start::node().flags("--workers 1").start();
    node.get("/db?mode=hang");
    let mut hanging = node.connect();
    hanging.send("GET /wrong/no-timeout HTTP/1.1\r\nhost: node\r\n\r\n");
    // Longer than any time-out of the right check.
    std::thread::sleep(std::time::Duration::from_millis(1500));
    assert!(hanging.is_silent());
    assert_eq!(status(&node, "/live"), 200);
    assert_eq!(status(&node, "/ready"), 503);
    node.get("/db?mode=up");
    assert_eq!(hanging.answer().status, 200);
}

#[test]
fn a_shallow_check_says_yes_to_everything() {
    let node = Start::node().flags("--check db=sim:down --startup-delay 1h").start();
    assert_eq!(status(&node, "/ready"), 503);
    assert_eq!(status(&node, "/wrong/shallow"), 200);
}

#[test]
fn a_leaky_check_leaks_up_to_its_limit_and_the_right_one_stays_as_it_is() {
    let database = Upstream::accepting(|peer| peer.until_gone());
    let node = Start::node().flags("--check").arg(format!("db=tcp://{}", database.address)).start();
    for probe in 1..=256 {
        let answer = node.get("/wrong/leaky");
        assert_eq!(answer.status, 200, "{probe}: {}", answer.text());
        assert_eq!(answer.header("x-rest-cascade-leaked"), Some(probe.to_string().as_str()));
    }
    eventually("they stay open", || database.open() >= 256);
    for _ in 0..3 {
        let answer = node.get("/wrong/leaky");
        assert_eq!(answer.status, 503);
        let error = check(&answer, "db")["data"]["error"].as_str().expect("a sentence").to_owned();
        assert!(error.starts_with("256 connections have leaked"), "{error}");
    }
    assert!(database.open() <= 258, "{}", database.open());
    assert_eq!(status(&node, "/ready"), 200);
    assert_eq!(status(&node, "/live"), 200);
}

#[test]
fn blocking_takes_no_longer_than_it_may() {
    let node = Node::leaf();
    let answer = node.get("/wrong/blocking?ms=60001");
    assert_eq!(answer.status, 400);
    assert_eq!(answer.json()["error"], "ms=60001: must be a whole number from 0 to 60000");
    let chan = node.get("/chan?ms=1").json();
    assert_eq!(chan["checks"][0]["id"], "csdl-chan");
}
