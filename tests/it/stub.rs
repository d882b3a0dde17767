//! The stand-in for WireMock: its workers, its faults on the wire, its admin API.

use std::io::Write as _;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{Node, Socket, Start, eventually, timed};

const ARTICLE_SLOW: &str = r#"{"request":{"method":"GET","urlPathPattern":"/gimme/200*"},"response":{"status":200,"fixedDelayMilliseconds":7000,"body":"{\"response\":\"200 after 7s\"}"}}"#;
const ARTICLE_FAST: &str = r#"{"request":{"method":"GET","urlPathPattern":"/gimme/200*"},"response":{"status":200,"body":"{\"response\":\"200\"}"}}"#;

fn stub(flags: &str) -> Node {
    Start::node().flags("stub").flags(flags).start()
}

/// A stub with this mapping.
fn answering(flags: &str, mapping: Value) -> Node {
    let stub = stub(flags);
    let added = stub.send("POST", "/__admin/mappings", &mapping.to_string());
    assert_eq!(added.status, 201, "{}", added.text());
    stub
}

fn directory(files: &[(&str, &str)]) -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    for (name, text) in files {
        let path = directory.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
        std::fs::File::create(path).and_then(|mut file| file.write_all(text.as_bytes())).expect("a file");
    }
    directory
}

fn gauge(stub: &Node, name: &str) -> u64 {
    stub.get("/__admin/rest-cascade/workers").json()[name].as_u64().expect("a number")
}

fn asking(stub: &Node, count: usize) -> Vec<Socket> {
    (0..count)
        .map(|_| {
            let mut socket = stub.connect();
            socket.send("GET / HTTP/1.1\r\nhost: x\r\n\r\n");
            socket
        })
        .collect()
}

#[test]
fn the_articles_mappings_load_unchanged_each_into_its_own_instance() {
    for (mapping, body) in [(ARTICLE_SLOW.replace("7000", "70"), "200 after 7s"), (ARTICLE_FAST.to_owned(), "200")] {
        let mappings = directory(&[("mappings/gimme.json", &mapping)]);
        let stub = Start::node().flags("stub --mappings").arg(mappings.path().join("mappings")).start();
        let answer = stub.get("/gimme/200");
        assert_eq!((answer.status, &answer.json()["response"]), (200, &json!(body)));
        assert!(answer.header("matched-stub-id").is_some());
        assert_eq!((stub.get("/gimme/20").status, stub.get("/gimme/200/x").status), (200, 404));
    }
}

#[test]
fn two_hundred_threads_work_on_197_requests_and_the_next_one_waits() {
    let stub = answering("--container-threads 200", json!({"response": {"fixedDelayMilliseconds": 1500}}));
    let mut sockets = asking(&stub, 198);
    eventually("all are taken", || gauge(&stub, "queued") == 1);
    assert_eq!((gauge(&stub, "workers"), gauge(&stub, "busy")), (197, 197));
    let last = sockets.pop().map(|mut socket| socket.answer().status);
    assert!(sockets.iter_mut().all(|socket| socket.answer().status == 200));
    assert_eq!(last, Some(200));
    assert_eq!(gauge(&stub, "worked"), 199, "one of them was the mapping itself");
}

#[test]
fn a_job_goes_on_when_its_client_has_gone_unless_told_otherwise() {
    for (flags, dead_worked, skipped) in
        [("--dead-work work", 3, 0), ("--dead-work skip", 1, 2), ("--dead-work cancel", 0, 3)]
    {
        let one = format!("--container-threads 2 --jetty-acceptor-threads 1 {flags}");
        let stub = answering(&one, json!({"response": {"fixedDelayMilliseconds": 300}}));
        let sockets = asking(&stub, 3);
        eventually("one works and two wait", || gauge(&stub, "queued") == 2);
        drop(sockets);
        let settled = || gauge(&stub, "deadWorked") == dead_worked && gauge(&stub, "skipped") == skipped;
        eventually(flags, || settled() && gauge(&stub, "busy") == 0);
    }
}

#[test]
fn a_full_queue_refuses_or_closes() {
    for (what, ends) in [("503", Some(503)), ("close", None)] {
        let flags = format!("--container-threads 4 --queue 0 --on-queue-full {what}");
        let stub = answering(&flags, json!({"response": {"fixedDelayMilliseconds": 600}}));
        let mut busy = asking(&stub, 1);
        eventually("it works", || gauge(&stub, "busy") == 1);
        let mut refused = stub.connect();
        refused.send("GET / HTTP/1.1\r\nhost: x\r\n\r\n");
        assert_eq!(refused.try_answer().ok().map(|answer| answer.status), ends, "{what}");
        assert_eq!(busy[0].answer().status, 200);
    }
}

#[test]
fn without_a_thread_for_each_answer_nobody_waits() {
    let stub = answering(
        "--container-threads 4 --async-response-enabled",
        json!({"response": {"fixedDelayMilliseconds": 500}}),
    );
    let (_, took) = timed(|| asking(&stub, 20).iter_mut().for_each(|socket| assert_eq!(socket.answer().status, 200)));
    assert!(took < Duration::from_secs(5), "{took:?}: one after the other it is 10 s");
}

#[test]
fn with_keep_alive_first_a_connection_that_was_just_answered_passes_the_queue() {
    for (order, passes) in [("fifo", false), ("keep-alive-first", true)] {
        let flags = format!("--container-threads 4 --queue-order {order} --keep-alive-window 10s");
        let stub = answering(&flags, json!({"response": {"fixedDelayMilliseconds": 700}}));
        let mut first = stub.connect();
        first.send("GET / HTTP/1.1\r\nhost: x\r\n\r\n");
        let mut rest = asking(&stub, 1);
        eventually("one waits", || gauge(&stub, "queued") == 1);
        assert_eq!(first.answer().status, 200);
        // At once on the same connection, while the other one still waits or has only begun.
        let (answer, took) = timed(|| first.get("/"));
        assert_eq!(answer.status, 200);
        assert_eq!(took < Duration::from_millis(1300), passes, "{order}: {took:?}");
        if !passes {
            assert_eq!(rest[0].answer().status, 200);
        }
    }
}

#[test]
fn the_four_faults_look_on_the_wire_as_wiremocks_do() {
    const GARBAGE: &[u8] = b"lskdu018973t09sylgasjkfg1][]'./.sdlv";
    let raw = |fault: &str| {
        let stub = answering("", json!({"response": {"fault": fault}}));
        let mut socket = stub.connect();
        socket.send("GET / HTTP/1.1\r\nhost: x\r\n\r\n");
        socket.until_closed()
    };
    assert_eq!(raw("EMPTY_RESPONSE"), b"");
    assert_eq!(raw("CONNECTION_RESET_BY_PEER"), b"");
    assert_eq!(raw("RANDOM_DATA_THEN_CLOSE"), GARBAGE);
    let malformed = raw("MALFORMED_RESPONSE_CHUNK");
    assert!(malformed.starts_with(b"HTTP/1.1 200 OK\r\n") && malformed.ends_with(GARBAGE));
    // And to a node that calls it.
    for (fault, reason) in [
        ("EMPTY_RESPONSE", "closed"),
        ("CONNECTION_RESET_BY_PEER", "reset"),
        ("RANDOM_DATA_THEN_CLOSE", "protocol"),
        ("MALFORMED_RESPONSE_CHUNK", "truncated"),
    ] {
        let stub = answering("", json!({"response": {"fault": fault}}));
        assert_eq!(Start::calling(stub.uri()).start().get("/").reason(), reason, "{fault}");
    }
}

#[test]
fn a_dribbled_body_comes_whole_and_holds_its_worker_all_the_time() {
    let dribble = json!({"numberOfChunks": 5, "totalDuration": 500});
    let stub =
        answering("--container-threads 4", json!({"response": {"body": "0123456789", "chunkedDribbleDelay": dribble}}));
    let mut socket = stub.connect();
    socket.send("GET / HTTP/1.1\r\nhost: x\r\n\r\n");
    eventually("it works", || gauge(&stub, "busy") == 1);
    let (answer, took) = timed(|| socket.answer());
    assert_eq!(answer.text(), "0123456789");
    assert!(took >= Duration::from_millis(300), "{took:?}");
    eventually("it is free", || gauge(&stub, "busy") == 0);
}

#[test]
fn mappings_can_be_added_shown_replaced_and_removed() {
    let stub = answering(
        "",
        json!({"request": {"url": "/a?b=c"}, "response": {"status": 201, "statusMessage": "So", "jsonBody": {"x": 1}, "headers": {"A": ["1", "2"]}}}),
    );
    let answer = stub.get("/a?b=c");
    assert_eq!((answer.status, answer.text()), (201, "{\"x\":1}"));
    assert_eq!(answer.status_line, "HTTP/1.1 201 So");
    assert_eq!(answer.headers.iter().filter(|(name, _)| name == "a").count(), 2);
    let all = stub.get("/__admin/mappings").json();
    assert_eq!(all["meta"]["total"], 1);
    let id = all["mappings"][0]["id"].as_str().expect("an id").to_owned();
    assert_eq!(answer.header("matched-stub-id"), Some(id.as_str()));
    let path = format!("/__admin/mappings/{id}");
    let replaced = stub.send("PUT", &path, "{\"request\":{\"url\":\"/b\"},\"response\":{}}");
    assert_eq!((replaced.status, &replaced.json()["id"]), (200, &json!(id)));
    assert_eq!((stub.get("/a?b=c").status, stub.get("/b").status), (404, 200));
    assert_eq!(stub.send("DELETE", &path, "").status, 200);
    assert_eq!((stub.send("DELETE", &path, "").status, stub.get(&path).status), (404, 404));
    let nothing = stub.get("/b");
    assert!(nothing.text().contains("there are no stub mappings in this WireMock instance"), "{}", nothing.text());
}

#[test]
fn the_journal_the_settings_and_the_rest_of_the_api_answer() {
    let stub = answering("", json!({"request": {"urlPath": "/a"}}));
    stub.get("/a");
    stub.get("/nowhere");
    let count = |pattern: &str| stub.send("POST", "/__admin/requests/count", pattern).json()["count"].clone();
    assert_eq!((count("{\"urlPath\":\"/a\"}"), count("{\"method\":\"GET\"}")), (json!(1), json!(2)));
    assert_eq!(stub.get("/__admin/requests").json()["meta"]["total"], 2);
    assert_eq!(stub.send("DELETE", "/__admin/requests", "").status, 200);
    assert_eq!(count("{}"), 0);
    assert_eq!(stub.send("POST", "/__admin/settings", "{\"fixedDelay\":300}").status, 200);
    let (_, took) = timed(|| stub.get("/a"));
    assert!(took >= Duration::from_millis(300), "{took:?}");
    assert_eq!(stub.get("/__admin/health").status, 200);
    assert!(stub.get("/__admin/version").json()["version"].is_string());
    assert_eq!(stub.send("POST", "/__admin/reset", "").status, 200);
    assert_eq!((stub.get("/a").status, stub.get("/__admin/nothing").status), (404, 404));
    let mut ending = stub;
    assert_eq!(ending.send("POST", "/__admin/shutdown", "").status, 200);
    assert!(ending.end().success());
    let silent = answering("--no-request-journal", json!({"request": {"urlPath": "/a"}}));
    silent.get("/a");
    assert_eq!(silent.get("/__admin/requests").json()["requestJournalDisabled"], true);
}

#[test]
fn what_is_not_understood_is_refused_with_422_and_named() {
    let stub = stub("");
    for (mapping, part) in [
        ("{\"respnse\":{}}", "respnse"),
        ("{\"response\":{\"proxyBaseUrl\":\"http://x\"}}", "proxyBaseUrl"),
        ("no json", "must be a JSON object"),
    ] {
        let refused = stub.send("POST", "/__admin/mappings", mapping);
        assert_eq!(refused.status, 422);
        let detail = refused.json()["errors"][0]["detail"].as_str().unwrap_or_default().to_owned();
        assert!(detail.contains(part), "{detail}");
    }
    assert_eq!(stub.get("/__admin/mappings").json()["meta"]["total"], 0);
}

#[test]
fn a_wrong_start_ends_with_code_2_and_one_line_before_the_port_opens() {
    let broken = directory(&[("mappings/a.json", "{}"), ("mappings/b.json", "{\"response\":{\"stat\":200}}")]);
    let missing = directory(&[("mappings/a.json", "{\"response\":{\"bodyFileName\":\"none.json\"}}")]);
    let mappings = |directory: &tempfile::TempDir| directory.path().join("mappings").to_string_lossy().into_owned();
    for (flags, parts) in [
        (format!("--mappings {}", mappings(&broken)), &["b.json", "stat"][..]),
        (format!("--mappings {}", mappings(&missing)), &["a.json", "none.json"]),
        ("--mappings /no/such/directory".to_owned(), &["/no/such/directory"]),
        ("--container-threads 3".to_owned(), &["--container-threads 3", "leaves no worker"]),
        ("--container-threads 0".to_owned(), &["'0'", "--container-threads", "must be from 1"]),
        ("--dead-work sleep".to_owned(), &["sleep", "work, skip or cancel"]),
        ("--control-listen 127.0.0.1:0".to_owned(), &["--control-listen"]),
    ] {
        let refusal = Start::node().flags("stub").flags(&flags).run();
        assert_eq!(refusal.code, Some(2), "{flags}: {refusal:?}");
        let error = refusal.stderr.lines().last().unwrap_or_default();
        assert!(parts.iter().all(|part| error.contains(part)), "{flags}: {error}");
    }
}

#[test]
fn bodies_come_from_files_beside_the_mappings() {
    let root = directory(&[
        ("mappings/a.json", "{\"request\":{\"urlPath\":\"/a\"},\"response\":{\"bodyFileName\":\"sub/a.txt\"}}"),
        ("__files/sub/a.txt", "from a file"),
    ]);
    for path in [root.path().join("mappings"), root.path().to_owned()] {
        let stub = Start::node().flags("stub --mappings").arg(path).start();
        assert_eq!(stub.get("/a").text(), "from a file");
    }
}

#[test]
fn a_signal_ends_it_though_all_workers_are_busy() {
    let mut stub = answering("--container-threads 4", json!({"response": {"fixedDelayMilliseconds": 60_000}}));
    let _busy = asking(&stub, 5);
    eventually("all work", || gauge(&stub, "busy") == 1 && gauge(&stub, "queued") == 4);
    stub.signal(rustix::process::Signal::TERM);
    assert!(stub.end().success());
}
