//! A cascade that is broken and mended, and whether its signs tell the truth.

use rustix::process::Signal;

use crate::support::{Cascade, Node, Start, Upstream, eventually};

#[test]
fn node_3_gone_gives_the_partial_answer_and_its_return_mends_it() {
    let mut cascade = Cascade::with(5, |start| start.flags("--timeout 2s"));
    assert!(cascade.get("/").is_complete());
    cascade.node(3).kill();
    let answer = cascade.get("/");
    assert_eq!(answer.status, 200);
    assert_eq!(answer.hosts(), ["service-1", "service-2"]);
    assert_eq!(answer.header("cascade-status"), Some("partial"));
    assert_eq!(answer.header("cascade-depth"), Some("2"));
    assert_eq!(answer.header("cascade-reason"), Some("refused; hop=3"));
    let third = cascade.node(3).uri();
    let json = answer.json();
    assert!(json["msg"].is_null());
    assert_eq!(json["responseInfo"]["msg"], format!("refused: {third} refused the connection"));
    assert!(json["responseInfo"]["responseInfo"].is_null());

    cascade.restart(3);
    assert!(cascade.get("/").is_complete(), "back by itself");

    // A node that stops in order drains before it is gone.
    cascade.node(5).signal(Signal::TERM);
    cascade.node(5).end();
    assert_eq!(cascade.get("/").header("cascade-reason"), Some("refused; hop=5"));
    cascade.restart(5);
    assert!(cascade.get("/").is_complete());
}

#[test]
fn partial_answers_are_counted_by_header_and_by_metric_alike() {
    let mut cascade = Cascade::of(5);
    let mut socket = cascade.nodes()[0].connect();
    let mut partial = 0;
    for number in 0..200 {
        if number == 120 {
            cascade.node(3).kill();
        }
        let answer = socket.get("/");
        assert_eq!(answer.status, 200);
        partial += u32::from(answer.header("cascade-status") == Some("partial"));
    }
    assert_eq!(partial, 80);
    for node in &cascade.nodes()[..2] {
        let counted = |outcome: &str| node.metric(&["requests_total", "route=\"/\"", "status=\"200\"", outcome]);
        assert_eq!((counted("\"partial\""), counted("\"complete\"")), (80.0, 120.0));
    }
    // Only the neighbour made a call that failed; the first node's calls were answered.
    let failed =
        |node: &Node| node.metric(&["downstream_calls_total"]) - node.metric(&["downstream_calls_total", "\"ok\""]);
    assert_eq!((failed(&cascade.nodes()[0]), failed(&cascade.nodes()[1])), (0.0, 80.0));
}

#[test]
fn histograms_never_fall_and_end_at_the_count() {
    let upstream = Upstream::leaf();
    let node = Start::calling(upstream.uri()).start();
    for path in ["/", "/live", "/ready", "/config", "/nowhere", "/elsewhere", "/"] {
        node.get(path);
    }
    let answer = node.get("/metrics");
    assert_eq!(answer.status, 200);
    assert!(answer.header("content-type").is_some_and(|kind| kind.starts_with("application/openmetrics-text")));
    let text = answer.text();
    assert!(text.ends_with("# EOF\n"), "cut off: {text}");
    let series = |name: &str, route: &str| -> Vec<f64> {
        let route = format!("route=\"{route}\"");
        let lines = text.lines().filter(|line| line.starts_with(name) && line.contains(&route));
        lines.map(|line| line.rsplit(' ').next().and_then(|value| value.parse().ok()).expect(line)).collect()
    };
    for (route, requests) in [("/", 2.0), ("/live", 1.0), ("/ready", 1.0), ("/config", 1.0), ("other", 2.0)] {
        let buckets = series("rest_cascade_request_duration_seconds_bucket", route);
        assert!(buckets.len() > 5 && buckets.is_sorted(), "{route}: {buckets:?}");
        assert_eq!(buckets.last(), Some(&requests), "{route}");
        assert_eq!(series("rest_cascade_request_duration_seconds_count", route), [requests], "{route}");
        assert_eq!(series("rest_cascade_requests_total", route).iter().sum::<f64>(), requests, "{route}");
    }
    let last = text.lines().rfind(|line| line.contains("request_duration_seconds_bucket"));
    assert!(last.is_some_and(|line| line.contains("le=\"+Inf\"")), "{last:?}");
}

#[test]
fn a_strangers_path_never_becomes_a_label() {
    let node = Node::leaf();
    for number in 0..50 {
        assert_eq!(node.get(&format!("/path-{number}")).status, 404);
    }
    assert_eq!(node.metric(&["requests_total", "route=\"other\"", "status=\"404\""]), 50.0);
    assert!(!node.get("/metrics").text().contains("path-"));
}

#[test]
fn figures_of_the_process_are_the_kernels() {
    let node = Node::leaf();
    let mut open: Vec<_> = (0..5).map(|_| node.connect()).collect();
    for socket in &mut open {
        assert!(socket.get("/").is_complete());
    }
    assert_eq!(node.metric(&["open_connections", "side=\"server\""]), 6.0);
    let difference = node.metric(&["process_open_fds"]) - node.open_files() as f64;
    assert!(difference.abs() <= 3.0, "{difference}");
    assert!(node.metric(&["process_resident_memory_bytes"]) > 1e6);
    drop(open);
    eventually("the gauge goes back", || node.metric(&["open_connections", "side=\"server\""]) == 1.0);
}
