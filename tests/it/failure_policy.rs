//! What becomes of a failure: degrade, propagate, map.

use crate::support::{BlackHole, Start, Upstream};

fn target_sending(raw: &'static str) -> Upstream {
    Upstream::answering(move |peer, _| {
        peer.send(raw);
        peer.close();
    })
}

#[test]
fn propagate_gives_the_status_that_a_proxy_would_give() {
    let mut refused = Upstream::leaf();
    refused.stop();
    let hole = BlackHole::new();
    let silent = Upstream::answering(|peer, _| peer.until_gone());
    let deep = Upstream::answering(|peer, _| peer.json(&("[".repeat(99) + &"]".repeat(99))));
    let large = Upstream::answering(|peer, _| peer.json(&"1".repeat(1024 * 1024 + 1)));
    let reset = Upstream::answering(|peer, _| peer.reset());
    let no_http = target_sending("SSH-2.0-x\r\n");
    let cut = target_sending("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{");
    let html = target_sending("HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\n<html>");
    let empty = target_sending("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
    let moved = target_sending("HTTP/1.1 302 Found\r\nlocation: /x\r\ncontent-length: 0\r\n\r\n");
    let gone = target_sending("HTTP/1.1 410 Gone\r\ncontent-length: 0\r\n\r\n");
    let hangs_up = target_sending("");
    for (uri, reason, status) in [
        (refused.uri(), "refused", 503),
        (hole.uri(), "connect_timeout", 503),
        ("http://no-such.invalid".to_owned(), "dns", 503),
        (reset.uri(), "reset", 503),
        (hangs_up.uri(), "closed", 503),
        (silent.uri(), "timeout", 504),
        (deep.uri(), "too_deep", 508),
        (large.uri(), "too_large", 502),
        (no_http.uri(), "protocol", 502),
        (cut.uri(), "truncated", 502),
        (html.uri(), "bad_json", 502),
        (empty.uri(), "empty", 502),
        (moved.uri(), "redirect", 502),
        (gone.uri(), "bad_status", 410),
    ] {
        let flags = "--on-failure propagate --timeout 2s --connect-timeout 500ms";
        let answer = Start::calling(&uri).flags(flags).start().get("/");
        assert_eq!((answer.reason().as_str(), answer.status), (reason, status), "{uri}: {}", answer.text());
        assert!(answer.json()["responseInfo"].is_null());
        assert_eq!(answer.header("cascade-status"), Some("partial"));
        assert_eq!(answer.header("cascade-reason"), Some(format!("{reason}; hop=2").as_str()));
    }
}

#[test]
fn map_gives_the_status_it_names_whatever_failed() {
    let gone = target_sending("HTTP/1.1 410 Gone\r\ncontent-length: 0\r\n\r\n");
    let node = Start::calling(gone.uri()).flags("--on-failure map=418").start();
    let answer = node.get("/");
    assert_eq!((answer.status, answer.reason().as_str()), (418, "bad_status"));
}

#[test]
fn a_failure_passed_on_keeps_its_reason_and_its_place() {
    let mut refused = Upstream::leaf();
    refused.stop();
    let cascade = crate::support::Cascade::ending_at(&refused.uri(), 3, |start| start.flags("--on-failure propagate"));
    let answer = cascade.get("/");
    assert_eq!(answer.status, 503);
    assert_eq!(answer.header("cascade-reason"), Some("refused; hop=4"));
    assert_eq!(answer.reason(), "bad_status");
    assert_eq!(cascade.nodes()[0].metric(&["requests_total", "status=\"503\"", "outcome=\"failed\""]), 1.0);
}

#[test]
fn a_status_that_is_no_final_answer_is_not_passed_on() {
    for raw in [
        "HTTP/1.1 999 Odd\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 600 Odd\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
    ] {
        let odd = target_sending(raw);
        let answer = Start::calling(odd.uri()).flags("--on-failure propagate").start().get("/");
        assert_eq!((answer.status, answer.reason().as_str()), (502, "bad_status"), "{raw}");
    }
}
