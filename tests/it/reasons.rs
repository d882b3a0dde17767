//! Every way an answer of the next node can be wrong, told apart.

use std::time::Duration;

use crate::support::{BlackHole, Node, Peer, Request, Start, Upstream, timed};

fn node_calling(script: impl Fn(&mut Peer, &Request) + Send + Sync + 'static) -> (Node, Upstream) {
    let upstream = Upstream::answering(script);
    (Start::calling(upstream.uri()).flags("--timeout 5s").start(), upstream)
}

/// Asks a node whose target sends `raw` and then closes, if it is told to.
#[track_caller]
fn expect(reason: &str, raw: impl AsRef<[u8]>, closes: bool) {
    let raw = raw.as_ref().to_vec();
    let shown = String::from_utf8_lossy(&raw[..raw.len().min(200)]).into_owned();
    let (node, upstream) = node_calling(move |peer, _| {
        peer.send(&raw);
        if closes {
            peer.close();
        }
    });
    let answer = node.get("/");
    let json = answer.json();
    assert_eq!(answer.status, 200, "{shown:?}");
    if reason.is_empty() {
        assert!(answer.is_complete(), "{shown:?} gave {}", answer.text());
        return;
    }
    assert_eq!(answer.reason(), reason, "{shown:?} gave {}", answer.text());
    assert!(json["responseInfo"].is_null());
    assert!(json["msg"].as_str().is_some_and(|msg| msg.contains(&upstream.uri())), "msg names no target: {json}");
    assert_eq!(answer.header("cascade-reason"), Some(format!("{reason}; hop=2").as_str()));
    assert_eq!(answer.header("cascade-status"), Some("partial"));
    assert_eq!(answer.header("cascade-depth"), Some("1"));
    assert_eq!(node.metric(&["downstream_calls_total", &format!("reason=\"{reason}\"")]), 1.0);
}

fn ok(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

#[test]
fn what_is_not_json_is_bad_json_and_never_nested() {
    expect("bad_json", ok("<html>\"},\"host\":\"evil\"</html>"), false);
    expect("bad_json", ok("{\"a\":1}{\"host\":\"evil\"}"), false);
    expect("bad_json", ok("{\"a\":"), false);
    expect("bad_json", b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n\"\xff\xfe\"", false);
    let gzip = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xab\xae\x05\x00\x43\xbf\xa6\xa3\x02\x00\x00\x00";
    let head = format!("HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: {}\r\n\r\n", gzip.len());
    expect("bad_json", [head.as_bytes(), gzip].concat(), false);
}

#[test]
fn an_answer_without_a_body_is_empty() {
    expect("empty", ok(""), false);
    expect("empty", ok(" \r\n\t"), false);
    expect("empty", "HTTP/1.1 204 No Content\r\n\r\n", false);
    expect("empty", "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", false);
}

#[test]
fn bad_statuses_and_redirects_are_two_reasons() {
    for status in ["400 Bad Request", "404 Not Found", "500 Oops", "503 Busy", "599 Own", "999 Odd"] {
        expect("bad_status", format!("HTTP/1.1 {status}\r\ncontent-length: 2\r\n\r\n{{}}"), false);
    }
    for status in ["301 Moved", "302 Found", "304 Not Modified", "307 Temporary", "308 Permanent"] {
        let answer = format!("HTTP/1.1 {status}\r\nlocation: http://127.0.0.1:9/\r\ncontent-length: 0\r\n\r\n");
        expect("redirect", answer, false);
    }
}

#[test]
fn what_is_no_http_is_protocol() {
    expect("protocol", "SSH-2.0-OpenSSH_9.6\r\n", true);
    expect("protocol", "220 mail.example ESMTP\r\n", true);
    expect("protocol", b"\x15\x03\x01\x00\x02\x02\x46", true);
    expect("protocol", "HTTP/1.1 2000 OK\r\n\r\n", true);
    expect("protocol", "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n{}", true);
    expect("protocol", "HTTP/1.1 200 OK\r\nbad header\r\n\r\n", true);
}

#[test]
fn an_answer_cut_short_is_truncated() {
    expect("truncated", "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n{\"a\":", true);
    expect("truncated", "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\n{\"a\"", true);
    expect("truncated", "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n", true);
    expect("truncated", "HTTP/1.1 200 OK\r\ncontent-le", true);
}

#[test]
fn a_body_that_ends_with_the_connection_is_whole() {
    expect("", "HTTP/1.1 200 OK\r\n\r\n{\"a\":1}", true);
    expect("", "HTTP/1.0 200 OK\r\n\r\n{\"a\":1}", true);
}

#[test]
fn a_chunked_body_is_put_together_however_small_its_chunks() {
    let body = r#"{"a":[1,2,{"b":"ü"}],"c":"0123456789"}"#;
    let chunks: String = body
        .as_bytes()
        .iter()
        // One byte a chunk, also in the middle of a letter.
        .map(|byte| *byte as char)
        .map(|byte| format!("1\r\n{byte}\r\n"))
        .collect();
    let mut raw = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
    raw.extend(chunks.chars().map(|byte| byte as u8));
    raw.extend(b"0\r\n\r\n");
    let (node, _upstream) = node_calling(move |peer, _| raw.chunks(3).for_each(|part| peer.send(part)));
    let answer = node.get("/");
    assert!(answer.is_complete(), "{}", answer.text());
    assert!(answer.text().contains(body), "{}", answer.text());
}

#[test]
fn the_four_faults_of_wiremock_have_four_reasons() {
    let chunks = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nlskdu018973t09sylgasjkfg1][]'./.sdlv";
    expect("truncated", chunks, true);
    expect("protocol", "lskdu018973t09sylgasjkfg1][]'./.sdlv", true);
    expect("closed", "", true);
    let (node, _upstream) = node_calling(|peer, _| peer.reset());
    assert_eq!(node.get("/").reason(), "reset");
}

#[test]
fn a_reset_in_the_middle_of_an_answer_is_a_reset() {
    let (node, _upstream) = node_calling(|peer, _| {
        peer.send("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n{\"a\"");
        // The reset throws away what the other side has not read yet.
        std::thread::sleep(Duration::from_millis(100));
        peer.reset();
    });
    assert_eq!(node.get("/").reason(), "reset");
}

#[test]
fn informational_answers_before_the_real_one_are_passed_over() {
    for early in ["HTTP/1.1 100 Continue\r\n\r\n", "HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n"] {
        expect("", format!("{early}{early}{}", ok("{}")), false);
    }
    expect("bad_status", "HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n", true);
}

#[test]
fn json_nested_too_deep_is_refused_and_the_process_lives() {
    let (mut node, _upstream) = node_calling(|peer, request| {
        let depth: usize = request.target.trim_start_matches("/?").parse().expect("a depth");
        peer.json(&("[".repeat(depth) + &"]".repeat(depth)));
    });
    let pid = node.pid();
    for (depth, reason) in [(1, ""), (64, ""), (65, "too_deep"), (127, "too_deep"), (128, "too_deep")] {
        assert_eq!(node.get(&format!("/?{depth}")).reason(), reason, "{depth}");
    }
    assert_eq!(node.get("/?200").reason(), "too_deep");
    assert_eq!(node.get("/?100000").reason(), "too_deep");
    assert!(node.is_running() && node.pid() == pid);
    assert!(node.get("/?1").is_complete());
}

#[test]
fn more_than_a_mebibyte_is_too_large_and_an_endless_body_is_cut_off() {
    const MIB: usize = 1024 * 1024;
    let text = |length: usize| format!("\"{}\"", "x".repeat(length - 2));
    expect("", ok(&text(MIB)), false);
    expect("too_large", ok(&text(MIB + 1)), false);
    expect("too_large", format!("HTTP/1.1 200 OK\r\nx-long: {}\r\n\r\n", "x".repeat(200 * 1024)), false);
    let (node, upstream) = node_calling(|peer, _| {
        peer.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n");
        while peer.is_open() {
            peer.send(format!("1000\r\n{}\r\n", "1".repeat(0x1000)));
        }
    });
    assert_eq!(node.get("/").reason(), "too_large");
    upstream.until_nobody_is_there();
}

#[test]
fn refused_is_told_from_a_black_hole_and_from_a_name_that_is_none() {
    let mut closed = Upstream::leaf();
    closed.stop();
    let (answer, took) = timed(|| Start::calling(closed.uri()).start().get("/"));
    assert_eq!(answer.reason(), "refused");
    assert!(took < Duration::from_secs(2), "{took:?}");

    let hole = BlackHole::new();
    let node = Start::calling(hole.uri()).flags("--connect-timeout 400ms").start();
    let (answer, took) = timed(|| node.get("/"));
    assert_eq!(answer.reason(), "connect_timeout");
    assert!(took >= Duration::from_millis(390) && took < Duration::from_secs(5), "{took:?}");

    let node = Start::calling("http://no-such.invalid:1").start();
    let (answer, took) = timed(|| node.get("/"));
    assert_eq!(answer.reason(), "dns");
    assert!(answer.text().contains("http://no-such.invalid:1"), "{}", answer.text());
    assert!(took < Duration::from_secs(5), "{took:?}");
}

#[test]
fn a_name_that_cannot_be_resolved_is_told_at_start_and_the_node_runs_on() {
    let node = Start::calling("http://no-such.invalid:1").start();
    let line = node.log.until("no-such.invalid cannot be resolved");
    assert!(line.contains("WARN"), "{line}");
    assert_eq!(node.get("/").reason(), "dns");
    assert_eq!(node.get("/live").status, 200);
}
