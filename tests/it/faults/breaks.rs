//! Broken connections, as the client's socket sees them and as a node in front names them.

use http_body_util::{BodyExt as _, Empty};
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};

use super::node::{End, Node};

/// What a client gets on a connection of its own.
fn broken(node: &Node, method: &str, version: &str) -> (Vec<u8>, End) {
    let mut socket = node.connect();
    socket.send(&format!("{method} / HTTP/{version}\r\nhost: x\r\n\r\n"));
    socket.rest()
}

#[test]
fn a_reset_comes_before_any_byte() {
    let node = Node::with(r#"{"abort":"reset"}"#);
    for method in ["GET", "HEAD"] {
        assert_eq!(broken(&node, method, "1.1"), (Vec::new(), End::Reset));
    }
    assert_eq!(node.faults()["observed"]["aborted"]["reset"], 2);
}

#[test]
fn an_empty_answer_is_a_clean_end_without_a_byte() {
    let node = Node::with(r#"{"abort":"empty"}"#);
    assert_eq!(broken(&node, "GET", "1.1"), (Vec::new(), End::Closed));
    assert_eq!(broken(&node, "GET", "1.0"), (Vec::new(), End::Closed));
    // What the client had sent beyond the request must not turn the end into a reset.
    let mut socket = node.connect();
    socket.send(&format!("GET / HTTP/1.1\r\nhost: x\r\n\r\n{}", "GET / HTTP/1.1\r\nhost: x\r\n\r\n".repeat(2000)));
    assert_eq!(socket.rest().0, b"");
    assert_eq!(node.faults()["observed"]["aborted"]["empty"], 3);
}

#[test]
fn garbage_is_no_http() {
    let node = Node::with(r#"{"abort":"garbage"}"#);
    let (first, end) = broken(&node, "GET", "1.1");
    assert!(!first.is_empty() && !first.starts_with(b"H") && !first[0].is_ascii(), "{first:?}");
    assert_eq!(end, End::Closed);
    assert_ne!(broken(&node, "GET", "1.1").0, first);
}

#[test]
fn a_truncated_answer_has_a_good_head_and_ends_within_a_chunk() {
    let node = Node::with(r#"{"abort":"truncate"}"#);
    let (bytes, end) = broken(&node, "GET", "1.1");
    assert_eq!(end, End::Closed);
    let text = String::from_utf8(bytes).expect("UTF-8");
    let (head, body) = text.split_once("\r\n\r\n").expect("a whole head");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains("\r\ntransfer-encoding: chunked"), "{head}");
    assert!(head.contains("\r\ncontent-type: application/json") && !head.contains("content-length"), "{head}");
    let (size, chunk) = body.split_once("\r\n").expect("a chunk's size");
    let size = usize::from_str_radix(size, 16).expect("hexadecimal");
    assert!(!chunk.is_empty() && chunk.len() < size && chunk.starts_with("{\"host\":\"node\""), "{size}: {chunk}");
}

#[test]
fn without_chunks_the_cut_is_within_the_length_and_without_a_body_within_the_head() {
    let node = Node::with(r#"{"abort":"truncate"}"#);
    let text = String::from_utf8(broken(&node, "GET", "1.0").0).expect("UTF-8");
    let (head, body) = text.split_once("\r\n\r\n").expect("a whole head");
    assert!(head.starts_with("HTTP/1.0 200 OK\r\n") && !head.contains("chunked"), "{head}");
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).expect("a length");
    assert!(!body.is_empty() && body.len() < length.parse().expect("a number"), "{length}: {body}");

    let head = String::from_utf8(broken(&node, "HEAD", "1.1").0).expect("UTF-8");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && !head.contains("\r\n\r\n"), "{head}");
}

#[test]
fn a_node_in_front_tells_the_four_apart_from_each_other() {
    let node = Node::start(&[]);
    let front = node.front();
    for (abort, reason) in [("reset", "reset"), ("empty", "closed"), ("garbage", "protocol"), ("truncate", "truncated")]
    {
        // With a connection from before, and without.
        for _ in 0..2 {
            node.put(&format!(r#"{{"abort":"{abort}"}}"#));
            let answer = front.get("/");
            assert!(answer.msg().starts_with(&format!("{reason}: ")), "{abort}: {}", answer.msg());
            assert_eq!(answer.header("cascade-reason"), Some(format!("{reason}; hop=2").as_str()));
            node.clear();
            assert_eq!(front.get("/").json()["msg"], serde_json::Value::Null);
        }
    }
}

#[test]
fn answers_to_earlier_requests_of_the_same_packet_come_whole() {
    for (abort, after) in [("empty", ""), ("truncate", "HTTP/1.1 200 OK\r\n")] {
        let node = Node::with(&format!(r#"{{"abort":"{abort}","every_nth":4}}"#));
        let mut socket = node.connect();
        socket.send(&"GET / HTTP/1.1\r\nhost: x\r\n\r\n".repeat(6));
        for _ in 0..3 {
            assert_eq!(socket.answer(true).status, 200, "{abort}");
        }
        let rest = String::from_utf8(socket.rest().0).expect("UTF-8");
        assert!(rest.starts_with(after) && rest.is_empty() == after.is_empty(), "{abort}: {rest}");
        assert_eq!(node.faults()["observed"]["aborted"][abort], 1);
    }
}

#[test]
fn no_answer_is_lost_when_the_connection_closes_and_more_was_sent() {
    let node = Node::start(&[]);
    let mut socket = node.connect();
    socket.send("GET / HTTP/1.1\r\nhost: x\r\n\r\nGET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n\r\nGET");
    assert_eq!((socket.answer(true).status, socket.answer(true).status), (200, 200));

    node.put(r#"{"abort":"truncate","every_nth":2,"dribble":"100ms"}"#);
    let mut socket = node.connect();
    socket.send(&"GET / HTTP/1.1\r\nhost: x\r\n\r\n".repeat(3));
    assert_eq!(socket.answer(true).status, 200);
    assert!(socket.rest().0.starts_with(b"HTTP/1.1 200 OK\r\n"));
}

#[test]
fn an_abort_can_be_how_the_chosen_requests_fail_or_have_a_rate_of_its_own() {
    let node = Node::with(r#"{"abort":"empty","fail_next":1}"#);
    assert_eq!(broken(&node, "GET", "1.1"), (Vec::new(), End::Closed));
    assert_eq!(node.get("/").status, 200);
    node.put(r#"{"abort":"empty","abort_rate":1,"fail_next":1,"status":500}"#);
    assert_eq!(node.get("/").status, 500);
    assert_eq!(broken(&node, "GET", "1.1"), (Vec::new(), End::Closed));
}

/// Waits `PATIENCE` at most.
async fn soon<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(super::node::PATIENCE, work).await.expect("in time")
}

#[tokio::test]
async fn on_http2_only_the_one_stream_is_reset() {
    let node = Node::start(&[]);
    let stream = tokio::net::TcpStream::connect(("127.0.0.1", node.port)).await.expect("the node listens");
    let (mut sender, connection) =
        http2::handshake::<_, _, Empty<Bytes>>(TokioExecutor::new(), TokioIo::new(stream)).await.expect("HTTP/2");
    tokio::spawn(connection);
    let request = || Request::get(format!("http://127.0.0.1:{}/", node.port)).body(Empty::new()).expect("a request");

    for abort in ["reset", "empty", "garbage", "truncate"] {
        node.put(&format!(r#"{{"abort":"{abort}","fail_next":1}}"#));
        match soon(sender.send_request(request())).await {
            Ok(response) => {
                assert_eq!((abort, response.status().as_u16()), ("truncate", 200));
                soon(response.into_body().collect()).await.expect_err("cut in the middle");
            }
            Err(error) => {
                assert_ne!(abort, "truncate", "{error:?}");
                assert!(!sender.is_closed(), "{abort}: the connection is gone");
            }
        }
        let response = soon(sender.send_request(request())).await.expect("the connection lives");
        assert_eq!(response.status(), 200);
        let body = soon(response.into_body().collect()).await.expect("the whole body").to_bytes();
        assert!(body.ends_with(b"\"msg\":null}"), "{body:?}");
        assert_eq!(node.faults()["observed"]["aborted"][abort], 1);
    }
}
