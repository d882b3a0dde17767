//! What a probe's answer looks like, in each form.

use super::{check, status};
use crate::support::{Node, Start};

#[test]
fn the_default_form_is_microprofiles_and_no_cache_keeps_it() {
    let node = Start::node().flags("--check db=sim: --check cache=sim:down;optional").start();
    let answer = node.get("/ready");
    assert_eq!(answer.status_line, "HTTP/1.1 200 OK");
    assert_eq!(answer.header("content-type"), Some("application/json"));
    assert_eq!(answer.header("cache-control"), Some("no-store"));
    assert_eq!(answer.header("content-length"), Some(answer.body.len().to_string().as_str()));
    let json = answer.json();
    assert_eq!(json["status"], "UP");
    assert_eq!(json.as_object().map(|object| object.len()), Some(2), "status and checks alone: {json}");
    let names: Vec<_> = json["checks"].as_array().expect("checks").iter().map(|check| &check["name"]).collect();
    assert_eq!(names, ["db", "cache", "loaded", "not-draining"], "in a fixed order");
    let cache = check(&answer, "cache");
    assert_eq!(cache["status"], "DOWN");
    assert_eq!(cache["data"]["critical"], false);
    assert_eq!(cache["data"]["error"], "connection refused (simulated)");
    assert!(cache["data"]["ms"].is_u64() && cache["data"]["age_ms"].is_u64(), "{cache}");
    assert_eq!(check(&answer, "db")["data"]["critical"], true);
    assert_eq!(node.get("/live").json()["checks"][0]["name"], "process");
    assert_eq!(node.get("/startup").json()["checks"][0]["name"], "loaded");
}

#[test]
fn the_articles_paths_answer_in_the_articles_form() {
    let node = Node::leaf();
    for (path, body) in [
        ("/song", r#"{"status":"UP","checks":[{"id":"tien-trinh","status":"UP"}],"outcome":"UP"}"#),
        (
            "/san-sang",
            r#"{"status":"UP","checks":[{"id":"csdl","status":"UP"},{"id":"da-nap-xong","status":"UP"}],"outcome":"UP"}"#,
        ),
    ] {
        let answer = node.get(path);
        assert_eq!(answer.text(), body);
        assert_eq!(answer.header("content-type"), Some("application/json;charset=UTF-8"));
        assert_eq!(answer.header("cache-control"), Some("no-store"));
    }
    node.get("/dat?csdl=false");
    assert_eq!(
        node.get("/san-sang").text(),
        concat!(
            r#"{"status":"DOWN","checks":[{"id":"csdl","status":"DOWN","data":{"loi":"connection refused (simulated)"}},"#,
            r#"{"id":"da-nap-xong","status":"UP"}],"outcome":"DOWN"}"#
        )
    );
    let wrong = node.get("/gop-sai").json();
    assert_eq!((&wrong["outcome"], &wrong["checks"][0]["id"]), (&"DOWN".into(), &"csdl".into()));
}

#[test]
fn other_forms_are_given_when_asked_for_and_their_verdict_is_the_same() {
    let node = Start::node().flags("--check db=sim:down;optional").start();
    let answer = node.get_with("/ready", &[("accept", "application/health+json")]);
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("content-type"), Some("application/health+json"));
    let json = answer.json();
    assert_eq!(json["status"], "warn");
    assert_eq!(json["checks"]["db:responseTime"][0]["affectedEndpoints"], serde_json::json!(["/data"]));
    let vertx = node.get("/ready?format=vertx");
    assert_eq!(vertx.header("content-type"), Some("application/json;charset=UTF-8"));
    assert_eq!(vertx.json()["outcome"], "UP");
    assert_eq!(vertx.json()["checks"][0]["id"], "db");
    // A form that nobody knows is no reason to fail a probe.
    assert_eq!(status(&node, "/ready?format=yaml"), 200);

    let node = Start::node().flags("--check db=sim:down").start();
    for (path, accept) in
        [("/ready", "application/health+json"), ("/ready?format=vertx", "*/*"), ("/ready?format=health%2Bjson", "*/*")]
    {
        assert_eq!(node.get_with(path, &[("accept", accept)]).status, 503, "{path} {accept}");
    }
    assert_eq!(node.get("/ready?format=health%2Bjson").json()["status"], "fail");
}

#[test]
fn what_a_probe_found_is_in_the_metrics_and_under_the_paths_first_name() {
    let node = Start::node().flags("--check db=sim: --check cache=sim:down;optional").start();
    assert_eq!(node.metric(&["check_up", "check=\"db\"", "critical=\"true\""]), 1.0);
    assert_eq!(node.metric(&["check_up", "check=\"cache\"", "critical=\"false\""]), 0.0);
    node.get("/db?up=false");
    assert_eq!(node.metric(&["check_up", "check=\"db\""]), 0.0);
    for path in ["/ready", "/san-sang/", "/readyz", "/health/ready"] {
        node.get(path);
    }
    assert_eq!(node.metric(&["requests_total", "route=\"/ready\"", "status=\"503\""]), 4.0);
}
