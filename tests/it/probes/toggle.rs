//! The switch of the simulated database, and what the probes make of its modes.

use super::{becomes, check, status};
use crate::support::{Node, Start};

#[test]
fn a_change_is_seen_by_the_very_next_probe() {
    for flags in ["", "--check-mode on-demand", "--check-interval 1h"] {
        let node = Start::node().flags(flags).start();
        for (path, expected) in [
            ("/dat?csdl=false", 503),
            ("/dat?csdl=true", 200),
            ("/db?up=false", 503),
            ("/db?mode=up", 200),
            ("/db?mode=down", 503),
            ("/db?mode=slow&ms=1", 200),
            ("/db?mode=flaky&p=1", 503),
            ("/db?mode=flaky&p=0", 200),
        ] {
            assert_eq!(status(&node, path), 200, "{path}");
            assert_eq!(status(&node, "/ready"), expected, "after {path} with {flags:?}");
            assert_eq!(status(&node, "/live"), 200);
        }
    }
}

#[test]
fn every_mode_is_shown_as_it_can_be_set() {
    let node = Node::leaf();
    assert_eq!(node.get("/db").text(), r#"{"mode":"up"}"#);
    for json in
        [r#"{"mode":"down"}"#, r#"{"mode":"hang"}"#, r#"{"mode":"slow","ms":200}"#, r#"{"mode":"flaky","p":0.25}"#]
    {
        for method in ["PUT", "POST"] {
            let answer = node.send(method, "/db", json);
            assert_eq!((answer.status, answer.text()), (200, json));
            let shown = node.get("/dat");
            assert_eq!((shown.status, shown.text()), (200, json));
            assert_eq!(shown.header("cache-control"), Some("no-store"));
        }
    }
    assert_eq!(node.send("PUT", "/db", r#"{"up":true}"#).text(), r#"{"mode":"up"}"#);
    // A look is not a change, whatever it looks at.
    assert_eq!(node.connect().request("HEAD", "/db?up=false", &[]).status, 200);
    assert_eq!(node.get("/db").text(), r#"{"mode":"up"}"#);
}

#[test]
fn wrong_values_are_refused_with_value_and_limit_and_change_nothing() {
    let node = Node::leaf();
    for (method, path, body, part) in [
        ("GET", "/db?up=maybe", "", "up=maybe: must be true or false"),
        ("GET", "/dat?csdl=0", "", "must be true or false"),
        ("GET", "/db?upp=false", "", "\"upp\" is not known"),
        ("GET", "/db?mode=dead", "", "mode=dead: must be up, down, hang, slow or flaky"),
        ("GET", "/db?mode=slow", "", "needs ms, from 0 to 60000"),
        ("GET", "/db?mode=slow&ms=60001", "", "ms=60001: must be a whole number from 0 to 60000"),
        ("GET", "/db?mode=slow&ms=-1", "", "ms=-1"),
        ("GET", "/db?mode=flaky&p=2", "", "p=2: must be a number from 0 to 1"),
        ("GET", "/db?mode=down&ms=5", "", "ms belongs to mode=slow"),
        ("GET", "/db?up=false&up=true", "", "twice"),
        ("PUT", "/db", r#"{"mode":"slow","ms":1e9}"#, "from 0 to 60000"),
        ("PUT", "/db", r#"{"mode":"slow","ms":-5}"#, "ms=-5"),
        ("PUT", "/db", r#"{"mode":["down"]}"#, "mode: must be"),
        ("PUT", "/db", r#"{"down":true}"#, "\"down\" is not known"),
        ("POST", "/db", "up=false", "JSON object"),
        ("POST", "/db", "", "up or mode is missing"),
        ("PUT", "/db?up=false", r#"{"up":false}"#, "not both"),
    ] {
        let answer = node.send(method, path, body);
        assert_eq!(answer.status, 400, "{method} {path} {body}: {}", answer.text());
        let error = answer.json()["error"].as_str().expect("a sentence").to_owned();
        assert!(error.contains(part), "{method} {path} {body}: {error}");
    }
    assert_eq!(node.get("/db").text(), r#"{"mode":"up"}"#);
    assert_eq!(status(&node, "/ready"), 200);
    let flood = "x".repeat(3 << 20);
    let mut socket = node.connect();
    let _ = socket.try_send(format!("PUT /db HTTP/1.1\r\nhost: n\r\ncontent-length: {}\r\n\r\n{flood}", flood.len()));
    assert!(socket.try_answer().map_or(true, |answer| answer.status == 413));
    assert_eq!(status(&node, "/ready"), 200);
}

#[test]
fn the_mode_at_start_is_the_one_of_the_check() {
    for (check, expected) in [("db=sim:", 200), ("db=sim:down", 503), ("db=sim:slow?ms=1", 200), ("db=sim:hang", 503)] {
        let node = Start::node().env("REST_CASCADE_CHECK", check).start();
        assert_eq!(status(&node, "/ready"), expected, "{check}");
        assert_eq!(status(&node, "/live"), 200);
    }
}

#[test]
fn a_slow_database_is_up_below_the_time_out_and_down_above_it() {
    let node = Start::node().flags("--check-timeout 2s").start();
    node.get("/db?mode=slow&ms=100");
    becomes(&node, "/ready", 200);
    node.get("/db?mode=slow&ms=60000");
    let start = std::time::Instant::now();
    super::super::support::eventually("slower than the time-out is down", || status(&node, "/ready") == 503);
    assert!(start.elapsed() > std::time::Duration::from_millis(1500), "not before its time");
    let db = check(&node.get("/ready"), "db");
    assert_eq!((&db["data"]["error"], &db["data"]["timeout_ms"]), (&"timeout".into(), &2000.into()));
    node.get("/db?mode=up");
    assert_eq!(status(&node, "/ready"), 200);
}

#[test]
fn a_flaky_database_flips_and_the_log_does_not_drown() {
    let node = Start::node().flags("--check-interval 10ms --check db=sim:flaky?p=0.5 --access-log off").start();
    let (mut up, mut down) = (0, 0);
    crate::support::eventually("both verdicts are seen", || {
        match status(&node, "/ready") {
            200 => up += 1,
            _ => down += 1,
        }
        up > 5 && down > 5
    });
    std::thread::sleep(std::time::Duration::from_secs(2));
    let lines = node.log.lines().iter().filter(|line| line.contains("db is")).count();
    assert!((1..20).contains(&lines), "{lines} lines for hundreds of changes");
}

#[test]
fn the_log_tells_each_change_of_state_once() {
    let node = Start::node().flags("--check-interval 20ms").start();
    node.get("/db?up=false");
    node.log.until("db is DOWN: connection refused (simulated)");
    std::thread::sleep(std::time::Duration::from_millis(1500));
    node.get("/db?up=true");
    node.log.until("db is UP again after");
    assert_eq!(node.log.lines().iter().filter(|line| line.contains("db is DOWN")).count(), 1);
}

#[test]
fn a_real_database_cannot_be_toggled() {
    let node = Start::node().flags("--check db=tcp://127.0.0.1:9").start();
    for (method, path, body) in [("GET", "/db", ""), ("GET", "/dat?csdl=true", ""), ("PUT", "/db", r#"{"up":true}"#)] {
        let answer = node.send(method, path, body);
        assert_eq!(answer.status, 409, "{method} {path}");
        let error = answer.json()["error"].as_str().expect("a sentence").to_owned();
        assert!(error.contains("tcp://127.0.0.1:9, a real one"), "{error}");
    }
    assert_eq!(node.get("/db?up=2").status, 400, "a wrong value is wrong everywhere");
}
