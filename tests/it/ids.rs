//! Correlation ids: kept, passed on, and never a way into headers, bodies or the log.

use crate::support::{Cascade, Node, Start};

fn node() -> Node {
    Start::node().flags("--access-log all").start()
}

/// The id of the answer to a request with these raw header lines: in the header and in the body the same.
#[track_caller]
fn id_for(node: &Node, lines: &[u8]) -> String {
    let mut socket = node.connect();
    socket.send([b"GET / HTTP/1.1\r\nhost: x\r\n", lines, b"\r\n"].concat());
    let answer = socket.answer();
    assert_eq!(answer.status, 200);
    let id = answer.header("x-correlation-id").expect("an id").to_owned();
    assert_eq!(answer.json()["correlationId"], id);
    id
}

fn is_uuid(id: &str) -> bool {
    id.len() == 36 && id.bytes().filter(|byte| *byte == b'-').count() == 4
}

#[test]
fn the_correlation_id_goes_before_the_request_id_and_both_before_a_new_one() {
    let node = node();
    assert_eq!(id_for(&node, b"x-request-id: r-1\r\nx-correlation-id: c-1\r\n"), "c-1");
    assert_eq!(id_for(&node, b"x-request-id: r-1\r\n"), "r-1");
    assert_eq!(id_for(&node, b"x-request-id: r-1\r\nx-correlation-id: \r\n"), "r-1");
    assert_eq!(id_for(&node, b"X-Correlation-ID: Mixed.Case_1\r\n"), "Mixed.Case_1");
    let (first, second) = (id_for(&node, b""), id_for(&node, b""));
    assert!(is_uuid(&first) && is_uuid(&second) && first != second, "{first} {second}");
}

#[test]
fn the_same_id_is_seen_at_all_five_hops_and_in_their_logs() {
    let cascade = Cascade::of(5);
    for (sent, kept) in [("order-4711", true), ("a b\"<>", false)] {
        let answer = cascade.nodes()[0].get_with("/", &[("x-correlation-id", sent)]);
        let id = answer.header("x-correlation-id").expect("an id").to_owned();
        assert_eq!(id == sent, kept, "{id}");
        let mut level = answer.json();
        for node in cascade.nodes() {
            assert_eq!(level["correlationId"], id);
            node.log.until(&id);
            level = level["responseInfo"].take();
        }
    }
}

#[test]
fn hostile_ids_are_replaced_and_the_log_stays_one_line_a_request() {
    let node = node();
    let long = ["x-correlation-id: ", &"x".repeat(129), "\r\n"].concat();
    let hostile: Vec<&[u8]> = vec![
        b"x-correlation-id: \x80\xff\r\n",
        b"x-correlation-id: a%0d%0ainjected: yes\r\n",
        b"x-correlation-id: a\tb\r\n",
        b"x-correlation-id: \x1b[31mred\x1b[0m\r\n",
        b"x-correlation-id: \xc3\xa9\r\n",
        b"x-correlation-id:\r\n",
        b"x-correlation-id: a\"b\\c\r\n",
        b"x-correlation-id: {{7*7}}${jndi:ldap://x}\r\n",
        long.as_bytes(),
    ];
    let requests = hostile.len();
    for lines in hostile {
        let mut socket = node.connect();
        socket.send([b"GET / HTTP/1.1\r\nhost: x\r\n", lines, b"\r\n"].concat());
        let answer = socket.answer();
        // A control character makes a head that is none.
        if answer.status == 400 {
            assert_eq!(answer.text(), "");
        } else {
            let id = answer.header("x-correlation-id").expect("an id");
            assert!(is_uuid(id), "{:?} became {id:?}", String::from_utf8_lossy(lines));
            assert_eq!(answer.json()["correlationId"], id);
        }
    }
    assert_eq!(id_for(&node, b"x-correlation-id: one\r\nx-correlation-id: two\r\n"), "one");
    assert_eq!(id_for(&node, b"x-correlation-id: the-last-one\r\n"), "the-last-one");
    node.log.until("the-last-one");
    let lines = node.log.lines();
    let access = lines.iter().filter(|line| line.contains("access")).count();
    assert!(access <= requests + 2 && access >= requests, "{}", lines.join("\n"));
    let start = lines.iter().position(|line| line.contains("listening on port")).expect("a start");
    for line in &lines[start + 1..] {
        assert!(line.contains(" INFO access method=\"GET\" path=\"/\" "), "{line:?}");
        assert!(line.bytes().all(|byte| (0x20..0x7f).contains(&byte)), "{line:?}");
    }
}

#[test]
fn paths_cannot_break_out_of_the_log_line_either() {
    let node = Start::node().flags("--access-log all --log-format json").start();
    for path in ["/%0a%0dINFO%20forged", "/\"},{\"x\":\"", "/\x7f", "/\u{e9}", "/a?\"b"] {
        let mut socket = node.connect();
        socket.send(format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n"));
        socket.answer();
    }
    node.get("/the-last-one");
    node.log.until("the-last-one");
    for line in node.log.lines() {
        let json: serde_json::Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"));
        assert!(json["timestamp"].is_string() && json["level"].is_string(), "{line}");
    }
}

#[test]
fn an_access_line_tells_what_was_asked_and_how_it_ended() {
    let node = Start::calling("http://no-such.invalid").flags("--log-format json").start();
    node.get_with("/?q=1", &[("x-correlation-id", "c-9")]);
    let line: serde_json::Value = serde_json::from_str(&node.log.until("\"access\"")).expect("JSON");
    for (field, value) in [("method", "GET"), ("path", "/"), ("correlation_id", "c-9"), ("cascade_status", "partial")] {
        assert_eq!(line[field], value, "{line}");
    }
    assert_eq!(line["status"], 200);
    assert!(line["ms"].is_number(), "{line}");
}

#[test]
fn an_id_of_64_kib_is_refused_and_so_is_any_head_above_16_kib() {
    let mut node = node();
    for (length, status) in [(65_536, 431), (17_000, 431), (15_000, 200)] {
        let mut socket = node.connect();
        // The refusal may come, and the connection close, before everything is sent.
        let _ =
            socket.try_send(format!("GET / HTTP/1.1\r\nhost: x\r\nx-correlation-id: {}\r\n\r\n", "x".repeat(length)));
        assert_eq!(socket.answer().status, status, "{length}");
    }
    assert!(node.is_running());
    assert!(node.get("/").is_complete());
}
