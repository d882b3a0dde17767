//! What is refused: nonsense in `PUT /faults`, in `--faults` and in `--slot`, by name.

use super::node::{Node, refusal};

#[test]
fn nonsense_is_refused_with_member_value_and_limit_and_changes_nothing() {
    let node = Node::with(r#"{"error_rate":1,"status":418}"#);
    for (faults, parts) in [
        (r#"{"error_rate":2}"#, &["error_rate", "2", "from 0 to 1"][..]),
        (r#"{"error_rate":-1}"#, &["error_rate", "-1", "from 0 to 1"]),
        (r#"{"error_rate":NaN}"#, &["error_rate", "NaN"]),
        (r#"{"delay":"9999999999999999999s"}"#, &["delay", "9999999999999999999s", "1h"]),
        (r#"{"delay":"61m"}"#, &["delay", "61m", "1h"]),
        (r#"{"delay":{"uniform":["2s","1s"]}}"#, &["delay", "uniform", "2s", "1s"]),
        (r#"{"nonsense":1}"#, &["nonsense"]),
        (r#"{"fail_next":1,"status":99}"#, &["status", "99", "200 to 599"]),
        (r#"{"fail_next":1,"status":1000}"#, &["status", "1000", "200 to 599"]),
        (r#"{"fail_next":1,"status":204}"#, &["status", "204", "no body"]),
        (r#"{"queue":3}"#, &["queue", "workers"]),
        ("not JSON", &["JSON object"]),
        ("", &["JSON object"]),
    ] {
        let answer = node.connect().ask("PUT", "/faults", faults);
        assert_eq!(answer.status, 400, "{faults}");
        let envelope = answer.json();
        assert_eq!((&envelope["host"], &envelope["status"]), (&"node".into(), &400.into()));
        let error = envelope["error"].as_str().expect("a sentence");
        assert!(parts.iter().all(|part| error.contains(part)) && error.lines().count() == 1, "{faults}: {error}");
    }
    let answer = node.connect().ask("PUT", "/faults", &" ".repeat(16 * 1024 + 1));
    assert_eq!(answer.status, 413, "{}", answer.body);
    assert!(answer.body.contains("16384"), "{}", answer.body);
    assert_eq!(node.get("/").status, 418);
}

#[test]
fn what_faults_does_not_take_is_refused_and_what_it_takes_is_listed() {
    let node = Node::start(&[]);
    assert_eq!(node.connect().ask("PATCH", "/faults", "{}").status, 405);
    let options = node.connect().ask("OPTIONS", "/faults", "");
    assert_eq!((options.status, options.header("allow")), (200, Some("GET, HEAD, PUT, POST, DELETE, OPTIONS")));
    assert_eq!(node.connect().ask("HEAD", "/faults", "").status, 200);
}

#[test]
fn faults_can_be_asked_for_by_a_query_too() {
    let node = Node::start(&[]);
    let spec = |answer: super::node::Answer| {
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.json()["spec"].clone()
    };
    let asked = node.connect().ask("GET", "/faults?error_rate=1&status=418&only=node", "");
    assert_eq!(spec(asked), serde_json::json!({"error_rate": 1.0, "status": 418, "only": "node"}));
    assert_eq!(node.get("/").status, 418);
    let asked = node.connect().ask("GET", "/faults?delay=5ms", "");
    assert_eq!(spec(asked), serde_json::json!({"delay": "5ms"}));
    assert_eq!(spec(node.connect().ask("POST", "/faults", r#"{"fail_next":2}"#)), serde_json::json!({"fail_next": 2}));
    for (query, part) in [
        ("nonsense=1", "nonsense"),
        ("error_rate=2", "from 0 to 1"),
        ("error_rate=", "error_rate"),
        ("error_rate=1&error_rate=0", "error_rate"),
    ] {
        let refused = node.connect().ask("GET", &format!("/faults?{query}"), "");
        assert_eq!(refused.status, 400, "{query}");
        assert!(refused.body.contains(part), "{query}: {}", refused.body);
    }
    assert_eq!(node.connect().ask("HEAD", "/faults?error_rate=1", "").status, 200);
    assert_eq!([(); 3].map(|()| node.get("/").status), [503, 503, 200], "what was refused has changed nothing");
}

#[test]
fn nonsense_on_the_command_line_ends_with_code_2_and_one_line() {
    for (args, parts) in [
        (&["--faults", r#"{"error_rate":2}"#][..], &["--faults", "error_rate: 2 ", "from 0 to 1"][..]),
        (&["--faults", "{\n\"error_rate\": 2\n}"], &["--faults", "error_rate: 2 ", "from 0 to 1"]),
        (&["--faults", "none"], &["--faults", "'none'", "JSON object"]),
        (&["--slot", "a/b"], &["--slot", "'a/b'", "1 to 64"]),
    ] {
        let output = refusal(args);
        let line = String::from_utf8(output.stderr).expect("UTF-8");
        assert_eq!((output.status.code(), line.lines().count()), (Some(2), 1), "{line}");
        assert!(parts.iter().all(|part| line.contains(part)), "{line}");
    }
}
