//! A target gone mad: ten thousand answers of random bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::support::{Start, Upstream};

const ANSWERS: usize = 10_000;
/// The same bytes in each run; a failure can be seen again.
const SEED: u64 = 42;

const PIECES: [&[u8]; 24] = [
    b"HTTP/1.1 ",
    b"HTTP/1.0 ",
    b"HTTP/2 ",
    b"200",
    b"204",
    b"304",
    b"101",
    b"100",
    b"999",
    b" OK",
    b"\r\n",
    b"\n",
    b"\r\n\r\n",
    b"content-length: ",
    b"transfer-encoding: chunked\r\n",
    b"18446744073709551616",
    b"-1",
    b"0",
    b"5",
    b"connection: close\r\n",
    b"content-encoding: gzip\r\n",
    b": ",
    b"{\"a\":1}",
    b"[[[[[[[[",
];

/// Random bytes, a broken good answer, or pieces of answers in any order.
fn answer(rng: &mut StdRng) -> Vec<u8> {
    match rng.random_range(0..4) {
        0 => (0..rng.random_range(0..300)).map(|_| rng.random()).collect(),
        1 => (0..rng.random_range(1..20)).flat_map(|_| PIECES[rng.random_range(0..PIECES.len())]).copied().collect(),
        2 => {
            let mut raw = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n7\r\n{\"a\":1}\r\n0\r\n\r\n".to_vec();
            mutate(&mut raw, rng);
            raw
        }
        _ => {
            let mut raw =
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 7\r\n\r\n{\"a\":1}".to_vec();
            mutate(&mut raw, rng);
            raw
        }
    }
}

fn mutate(raw: &mut Vec<u8>, rng: &mut StdRng) {
    for _ in 0..rng.random_range(0..4) {
        let at = rng.random_range(0..raw.len());
        match rng.random_range(0..4) {
            0 => raw[at] = rng.random(),
            1 => drop(raw.remove(at)),
            2 => raw.insert(at, rng.random()),
            _ => raw.truncate(at.max(1)),
        }
    }
}

#[test]
fn whatever_bytes_the_target_sends_every_answer_is_a_good_one() {
    let sent = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&sent);
    let upstream = Upstream::answering(move |peer, _| {
        let number = count.fetch_add(1, SeqCst);
        let mut rng = StdRng::seed_from_u64(SEED + number as u64);
        let raw = answer(&mut rng);
        // In random pieces, as a network may deliver it.
        let split = rng.random_range(0..=raw.len());
        peer.send(&raw[..split]);
        peer.send(&raw[split..]);
        // Mostly hangs up; else the next answer comes on the same connection, or none until the time-out.
        if rng.random_range(0..20) > 0 {
            peer.close();
        }
    });
    let mut node = Start::calling(upstream.uri()).flags("--timeout 200ms --access-log off").start();
    let pid = node.pid();
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut socket = node.connect();
                while sent.load(SeqCst) < ANSWERS {
                    let answer = socket.get("/");
                    assert_eq!(answer.status, 200);
                    let json = answer.json();
                    let members: Vec<&str> = json.as_object().expect("an object").keys().map(String::as_str).collect();
                    assert_eq!(members.len(), 5, "{json}");
                    // Either an answer or a reason, never both or none.
                    assert_ne!(json["responseInfo"].is_null(), json["msg"].is_null(), "{json}");
                    let reason = answer.reason();
                    let known = [
                        "",
                        "truncated",
                        "protocol",
                        "closed",
                        "reset",
                        "bad_status",
                        "bad_json",
                        "empty",
                        "too_large",
                        "redirect",
                        "timeout",
                        "connect_timeout",
                        "too_deep",
                    ];
                    assert!(known.contains(&reason.as_str()), "{json}");
                }
            });
        }
    });
    assert!(node.is_running() && node.pid() == pid);
    assert!(!node.log.lines().iter().any(|line| line.contains("panicked")), "{}", node.log.lines().join("\n"));
}
