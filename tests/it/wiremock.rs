//! Held against a real WireMock: the same mappings and the same requests to both.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{Node, Socket, Start, eventually, free_port, timed};

/// A real WireMock, from its published jar.
struct WireMock {
    child: Child,
    port: u16,
    _directory: tempfile::TempDir,
}

impl WireMock {
    fn start() -> WireMock {
        let jar = std::env::var("TEST_WIREMOCK_JAR").unwrap_or_else(|_| {
            panic!("TEST_WIREMOCK_JAR must name the jar of a real WireMock (org.wiremock:wiremock-standalone)")
        });
        let directory = tempfile::tempdir().expect("a directory");
        let port = free_port();
        let child = Command::new("java")
            .args(["-jar", &jar, "--port", &port.to_string(), "--root-dir"])
            .arg(directory.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("java cannot be started: {error}"));
        let real = WireMock { child, port, _directory: directory };
        eventually("WireMock listens", || Socket::try_connect(("127.0.0.1", real.port)).is_ok());
        real
    }
}

impl Drop for WireMock {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn send(port: u16, method: &str, path: &str, headers: &str, body: &str) -> std::io::Result<crate::support::Answer> {
    let mut socket = Socket::connect(("127.0.0.1", port));
    let length = body.len();
    socket
        .try_send(format!("{method} {path} HTTP/1.1\r\nhost: x\r\n{headers}content-length: {length}\r\n\r\n{body}"))?;
    socket.try_answer()
}

/// What a client sees: status, the headers that matter, the body, and whether it was slow; nothing if there was no
/// answer.
type Seen = Option<(u16, Vec<Option<String>>, String, bool)>;

fn seen(port: u16, method: &str, path: &str, headers: &str, body: &str) -> Seen {
    let (answer, took) = timed(|| send(port, method, path, headers, body));
    let answer = answer.ok()?;
    let matter = ["content-type", "x-own"].map(|name| answer.header(name).map(str::to_owned)).to_vec();
    let text = String::from_utf8_lossy(&answer.body).into_owned();
    Some((answer.status, matter, text, took > Duration::from_millis(250)))
}

#[test]
#[ignore = "needs Java and the jar of a real WireMock, named by TEST_WIREMOCK_JAR"]
fn the_same_mappings_and_requests_give_the_same_answers_as_a_real_wiremock() {
    let real = WireMock::start();
    let ours: Node = Start::node().flags("stub --log-level error").start();
    let ports = [ours.port, real.port];
    let mappings: Vec<Value> = vec![
        json!({"request": {"method": "GET", "urlPathPattern": "/gimme/200*"}, "response": {"status": 200, "fixedDelayMilliseconds": 400, "body": "{\"response\":\"200 after 7s\"}"}}),
        json!({"request": {"method": "GET", "url": "/a?b=c"}, "response": {"status": 201, "body": "a", "headers": {"X-Own": "1", "Content-Type": "text/plain"}}}),
        json!({"request": {"method": "ANY", "urlPath": "/any"}, "response": {"status": 202}}),
        json!({"request": {"method": "GET", "urlPattern": "/w\\?x=[0-9]+"}, "response": {"body": "w"}}),
        json!({"request": {"method": "GET", "urlPath": "/h", "headers": {"A": {"equalTo": "1"}}}, "response": {"body": "h"}}),
        json!({"request": {"method": "GET", "urlPath": "/q", "queryParameters": {"k": {"matches": "v.*"}, "no": {"absent": true}}}, "response": {"body": "q"}}),
        json!({"request": {"method": "POST", "urlPath": "/b", "bodyPatterns": [{"contains": "needle"}]}, "response": {"body": "b"}}),
        json!({"request": {"method": "POST", "urlPath": "/j", "bodyPatterns": [{"equalToJson": {"a": 1}}]}, "response": {"jsonBody": {"x": 1}}}),
        json!({"request": {"method": "GET", "urlPath": "/p"}, "priority": 1, "response": {"body": "first"}}),
        json!({"request": {"method": "GET", "urlPath": "/p"}, "response": {"body": "younger"}}),
        json!({"request": {"method": "GET", "urlPath": "/e"}, "response": {"fault": "EMPTY_RESPONSE"}}),
        json!({"request": {"method": "GET", "urlPath": "/r"}, "response": {"fault": "CONNECTION_RESET_BY_PEER"}}),
        json!({"request": {"method": "GET", "urlPath": "/g"}, "response": {"fault": "RANDOM_DATA_THEN_CLOSE"}}),
        json!({"request": {"method": "GET", "urlPath": "/d"}, "response": {"body": "0123456789", "chunkedDribbleDelay": {"numberOfChunks": 4, "totalDuration": 500}}}),
        json!({"scenarioName": "s", "requiredScenarioState": "Started", "newScenarioState": "two", "request": {"urlPath": "/s"}, "response": {"body": "one"}}),
        json!({"scenarioName": "s", "requiredScenarioState": "two", "request": {"urlPath": "/s"}, "response": {"body": "two"}}),
    ];
    for mapping in &mappings {
        let added = ports
            .map(|port| send(port, "POST", "/__admin/mappings", "", &mapping.to_string()).expect("an answer").status);
        assert_eq!(added, [201; 2], "{mapping}");
    }
    for (method, path, headers, body) in [
        ("GET", "/gimme/200", "", ""),
        ("GET", "/gimme/20", "", ""),
        ("GET", "/a?b=c", "", ""),
        ("PUT", "/any", "", ""),
        ("GET", "/w?x=12", "", ""),
        ("GET", "/h", "A: 1\r\n", ""),
        ("GET", "/q?k=value", "", ""),
        ("POST", "/b", "", "a needle here"),
        ("POST", "/j", "", "{ \"a\" : 1 }"),
        ("GET", "/p", "", ""),
        ("GET", "/e", "", ""),
        ("GET", "/r", "", ""),
        ("GET", "/g", "", ""),
        ("GET", "/d", "", ""),
        ("GET", "/s", "", ""),
        ("GET", "/s", "", ""),
    ] {
        let [ours, real] = ports.map(|port| seen(port, method, path, headers, body));
        println!("{method} {path}: {ours:?}");
        assert_eq!(ours, real, "{method} {path}");
    }
    // What matches nothing: the sentences differ, the status does not.
    for (method, path, headers, body) in [
        ("GET", "/gimme/200/x", "", ""),
        ("GET", "/a", "", ""),
        ("GET", "/w?x=z", "", ""),
        ("GET", "/h", "A: 2\r\n", ""),
        ("GET", "/q?k=value&no=1", "", ""),
        ("POST", "/b", "", "hay"),
    ] {
        let statuses = ports.map(|port| send(port, method, path, headers, body).map(|answer| answer.status).ok());
        assert_eq!(statuses, [Some(404); 2], "{method} {path}");
    }
    // And what is no mapping.
    for wrong in ["{\"respnse\":{}}", "{\"request\":{\"urlPath\":1,\"url\":{}}}", "no json"] {
        let statuses = ports.map(|port| send(port, "POST", "/__admin/mappings", "", wrong).expect("an answer").status);
        assert_eq!(statuses, [422; 2], "{wrong}");
    }
}
