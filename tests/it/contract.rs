//! What `GET /` answers, and what it asks of the next node.

use std::time::Duration;

use crate::support::{Cascade, Node, Start, Upstream};

#[test]
fn a_leaf_answers_five_members_in_order() {
    let node = Start::node().env("HOSTNAME", "service-5").start();
    let answer = node.get_with("/", &[("x-correlation-id", "c-1")]);
    assert_eq!(answer.status_line, "HTTP/1.1 200 OK");
    let port = node.port;
    assert_eq!(
        answer.text(),
        format!(r#"{{"host":"service-5","port":{port},"correlationId":"c-1","responseInfo":null,"msg":null}}"#)
    );
    assert_eq!(answer.header("content-type"), Some("application/json"));
    assert_eq!(answer.header("cascade-status"), Some("complete"));
    assert_eq!(answer.header("cascade-depth"), Some("1"));
    assert_eq!(answer.header("cascade-reason"), None);
    assert_eq!(answer.header("x-correlation-id"), Some("c-1"));
}

#[test]
fn five_nodes_nest_their_answers_as_json() {
    let cascade = Cascade::of(5);
    let answer = cascade.get("/");
    assert_eq!(answer.hosts(), ["service-1", "service-2", "service-3", "service-4", "service-5"]);
    assert!(!answer.text().contains('\\'), "JSON in a string: {}", answer.text());
    assert_eq!(answer.header("cascade-status"), Some("complete"));
    assert_eq!(answer.header("cascade-depth"), Some("5"));
    let mut level = answer.json();
    for node in cascade.nodes() {
        assert_eq!(level["port"], node.port);
        assert_eq!(level["correlationId"], answer.json()["correlationId"]);
        assert!(level["msg"].is_null());
        level = level["responseInfo"].take();
    }
    assert!(level.is_null());
}

#[test]
fn the_body_has_the_same_length_each_time() {
    let cascade = Cascade::of(3);
    let mut socket = cascade.nodes()[0].connect();
    let lengths: Vec<usize> = (0..50).map(|_| socket.get("/").body.len()).collect();
    assert!(lengths.iter().all(|length| *length == lengths[0]), "{lengths:?}");
}

#[test]
fn server_timing_tells_own_time_from_the_time_below() {
    let upstream = Upstream::answering(|peer, _| {
        std::thread::sleep(Duration::from_millis(60));
        peer.json("{}");
    });
    let node = Start::calling(upstream.uri()).start();
    let answer = node.get("/");
    let timing = answer.header("server-timing").expect("a header").to_owned();
    let below = timing.split("downstream;dur=").nth(1).and_then(|ms| ms.parse::<f64>().ok()).expect(&timing);
    assert!(timing.starts_with("self;dur=") && below >= 60.0, "{timing}");
}

#[test]
fn the_path_is_the_targets_own_and_never_doubles_a_slash() {
    for (suffix, path) in [("", "/"), ("/", "/"), ("/a", "/a"), ("/a/", "/a/")] {
        let upstream = Upstream::leaf();
        let node = Start::calling(upstream.uri() + suffix).start();
        assert!(node.get("/").is_complete());
        assert_eq!(upstream.until_request(1).target, path, "{suffix:?}");
    }
}

#[test]
fn the_query_string_goes_on_as_it_came() {
    let upstream = Upstream::leaf();
    let node = Start::calling(upstream.uri()).start();
    for (number, target) in ["/?a=1%2F2&b=", "/?", "/?q=%00%C3%A9+x&&=", "/?a=b?c/d"].into_iter().enumerate() {
        assert!(node.get(target).is_complete());
        let seen = upstream.until_request(number + 1).target;
        assert_eq!(seen, if target == "/?" { "/" } else { target });
    }
}

#[test]
fn ids_and_trace_context_go_on_and_nothing_else_of_the_callers_does() {
    let upstream = Upstream::leaf();
    let node = Start::calling(upstream.uri()).start();
    let kept = [
        ("x-correlation-id", "c-7"),
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ("tracestate", "a=1,b=2"),
        ("baggage", "user=7"),
        ("b3", "0"),
        ("x-b3-traceid", "463ac35c9f6413ad48485a3953bb6124"),
        ("x-b3-spanid", "a2fb4a1d1a96d312"),
        ("x-b3-parentspanid", "0020000000000001"),
        ("x-b3-sampled", "1"),
        ("x-b3-flags", "1"),
    ];
    let dropped = [
        ("cookie", "session=secret"),
        ("authorization", "Bearer secret"),
        ("accept-encoding", "gzip, br"),
        ("proxy-authorization", "Basic c2VjcmV0"),
        ("connection", "keep-alive, x-hop"),
        ("x-hop", "1"),
        ("te", "trailers"),
        ("upgrade", "websocket"),
        ("x-forwarded-for", "10.0.0.1"),
        ("if-none-match", "\"x\""),
        ("range", "bytes=0-1"),
    ];
    let sent: Vec<_> = kept.iter().chain(&dropped).copied().collect();
    assert!(node.get_with("/", &sent).is_complete());
    let seen = upstream.until_request(1);
    for (name, value) in kept {
        assert_eq!(seen.header(name), Some(value), "{name}");
    }
    for (name, _) in dropped {
        assert_eq!(seen.header(name), None, "{name}");
    }
    assert_eq!(seen.header("host"), Some(upstream.address.to_string().as_str()));
    assert_eq!(seen.header("cascade-hop"), Some("1"));
}

#[test]
fn a_trace_is_started_only_where_none_comes_in_and_tracing_is_on() {
    let upstream = Upstream::leaf();
    let quiet = Start::calling(upstream.uri()).start();
    quiet.get("/");
    assert_eq!(upstream.until_request(1).header("traceparent"), None);
    let tracing = Start::calling(upstream.uri()).flags("--trace").start();
    tracing.get("/");
    let started = upstream.until_request(2).header("traceparent").expect("a trace").to_owned();
    let parts: Vec<usize> = started.split('-').map(str::len).collect();
    assert_eq!(parts, [2, 32, 16, 2], "{started}");
    let given = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";
    tracing.get_with("/", &[("traceparent", given)]);
    assert_eq!(upstream.until_request(3).header("traceparent"), Some(given));
}

#[test]
fn head_has_the_headers_of_get_and_no_body() {
    let upstream = Upstream::leaf();
    let node = Start::calling(upstream.uri()).start();
    for path in ["/", "/live", "/ready", "/config", "/metrics", "/nowhere"] {
        let mut socket = node.connect();
        let id = [("x-correlation-id", "c")];
        let get = socket.request("GET", path, &id);
        let head = socket.request("HEAD", path, &id);
        assert_eq!(head.status, get.status, "{path}");
        let names = |answer: &crate::support::Answer| -> Vec<String> {
            answer.headers.iter().map(|(name, _)| name.clone()).collect()
        };
        assert_eq!(names(&head), names(&get), "{path}");
        assert!(head.header("content-length").is_some() && head.header("transfer-encoding").is_none(), "{path}");
        if path == "/" {
            assert_eq!(head.header("content-length"), get.header("content-length"));
        }
        // A body after the head would be read as the next answer's head.
        assert_eq!(socket.get(path).status, get.status, "{path}");
    }
}

#[test]
fn wrong_paths_and_methods_are_told_as_json_that_names_the_host() {
    let node = Start::node().env("HOSTNAME", "service-2").start();
    let mut socket = node.connect();
    let not_found = socket.get("/nowhere");
    assert_eq!(not_found.status, 404);
    assert_eq!(not_found.json()["host"], "service-2");
    assert_eq!(not_found.json()["error"], "no such path: /nowhere");
    for method in ["POST", "PUT", "DELETE", "PATCH", "TRACE", "BREW"] {
        let not_allowed = socket.request(method, "/", &[("content-length", "0")]);
        assert_eq!(not_allowed.status, 405, "{method}");
        assert_eq!(not_allowed.json()["host"], "service-2");
        let allow = not_allowed.header("allow").unwrap_or_else(|| panic!("{method}: no Allow header"));
        assert!(allow.contains("GET") && allow.contains("HEAD"), "{allow}");
    }
    let options = socket.request("OPTIONS", "/", &[]);
    assert_eq!((options.status, options.header("allow")), (200, Some("GET, HEAD, OPTIONS")));
    assert_eq!(options.json()["host"], "service-2");
}

#[test]
fn what_strangers_send_is_never_served_as_html() {
    let node = Node::leaf();
    for (path, headers) in [
        ("/?x=%3Cscript%3E", vec![("x-correlation-id", "<script>alert(1)</script>")]),
        ("/%3Cscript%3E", vec![]),
        ("/config?%3Cscript%3E", vec![("x-request-id", "<script>")]),
    ] {
        let answer = node.get_with(path, &headers);
        assert_eq!(answer.header("content-type"), Some("application/json"), "{path}");
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"), "{path}");
        assert!(!answer.headers.iter().any(|(_, value)| value.contains('<')), "{:?}", answer.headers);
        assert!(!answer.text().contains("<script>"), "{}", answer.text());
    }
    // Not allowed in a request line: refused before any route sees it, with nothing to show.
    let refused = node.get("/?x=<script>");
    assert_eq!((refused.status, refused.text()), (400, ""));
}

#[test]
fn names_with_quotes_and_other_alphabets_survive_as_json() {
    for name in ["a\"b", "back\\slash", "tab\tand\nline", "Dịch vụ 1", "🦀"] {
        let leaf = Start::node().arg("--name").arg(name).start();
        let node = Start::calling(leaf.uri()).start();
        let json = node.get("/").json();
        assert_eq!(json["responseInfo"]["host"], name);
        assert_eq!(leaf.get("/nowhere").json()["host"], name);
        assert_eq!(leaf.announcement["name"], name);
    }
}
