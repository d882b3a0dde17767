//! What a load writes: ab's table, JSON, CSV, a page; and that no password is in any of it.

use std::fs;

use serde_json::json;

use super::{figures, stress};
use crate::support::{Node, Upstream};

#[test]
fn the_table_has_the_rows_of_ab() {
    let upstream = Upstream::answering(|peer, _| {
        peer.send("HTTP/1.1 200 OK\r\nserver: teapot/1\r\ncontent-length: 5\r\n\r\nhello");
    });
    let ended = stress("-n 40 -c 4 -k", format!("{}/a?b=c", upstream.uri())).run();
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{ended:?}");
    let rows: Vec<&str> = ended.stdout.lines().map(str::trim_end).collect();
    for row in [
        "Server Software:        teapot/1",
        "Server Hostname:        127.0.0.1",
        "Document Path:          /a?b=c",
        "Document Length:        5 bytes",
        "Concurrency Level:      4",
        "Complete requests:      40",
        "Failed requests:        0",
        "Keep-Alive requests:    40",
        "HTML transferred:       200 bytes",
        "Connection Times (ms)",
        "Percentage of the requests served within a certain time (ms)",
    ] {
        assert!(rows.contains(&row), "{row:?} is missing:\n{}", ended.stdout);
    }
    for begin in ["Time taken for tests:", "Total transferred:", "Requests per second:", "Transfer rate:"] {
        assert_eq!(rows.iter().filter(|row| row.starts_with(begin)).count(), 1, "{begin}\n{}", ended.stdout);
    }
    assert_eq!(rows.iter().filter(|row| row.starts_with("Time per request:")).count(), 2, "{}", ended.stdout);
    for percent in [50, 66, 75, 80, 90, 95, 98, 99, 100] {
        let begin = format!(" {percent:>3}% ");
        assert!(rows.iter().any(|row| row.starts_with(&begin)), "{begin:?} is missing:\n{}", ended.stdout);
    }
    for begin in ["Connect:", "Processing:", "Waiting:", "Total:"] {
        assert!(rows.iter().any(|row| row.starts_with(begin)), "{begin} is missing:\n{}", ended.stdout);
    }
}

#[test]
fn csv_has_a_line_for_each_second_and_the_page_its_charts() {
    let upstream = Upstream::answering(|peer, request| match request.connection % 5 {
        0 => peer.send("HTTP/1.1 504 Late\r\ncontent-length: 0\r\n\r\n"),
        _ => peer.json("{}"),
    });
    let folder = tempfile::tempdir().expect("a folder");
    let (csv, html) = (folder.path().join("s.csv"), folder.path().join("s.html"));
    let ended = stress("--rate 20 --duration 2s", upstream.uri()).arg("--csv").arg(&csv).arg("--html").arg(&html).run();
    assert_eq!(ended.code, Some(1), "{ended:?}");

    let text = fs::read_to_string(csv).expect("written");
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!(lines[0], ["t", "ok", "partial", "ko", "504"]);
    assert!(lines.len() >= 3 && lines.iter().all(|line| line.len() == 5), "{text}");
    let column = |place: usize| lines[1..].iter().map(|line| line[place].parse::<u64>().expect("a count")).sum::<u64>();
    assert_eq!([column(1), column(2), column(3), column(4)], [32, 0, 8, 8], "{text}");

    let page = fs::read_to_string(html).expect("written");
    assert_eq!(page.matches("<svg").count(), 2);
    for part in ["<!DOCTYPE html>", "responses a second", "latency in ms", "504", "Generator lateness", &upstream.uri()]
    {
        assert!(page.contains(part), "{part} is missing");
    }
    for from_elsewhere in ["src=", "href=", "<link", "<script"] {
        assert!(!page.contains(from_elsewhere), "{from_elsewhere}");
    }
}

#[test]
fn json_is_one_object_in_the_shape_of_a_step() {
    let node = Node::leaf();
    let (figures, _) = figures("-n 20 -c 2", node.uri());
    for name in ["name", "total", "ok", "ko", "partial", "errors", "ms", "per_second", "warnings"] {
        assert!(figures.get(name).is_some(), "no {name} in {figures}");
    }
    assert_eq!(figures["per_second"][0]["t"], 0);
    assert_eq!(figures["lateness_ms"], json!(null), "a closed loop is never late");
}

#[test]
fn user_and_password_are_sent_and_in_no_output() {
    let upstream = Upstream::leaf();
    let folder = tempfile::tempdir().expect("a folder");
    let html = folder.path().join("s.html");
    let url = upstream.uri().replace("http://", "http://user:s3cret@");
    let ended = stress("-n 2 -c 1", &url).arg("--html").arg(&html).run();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(upstream.requests()[0].header("authorization"), Some("Basic dXNlcjpzM2NyZXQ="));
    let page = fs::read_to_string(html).expect("written");
    let dead = stress("-n 2 -c 1", "http://user:s3cret@nobody.invalid/").run();
    for text in [&ended.stdout, &ended.stderr, &page, &dead.stdout, &dead.stderr] {
        assert!(!text.contains("s3cret"), "{text}");
    }
}

#[test]
fn headers_and_method_are_sent_as_told() {
    let upstream = Upstream::answering(|peer, _| peer.send("HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n"));
    let start = stress("-n 4 -c 1 -k --head --json", upstream.uri());
    let ended = start.arg("-H").arg("X-Team: blue").arg("-H").arg("Host: a.example").run();
    assert_eq!(super::counts(&super::read(&ended).0), [4, 0, 0], "{ended:?}");
    let request = upstream.until_request(4);
    assert_eq!((request.connection, request.header("x-team")), (1, Some("blue")));
    assert_eq!(request.header("host"), Some("a.example"));
}
