//! The table of the contract: every path, in the three states of the article and while the node stops.

use rustix::process::Signal;

use super::{becomes, status};
use crate::support::{Node, Start};

/// Path, and its status while starting, healthy, and with the database down.
const TABLE: [(&str, [u16; 3]); 19] = [
    ("/live", [200, 200, 200]),
    ("/livez", [200, 200, 200]),
    ("/health/live", [200, 200, 200]),
    ("/song", [200, 200, 200]),
    ("/ready", [503, 200, 503]),
    ("/readyz", [503, 200, 503]),
    ("/health/ready", [503, 200, 503]),
    ("/san-sang", [503, 200, 503]),
    ("/startup", [503, 200, 200]),
    ("/startupz", [503, 200, 200]),
    ("/health/started", [503, 200, 200]),
    ("/wrong/live", [200, 200, 503]),
    ("/gop-sai", [200, 200, 503]),
    ("/wrong/shallow", [200, 200, 200]),
    ("/wrong/no-timeout", [200, 200, 503]),
    ("/work", [200, 200, 200]),
    ("/viec", [200, 200, 200]),
    ("/data", [503, 200, 503]),
    ("/", [200, 200, 200]),
];

#[track_caller]
fn column(node: &Node, state: usize) {
    for (path, statuses) in TABLE {
        let expected = statuses[state];
        let mut connection = node.connect();
        assert_eq!(connection.get(path).status, expected, "GET {path} in state {state}");
        assert_eq!(connection.request("HEAD", path, &[]).status, expected, "HEAD {path} in state {state}");
        if path != "/" {
            assert_eq!(connection.get(&format!("{path}/")).status, expected, "GET {path}/ in state {state}");
        }
    }
}

#[test]
fn every_path_answers_as_the_table_says_in_all_three_states() {
    let node = Start::node().flags("--startup-delay 1h").start();
    column(&node, 0);
    assert_eq!(node.get("/startup?done=true").text(), r#"{"done":true}"#);
    column(&node, 1);
    assert_eq!(node.get("/dat?csdl=false").status, 200);
    column(&node, 2);
    assert_eq!(node.get("/db?up=true").status, 200);
    column(&node, 1);
}

#[test]
fn while_it_starts_the_body_says_what_is_missing() {
    let node = Start::node().flags("--startup-delay 1h").start();
    assert_eq!(
        node.get("/san-sang").text(),
        concat!(
            r#"{"status":"DOWN","checks":[{"id":"csdl","status":"UP"},"#,
            r#"{"id":"da-nap-xong","status":"DOWN","data":{"loi":"the node is still loading"}}],"outcome":"DOWN"}"#
        )
    );
}

#[test]
fn the_startup_delay_ends_by_itself() {
    let node = Start::node().flags("--startup-delay 300ms").start();
    becomes(&node, "/startup", 200);
    becomes(&node, "/ready", 200);
}

#[test]
fn loading_is_ended_and_begun_again_by_every_method_that_the_contract_names() {
    let node = Node::leaf();
    for (method, path, body, expected) in [
        ("GET", "/startup?done=false", "", 503),
        ("PUT", "/startup", r#"{"done":true}"#, 200),
        ("POST", "/startup", r#"{"done":false}"#, 503),
        ("POST", "/startupz?done=true", "", 200),
        ("GET", "/health/started?done=false", "", 503),
        ("GET", "/startup?done=true", "", 200),
    ] {
        assert_eq!(node.send(method, path, body).status, 200, "{method} {path} {body}");
        assert_eq!(status(&node, "/startup"), expected, "after {method} {path} {body}");
        assert_eq!(status(&node, "/ready"), expected);
        assert_eq!(status(&node, "/live"), 200);
    }
    for (method, path, body, part) in [
        ("GET", "/startup?done=yes", "", "done=yes: must be true or false"),
        ("PUT", "/startup", r#"{"done":1}"#, "done=1: must be true or false"),
        ("PUT", "/startup", r#"{"ready":true}"#, "ready"),
        ("PUT", "/startup", "", "done is missing"),
        ("PUT", "/startup", "{", "JSON object"),
    ] {
        let answer = node.send(method, path, body);
        assert_eq!(answer.status, 400, "{method} {path} {body}");
        let error = answer.json()["error"].as_str().expect("a sentence").to_owned();
        assert!(error.contains(part), "{error}");
    }
    assert_eq!(status(&node, "/startup"), 200, "none of it changed anything");
    // A look is not a change.
    assert_eq!(node.connect().request("HEAD", "/startup?done=false", &[]).status, 200);
    assert_eq!(status(&node, "/startup"), 200);
}

#[test]
fn other_methods_are_refused_and_the_allowed_ones_named() {
    let node = Node::leaf();
    for (path, allowed) in [
        ("/live", "GET,HEAD"),
        ("/san-sang", "GET,HEAD"),
        ("/wrong/live", "GET,HEAD"),
        ("/work", "GET,HEAD"),
        ("/db", "GET,HEAD,POST,PUT"),
        ("/startup", "GET,HEAD,POST,PUT"),
    ] {
        let answer = node.connect().request("DELETE", path, &[]);
        assert_eq!(answer.status, 405, "{path}");
        let mut allow: Vec<&str> = answer.header("allow").expect("a list").split(',').map(str::trim).collect();
        allow.retain(|method| *method != "OPTIONS");
        allow.sort_unstable();
        assert_eq!(allow.join(","), allowed, "{path}");
    }
    let options = node.connect().request("OPTIONS", "/db", &[]);
    assert_eq!(options.header("allow"), Some("GET, HEAD, PUT, POST, OPTIONS"));
    assert_eq!(node.send("POST", "/live", "{}").status, 405);
}

#[test]
fn a_node_that_stops_is_alive_and_not_ready() {
    let node = Start::node().flags("--drain-delay 1h").start();
    assert_eq!(status(&node, "/ready"), 200);
    node.signal(Signal::TERM);
    becomes(&node, "/ready", 503);
    assert!(node.get("/ready").text().contains("the node is stopping"));
    let article = node.get("/san-sang").text().to_owned();
    assert!(article.contains(r#"{"id":"khong-dang-dung","status":"DOWN""#), "{article}");
    for path in ["/live", "/song", "/startup", "/work", "/data", "/"] {
        assert_eq!(status(&node, path), 200, "{path}");
    }
}

#[test]
fn a_probe_needs_no_host_no_login_and_no_open_connection() {
    let node = Node::leaf();
    for host in ["10.0.0.5:8080", "", "node.example", "[::1]:1"] {
        let mut socket = node.connect();
        socket.send(format!(
            "GET /ready HTTP/1.1\r\nhost: {host}\r\nuser-agent: kube-probe/1.35\r\naccept: */*\r\nconnection: close\r\n\r\n"
        ));
        let answer = socket.answer();
        assert_eq!(answer.status, 200, "host {host:?}");
        assert_eq!(answer.header("connection"), Some("close"));
        assert_eq!(socket.until_closed(), b"");
    }
    let mut old = node.connect();
    old.send("GET /live HTTP/1.0\r\n\r\n");
    assert_eq!(old.answer().status, 200);
}
