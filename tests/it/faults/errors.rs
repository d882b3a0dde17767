//! Injected errors: the status that was asked for, as often as was asked for, in the usual body.

use super::node::Node;

#[test]
fn an_injected_error_is_the_usual_body_and_names_this_node_as_the_one_that_fails() {
    let node = Node::with(r#"{"error_rate":1,"status":500}"#);
    let answer = node.get("/");
    assert_eq!(answer.status, 500);
    assert!(answer.body.starts_with(r#"{"host":"node","port":"#), "{}", answer.body);
    assert!(answer.body.ends_with(r#","responseInfo":null,"msg":"fault: this node fails on request"}"#));
    assert_eq!(answer.header("cascade-status"), Some("partial"));
    assert_eq!(answer.header("cascade-reason"), Some("fault; hop=1"));
    assert_eq!(answer.header("content-type"), Some("application/json"));

    let seen = node.front().get("/");
    assert_eq!(seen.status, 200);
    assert!(seen.msg().starts_with("bad_status: ") && seen.msg().contains("500"), "{}", seen.msg());
    assert_eq!(seen.header("cascade-reason"), Some("fault; hop=2"));
}

#[test]
fn every_status_with_a_body_can_be_asked_for_and_503_needs_no_asking() {
    let node = Node::start(&[]);
    for status in [200, 203, 301, 404, 429, 500, 503, 599] {
        node.put(&format!(r#"{{"fail_next":1,"status":{status}}}"#));
        assert_eq!(node.get("/").status, status);
    }
    node.put(r#"{"fail_next":1}"#);
    assert_eq!(node.get("/").status, 503);
}

#[test]
fn as_many_requests_fail_as_were_asked_for() {
    let node = Node::start(&[]);
    let statuses = |count| {
        let mut socket = node.connect();
        (0..count).map(|_| socket.ask("GET", "/", "").status).collect::<Vec<_>>()
    };
    node.put(r#"{"fail_next":2,"status":502}"#);
    assert_eq!(statuses(4), [502, 502, 200, 200]);
    node.put(r#"{"every_nth":3}"#);
    assert_eq!(statuses(6), [200, 200, 503, 200, 200, 503]);
    node.put(r#"{"error_rate":1}"#);
    assert_eq!(statuses(3), [503, 503, 503]);
}

#[test]
fn a_rate_is_met_and_requested_and_observed_figures_agree() {
    const REQUESTS: u64 = 2000;
    let node = Node::with(r#"{"error_rate":0.3,"seed":7}"#);
    let mut socket = node.connect();
    let failed = (0..REQUESTS).filter(|_| socket.ask("GET", "/", "").status == 503).count() as u64;
    let (expected, sigma) = (0.3 * REQUESTS as f64, (REQUESTS as f64 * 0.3 * 0.7).sqrt());
    assert!((failed as f64 - expected).abs() <= 3.0 * sigma, "{failed} of {REQUESTS}");

    let report = node.faults();
    assert_eq!(report["seed"], 7);
    assert_eq!(report["observed"]["requests"], REQUESTS);
    assert_eq!(report["observed"]["injected"], failed);
    assert_eq!(report["observed"]["failed"]["503"], failed);
    assert_eq!(report["requested"]["failed"], failed);
    assert_eq!(report["requested"]["error_rate"]["requested"], 0.3);
    assert_eq!(report["requested"]["error_rate"]["of"], REQUESTS);
    let observed = report["requested"]["error_rate"]["observed"].as_f64().expect("a rate");
    assert!((observed - failed as f64 / REQUESTS as f64).abs() < 1e-9, "{observed}");
}

#[test]
fn after_one_request_the_figures_show_that_the_fault_is_on() {
    let node = Node::start(&[]);
    assert_eq!(node.faults()["enabled"], false);
    let put = node.put(r#"{"error_rate":1,"status":500}"#);
    assert_eq!(
        (&put["enabled"], &put["applies"], &put["observed"]["injected"]),
        (&true.into(), &true.into(), &0.into())
    );
    assert!(put["seed"].is_u64() && put["set_at"].is_string(), "{put}");
    node.get("/");
    let report = node.faults();
    assert_eq!(report["spec"], serde_json::json!({ "error_rate": 1.0, "status": 500 }));
    assert_eq!(report["observed"]["injected"], 1);
    // A successor starts anew.
    assert_eq!(node.put(r#"{"error_rate":1}"#)["observed"]["injected"], 0);
    let cleared = node.clear();
    assert_eq!((&cleared["enabled"], &cleared["spec"]), (&false.into(), &serde_json::Value::Null));
    assert_eq!(node.get("/").status, 200);
}

#[test]
fn faults_that_never_hold_change_no_byte() {
    let node = Node::start(&["--slot", "2"]);
    let answer = |method| {
        let mut socket = node.connect();
        socket.send(&format!(
            "{method} /?q=1 HTTP/1.1\r\nhost: x\r\nx-correlation-id: same\r\nconnection: close\r\n\r\n"
        ));
        let text = String::from_utf8(socket.rest().0).expect("UTF-8");
        // What differs between any two answers.
        let varies = |line: &&str| !line.starts_with("date: ") && !line.starts_with("server-timing: ");
        text.split("\r\n").filter(varies).map(str::to_owned).collect::<Vec<_>>()
    };
    let (plain, head) = (answer("GET"), answer("HEAD"));
    assert!(plain.len() > 5 && head.len() > 5, "{plain:?} {head:?}");
    for faults in [
        "{}",
        r#"{"error_rate":0}"#,
        r#"{"error_rate":0,"status":500,"abort":"reset","abort_rate":0,"fail_next":0,"delay":"0s","close":false}"#,
        r#"{"delay":{"uniform":["0s","0s"]}}"#,
        r#"{"workers":10,"queue":0}"#,
        r#"{"error_rate":1,"only":"another"}"#,
        r#"{"abort":"reset","only":"1"}"#,
    ] {
        node.put(faults);
        assert_eq!(answer("GET"), plain, "{faults}");
        assert_eq!(answer("HEAD"), head, "{faults}");
        assert_eq!(node.observed("injected"), 0, "{faults}");
    }
}

#[test]
fn head_and_the_connection_stay_right() {
    let node = Node::with(r#"{"every_nth":2,"delay":"5ms","dribble":"20ms"}"#);
    let mut socket = node.connect();
    for (method, status) in [("HEAD", 200), ("HEAD", 503), ("GET", 200), ("GET", 503), ("HEAD", 200), ("GET", 503)] {
        let answer = socket.ask(method, "/", "");
        assert_eq!(answer.status, status, "{method}");
        let length = answer.header("content-length").and_then(|length| length.parse::<usize>().ok());
        let body = node_body_length(status, node.port);
        assert_eq!(length, Some(body), "{method} {status}");
        assert_eq!(answer.header("transfer-encoding"), None);
    }
}

/// The length of an answer of a leaf called `node`, whose ids have 36 characters.
fn node_body_length(status: u16, port: u16) -> usize {
    let msg = if status == 503 { "\"fault: this node fails on request\"" } else { "null" };
    let id = "x".repeat(36);
    format!(r#"{{"host":"node","port":{port},"correlationId":"{id}","responseInfo":null,"msg":{msg}}}"#).len()
}

#[test]
fn close_ends_the_connection_after_each_answer() {
    let node = Node::with(r#"{"close":true}"#);
    let mut socket = node.connect();
    let answer = socket.ask("GET", "/", "");
    assert_eq!((answer.status, answer.header("connection")), (200, Some("close")));
    assert_eq!(socket.rest(), (Vec::new(), super::node::End::Closed));
    assert_eq!(node.get("/live").header("connection"), None);
}
