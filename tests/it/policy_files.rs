//! `--policy FILE`: Istio's files as they are written, and what is said of those that are wrong.

use serde_json::{Value, json};

use crate::support::{Node, Refusal, Start, Upstream};

fn files(texts: &[&str]) -> Vec<tempfile::NamedTempFile> {
    let write = |text: &&str| {
        let file = tempfile::Builder::new().suffix(".yaml").tempfile().expect("a file");
        std::fs::write(file.path(), text).expect("written");
        file
    };
    texts.iter().map(write).collect()
}

fn with(texts: &[&str]) -> Result<(Node, Vec<tempfile::NamedTempFile>), Refusal> {
    let files = files(texts);
    let start =
        files.iter().fold(Start::calling("http://127.0.0.1:9"), |start, file| start.arg("--policy").arg(file.path()));
    start.try_start().map(|node| (node, files))
}

fn policy(texts: &[&str]) -> Value {
    let (node, _files) = with(texts).expect("a node");
    node.get("/policy").json()
}

const POOL: &str = "
trafficPolicy:
  connectionPool:
    tcp:
      maxConnections: 190
    http:
      http1MaxPendingRequests: 10
      http2MaxRequests: 190
      maxRequestsPerConnection: 100
";

const ROUTE: &str = "
http:
- match:
  - uri:
      prefix: /gimme
  retries:
    attempts: 0
  route:
  - destination:
      host: wiremock.default.svc.cluster.local
      port:
        number: 8080
    weight: 100
  timeout: 10s
";

#[test]
fn the_fragments_of_the_article_load_as_they_are() {
    let read = policy(&[POOL, ROUTE]);
    assert_eq!(read["timeout"], "10s");
    assert_eq!(read["retries"], json!({"attempts": 0}));
    assert_eq!(read["connectionPool"]["tcp"]["maxConnections"], 190);
    let http = json!({"http1MaxPendingRequests": 10, "http2MaxRequests": 190, "maxRequestsPerConnection": 100});
    assert_eq!(read["connectionPool"]["http"], http);
    assert_eq!(read.get("outlierDetection"), None);
}

#[test]
fn the_old_name_of_the_breakers_threshold_is_read_as_it_was_meant_and_told() {
    let text = "
trafficPolicy:
  outlierDetection:
    baseEjectionTime: 30s
    consecutiveErrors: 10
    interval: 10s
    maxEjectionPercent: 100
";
    let (node, _files) = with(&[text]).expect("a node");
    let told = node.log.until("consecutiveErrors");
    assert!(told.contains(".yaml:5:") && told.contains("502, 503 and 504"), "{told}");
    let rules = &node.get("/policy").json()["outlierDetection"];
    assert_eq!((&rules["consecutiveGatewayErrors"], &rules["consecutive5xxErrors"]), (&json!(10), &json!(0)));
    assert_eq!((&rules["baseEjectionTime"], &rules["maxEjectionPercent"]), (&json!("30s"), &json!(100)));
}

#[test]
fn whole_resources_load_too_and_what_has_no_effect_is_told_with_its_line() {
    let text = "apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata:
  name: stub
spec:
  host: stub
  subsets: []
  trafficPolicy:
    loadBalancer:
      simple: LEAST_REQUEST
    tls:
      mode: DISABLE
---
apiVersion: networking.istio.io/v1alpha3
kind: VirtualService
metadata:
  name: stub
spec:
  hosts: [stub]
  gateways: [stub]
  http:
  - timeout: 1.5s
    fault:
      delay:
        fixedDelay: 1s
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata:
  name: stub
";
    let (node, _files) = with(&[text]).expect("a node");
    for part in [
        ":7: subsets has no",
        ":11: trafficPolicy.tls has no",
        ":20: gateways has no",
        ":23: http[0].fault has no",
        "Gateway has no",
    ] {
        node.log.until(part);
    }
    let read = node.get("/policy").json();
    assert_eq!((&read["loadBalancer"]["simple"], &read["timeout"]), (&json!("LEAST_REQUEST"), &json!("1s 500ms")));
}

#[test]
fn a_file_that_is_wrong_stops_the_start_with_file_line_and_field() {
    let traffic = |text: &str| format!("trafficPolicy:\n  {text}\n");
    let two = format!("{POOL}\n---\n{POOL}");
    let rule = |kind: &str, host: &str| {
        format!("apiVersion: networking.istio.io/v1\nkind: {kind}\nmetadata: {{name: a}}\nspec:\n  {host}\n")
    };
    let hosts = format!("{}---\n{}", rule("DestinationRule", "host: one"), rule("DestinationRule", "host: two"));
    for (text, line, parts) in [
        (traffic("conectionPool: {}"), 2, &["conectionPool"][..]),
        (traffic("connectionPool:\n    tcp:\n      maxConnection: 5"), 4, &["maxConnection"]),
        (traffic("connectionPool:\n    tcp:\n      maxConnections: many"), 4, &["maxConnections", "many"]),
        (traffic("connectionPool:\n    http:\n      http1MaxPendingRequests: -1"), 4, &["-1", "0"]),
        (traffic("outlierDetection:\n    interval: 0s"), 3, &["outlierDetection.interval", "0s", "1ms"]),
        (traffic("outlierDetection:\n    baseEjectionTime: 0s"), 3, &["baseEjectionTime", "0s"]),
        (traffic("outlierDetection:\n    interval: 10"), 3, &["interval", "10"]),
        (traffic("outlierDetection:\n    consecutiveErrors: 1\n    consecutiveGatewayErrors: 2"), 3, &["line 4"]),
        (traffic("outlierDetection:\n    maxEjectionPercent: 150"), 3, &["150", "100"]),
        (traffic("loadBalancer:\n    consistentHash: {}"), 3, &["consistentHash"]),
        (traffic("portLevelSettings: []"), 2, &["portLevelSettings"]),
        (two, 13, &["a second DestinationRule", "one next hop"]),
        (hosts, 11, &["a second DestinationRule", "for two", "for one"]),
        ("http:\n- timeout: 1s\n- timeout: 2s\n".to_owned(), 2, &["2 routes"]),
        ("http:\n- timeout: 1s\n  retries:\n    attempts: 101\n".to_owned(), 4, &["attempts", "101"]),
        ("http:\n- retries:\n    retryOn: sometimes\n".to_owned(), 3, &["sometimes", "gateway-error"]),
        ("a: 1\na: 2\n".to_owned(), 2, &["a stands twice"]),
        ("spec: {}\n".to_owned(), 1, &["neither a DestinationRule"]),
        (rule("DestinationRule", "host: a").replace("networking.istio.io", "example.org"), 1, &["example.org"]),
        ("a: [\n".to_owned(), 2, &["no YAML"]),
    ] {
        let refusal = with(&[&text]).map(|_| ()).expect_err(&text);
        assert_eq!(refusal.code, Some(2), "{text}: {refusal:?}");
        let error = refusal.stderr.lines().last().unwrap_or_default();
        assert!(error.contains(&format!(".yaml:{line}: ")), "{text}: {error}");
        assert!(parts.iter().all(|part| error.contains(part)), "{text}: {error} lacks one of {parts:?}");
    }
}

#[test]
fn a_file_that_is_not_there_or_holds_nothing_is_named() {
    let refusal = Start::node().flags("--policy /no/such/file.yaml").run();
    assert_eq!(refusal.code, Some(2));
    assert!(refusal.stderr.contains("/no/such/file.yaml: No such file"), "{}", refusal.stderr);
    let refusal = with(&["# nothing\n"]).map(|_| ()).expect_err("an empty file");
    assert!(refusal.stderr.contains("holds no policy"), "{}", refusal.stderr);
}

#[test]
fn zero_in_a_count_is_no_limit_and_told_as_such() {
    let text = "
trafficPolicy:
  connectionPool:
    tcp:
      maxConnections: 0
    http:
      http1MaxPendingRequests: 0
      http2MaxRequests: 0
      maxRequestsPerConnection: 0
      maxRetries: 0
  outlierDetection:
    consecutiveGatewayErrors: 0
    consecutive5xxErrors: 0
    maxEjectionPercent: 0
    minHealthPercent: 0
";
    let (node, _files) = with(&[text]).expect("a node");
    for line in [5, 7, 8, 10] {
        node.log.until(&format!(".yaml:{line}: "));
    }
    let read = node.get("/policy").json();
    assert_eq!(read["connectionPool"], json!({"tcp": {}, "http": {}}));
    assert_eq!(read["outlierDetection"]["maxEjectionPercent"], 10);
}

#[test]
fn the_policys_time_out_wins_over_the_flag() {
    let upstream = Upstream::answering(|peer, _| peer.until_gone());
    let files = files(&["http:\n- timeout: 100ms\n"]);
    let start = Start::calling(upstream.uri()).flags("--timeout 20s").arg("--policy").arg(files[0].path());
    let answer = start.start().get("/");
    assert!(answer.text().contains("within 100ms"), "{}", answer.text());
}
