//! How long faults last, whom they are for, and what they leave alone.

use std::time::{Duration, Instant};

use super::node::{Node, PATIENCE};

/// Far below the minute that requests are held for in these tests.
const SOON: Duration = Duration::from_secs(10);

#[test]
fn clearing_releases_a_hundred_held_requests() {
    for faults in [
        r#"{"delay":"60s"}"#,
        r#"{"delay":"60s","workers":30}"#,
        r#"{"delay":"60s","workers":30,"dead_work":"skip"}"#,
        r#"{"delay":"60s","workers":30,"dead_work":"cancel"}"#,
        r#"{"delay":"60s","error_rate":1}"#,
        r#"{"burn":"10s"}"#,
        r#"{"dribble":"60s"}"#,
    ] {
        let node = Node::with(faults);
        let mut sockets: Vec<_> = (0..100).map(|_| node.connect()).collect();
        for socket in &mut sockets {
            socket.request("GET", "/", "");
        }
        node.eventually("requests", 100);
        let start = Instant::now();
        node.clear();
        for socket in &mut sockets {
            let answer = socket.answer(true);
            assert_eq!((answer.status, &answer.json()["msg"]), (200, &serde_json::Value::Null), "{faults}");
        }
        assert!(start.elapsed() < SOON, "{faults}: {:?}", start.elapsed());
    }
}

#[test]
fn a_successor_releases_what_its_predecessor_held() {
    let node = Node::with(r#"{"delay":"60s"}"#);
    let mut socket = node.connect();
    socket.request("GET", "/", "");
    node.eventually("requests", 1);
    let start = Instant::now();
    node.put(r#"{"error_rate":1}"#);
    assert_eq!(socket.answer(true).status, 200);
    assert!(start.elapsed() < SOON);
    assert_eq!(node.get("/").status, 503);
}

#[test]
fn faults_expire_by_themselves_release_what_they_hold_and_say_when() {
    let node = Node::with(r#"{"delay":"60s","expires_after":"2s"}"#);
    let report = node.faults();
    assert!(report["expires_at"].is_string() && report["expired_at"].is_null(), "{report}");
    let start = Instant::now();
    assert_eq!(node.get("/").status, 200);
    assert!(start.elapsed() < SOON);
    let report = node.faults();
    assert_eq!((&report["enabled"], &report["spec"]), (&false.into(), &serde_json::Value::Null));
    assert!(report["expired_at"].is_string(), "{report}");
    assert_eq!(report["observed"]["requests"], 1);
}

#[test]
fn a_delay_comes_before_the_work_and_the_answer_owns_to_it() {
    let node = Node::with(r#"{"delay":"200ms"}"#);
    let start = Instant::now();
    let answer = node.get("/");
    assert!(start.elapsed() >= Duration::from_millis(200));
    let timing = answer.header("server-timing").and_then(|text| text.strip_prefix("self;dur=")).expect("a time");
    let own: f64 = timing.split(',').next().and_then(|ms| ms.parse().ok()).expect(timing);
    assert!(own >= 200.0, "{own}");
}

#[test]
fn a_delay_uses_up_the_time_that_the_caller_gave() {
    let leaf = Node::start(&[]);
    let node = leaf.front();
    node.put(r#"{"delay":"300ms"}"#);
    let mut socket = node.connect();
    socket.send("GET / HTTP/1.1\r\nhost: x\r\nx-envoy-expected-rq-timeout-ms: 250\r\n\r\n");
    let answer = socket.answer(true);
    assert!(answer.msg().starts_with("deadline: "), "{}", answer.msg());
    assert_eq!(node.get("/").json()["msg"], serde_json::Value::Null);
}

#[test]
fn a_dribbled_body_is_whole_and_takes_its_time() {
    let node = Node::with(r#"{"dribble":"500ms"}"#);
    let start = Instant::now();
    let mut socket = node.connect();
    for round in 1..=2 {
        let answer = socket.ask("GET", "/", "");
        assert_eq!((answer.status, &answer.json()["host"]), (200, &"node".into()));
        assert!(start.elapsed() >= round * Duration::from_millis(490), "{:?}", start.elapsed());
    }
    assert_eq!(node.observed("dribbled"), 2);
}

fn figure(node: &Node, name: &str) -> f64 {
    let metrics = node.get("/metrics").body;
    let line = metrics.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("no {name}"));
    line.trim().parse().expect(line)
}

#[test]
fn burning_takes_cpu_time_and_leaves_the_serving_threads_free() {
    const CPU: &str = "process_cpu_seconds_total ";
    let node = Node::start(&["--workers", "1"]);
    let before = figure(&node, CPU);
    node.put(r#"{"burn":"1s"}"#);
    let mut socket = node.connect();
    socket.request("GET", "/", "");
    node.eventually("requests", 1);
    // The only serving thread answers while the request burns.
    assert_eq!((node.get("/live").status, node.observed("burned")), (200, 0));
    assert_eq!(socket.answer(true).status, 200);
    let burned = figure(&node, CPU) - before;
    assert!(burned >= 0.9, "{burned} s of CPU time");
}

#[test]
fn memory_is_held_while_the_faults_last() {
    const MEMORY: &str = "process_resident_memory_bytes ";
    const HELD: f64 = 100.0 * 1024.0 * 1024.0;
    let node = Node::start(&[]);
    let before = figure(&node, MEMORY);
    assert_eq!(node.put(r#"{"hold_mib":128}"#)["observed"]["held_mib"], 128);
    assert!(figure(&node, MEMORY) - before > HELD);
    node.put(r#"{"hold_mib":128,"only":"another"}"#);
    let start = Instant::now();
    while figure(&node, MEMORY) - before > HELD {
        assert!(start.elapsed() < PATIENCE, "the memory is still held");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(node.observed("held_mib"), 0);
}

#[test]
fn one_replica_of_a_service_can_be_sick() {
    let replicas = ["1", "2"].map(|slot| Node::start(&["--name", "service-2", "--slot", slot]));
    for (only, sick) in [("service-2-1", [503, 200]), ("2", [200, 503]), ("service-2", [503, 503])] {
        for (node, status) in replicas.iter().zip(sick) {
            let report = node.put(&format!(r#"{{"error_rate":1,"only":"{only}"}}"#));
            assert_eq!((&report["enabled"], &report["applies"]), (&true.into(), &(status == 503).into()), "{only}");
            assert_eq!(node.get("/").status, status, "{only}");
            assert_eq!(node.observed("injected"), u64::from(status == 503), "{only}");
        }
    }
}

#[test]
fn faults_can_be_there_from_the_start() {
    let faults = r#"{"fail_next":1,"status":500,"only":"n-7","seed":1}"#;
    let node = Node::start(&["--faults", faults, "--name", "n", "--slot", "7"]);
    assert_eq!(node.faults()["spec"], serde_json::from_str::<serde_json::Value>(faults).expect("JSON"));
    assert_eq!(node.get("/config").json()["slot"], "7");
    assert_eq!((node.get("/").status, node.get("/").status), (500, 200));
}

#[test]
fn probes_and_control_are_out_of_reach_of_every_fault() {
    let node = Node::start(&[]);
    for faults in [
        r#"{"error_rate":1}"#,
        r#"{"fail_next":1000}"#,
        r#"{"every_nth":1}"#,
        r#"{"delay":"60s"}"#,
        r#"{"delay":{"lognormal":{"median":"50s","sigma":0.1}}}"#,
        r#"{"abort":"reset"}"#,
        r#"{"abort":"empty"}"#,
        r#"{"abort":"garbage"}"#,
        r#"{"abort":"truncate"}"#,
        r#"{"dribble":"60s"}"#,
        r#"{"burn":"10s"}"#,
        r#"{"hold_mib":64}"#,
        r#"{"close":true}"#,
        r#"{"workers":1,"queue":0,"delay":"60s"}"#,
    ] {
        node.put(faults);
        // It bites where it should, while the probes are asked on one kept connection.
        let mut business = node.connect();
        business.request("GET", "/", "");
        node.eventually("requests", 1);
        let start = Instant::now();
        let mut socket = node.connect();
        for path in ["/live", "/livez", "/health/live", "/ready", "/readyz", "/health/ready", "/config", "/metrics"] {
            let answer = socket.ask("GET", path, "");
            assert_eq!((answer.status, answer.header("connection")), (200, None), "{path} under {faults}");
        }
        assert_eq!(socket.ask("GET", "/faults", "").json()["observed"]["requests"], 1, "{faults}");
        assert_eq!(socket.ask("OPTIONS", "/", "").status, 200, "{faults}");
        assert!(start.elapsed() < SOON, "{faults}: {:?}", start.elapsed());
    }
}
