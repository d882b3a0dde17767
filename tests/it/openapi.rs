//! `/openapi.json` beside what the running node does.

use std::collections::BTreeSet;

use crate::support::{Node, Socket, Start};

const METHODS: [&str; 7] = ["GET", "HEAD", "PUT", "POST", "DELETE", "PATCH", "OPTIONS"];

#[test]
fn every_path_of_the_document_is_there_and_takes_the_methods_that_it_says() {
    let node = Node::leaf();
    let answer = node.get("/openapi.json");
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/json")));
    assert_eq!(answer.header("cache-control"), Some("no-store"));
    let document = answer.json();
    assert_eq!(document["openapi"], "3.1.0");
    let paths = document["paths"].as_object().expect("paths");
    assert!(["/", "/live", "/san-sang", "/faults", "/dat"].iter().all(|path| paths.contains_key(*path)));
    for (path, item) in paths {
        let described: BTreeSet<_> =
            item.as_object().expect("an item").keys().map(|m| m.to_ascii_uppercase()).collect();
        let options = node.connect().request("OPTIONS", path, &[]);
        let allowed: BTreeSet<_> = options.header("allow").expect("allow").split(", ").map(str::to_owned).collect();
        assert_eq!(described, allowed, "{path}");
        for method in METHODS {
            let answer = node.connect().request(method, path, &[]);
            assert_eq!(answer.status != 405, described.contains(method), "{method} {path}: {}", answer.status);
            let known = &item[method.to_ascii_lowercase()]["responses"][answer.status.to_string()];
            assert!(!described.contains(method) || known.is_object(), "{method} {path}: {}", answer.status);
        }
    }
}

#[test]
fn the_document_is_at_the_door_of_control() {
    let node = Start::node().flags("--control-listen 127.0.0.1:0").start();
    assert_eq!(node.get("/openapi.json").status, 404);
    let control = node.announcement["control"].as_str().expect("announced").to_owned();
    let mut control = Socket::connect(control.strip_prefix("http://").expect("an address"));
    assert_eq!(control.get("/openapi.json").json()["info"]["title"], "rest-cascade");
}
