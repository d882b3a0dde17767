//! `up`: a cascade on this machine, its control API, and that nothing of it is left behind.

use std::net::TcpListener;
use std::process::Stdio;

use reqwest::{Method, StatusCode};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::up_support::{Up, command, eventually, nodes_of, send, within};

#[tokio::test]
async fn a_request_to_the_head_passes_every_node() {
    let up = Up::start(&["3"]).await;
    let answer = up.get().await;
    assert_eq!(answer.status, StatusCode::OK);
    assert_eq!(answer.header("cascade-status"), "complete");
    assert_eq!(answer.header("cascade-depth"), "3");
    let mut below = &answer.json;
    for number in 1..=3 {
        let node = up.node(number).await;
        assert_eq!(below["host"], format!("service-{number}"));
        assert_eq!(below["port"], node["port"]);
        assert_eq!(below["msg"], Value::Null);
        below = &below["responseInfo"];
    }
    assert_eq!(*below, Value::Null);
}

#[tokio::test]
async fn the_control_api_shows_each_node_and_its_target() {
    let up = Up::start(&["2"]).await;
    eventually("node 2 is ready", async || up.node(2).await["ready"] == true).await;
    let (first, second) = (up.node(1).await, up.node(2).await);
    assert_eq!(first["target"], second["url"]);
    assert_eq!(
        second,
        json!({"node": 2, "name": "service-2", "url": second["url"], "port": second["port"], "pid": up.pids[1],
            "state": "running", "ready": true, "target": null, "restarts": 0})
    );
    assert_eq!(second["url"], format!("http://127.0.0.1:{}", second["port"]));
    let alone = up.ask(Method::GET, &format!("{}/2", up.control), &[]).await;
    assert_eq!((alone.status, &alone.json["name"]), (StatusCode::OK, &json!("service-2")));
}

#[tokio::test]
async fn a_killed_node_is_refused_and_comes_back_on_its_port() {
    let mut up = Up::start(&["3"]).await;
    let before = up.node(2).await;

    let killed = up.post("2/kill").await;
    assert_eq!(killed.status, StatusCode::OK);
    assert_eq!((&killed.json["state"], &killed.json["pid"]), (&json!("exited"), &Value::Null));
    up.tells("service-2 exited: signal 9 (SIGKILL)").await;
    let answer = up.get().await;
    assert_eq!(answer.status, StatusCode::OK);
    assert_eq!(answer.header("cascade-status"), "partial");
    assert_eq!(answer.header("cascade-reason"), "refused; hop=2");
    assert_eq!(answer.json["responseInfo"], Value::Null);

    let restarted = up.post("2/restart").await.json;
    up.tells("service-2 restarted: PID").await;
    assert_eq!((&restarted["state"], &restarted["restarts"]), (&json!("running"), &json!(1)));
    assert_ne!(restarted["pid"], before["pid"]);
    for same in ["port", "url", "name", "target"] {
        assert_eq!(restarted[same], before[same]);
    }
    assert_eq!(up.get().await.header("cascade-status"), "complete");
}

#[tokio::test]
async fn a_running_node_is_restarted_in_order() {
    let mut up = Up::start(&["1"]).await;
    let restarted = up.post("1/restart").await;
    assert_eq!(restarted.status, StatusCode::OK);
    assert_ne!(restarted.json["pid"], up.pids[0]);
    up.tells("service-1 stopped: code 0").await;
    up.tells("service-1 restarted").await;
    assert_eq!(up.get().await.header("cascade-status"), "complete");
}

#[tokio::test]
async fn a_paused_node_times_out_is_unready_and_goes_on_when_resumed() {
    let mut up = Up::start(&["3", "--", "--timeout", "500ms"]).await;
    assert_eq!(up.post("3/pause").await.json["state"], "paused");
    up.tells("service-3 paused").await;
    let answer = up.get().await;
    assert_eq!(answer.header("cascade-status"), "partial");
    let reason = answer.header("cascade-reason");
    assert!(["timeout; hop=3", "deadline; hop=3"].contains(&reason), "{reason}");
    up.tells("service-3 unready: /ready has not answered within 1s").await;
    assert_eq!(up.node(3).await["ready"], false);

    assert_eq!(up.post("3/resume").await.json["state"], "running");
    up.tells("service-3 resumed").await;
    up.tells("service-3 ready again").await;
    assert_eq!(up.get().await.header("cascade-status"), "complete");
}

#[tokio::test]
async fn what_someone_else_does_to_a_process_is_noticed() {
    let mut up = Up::start(&["2"]).await;
    send(up.pids[1], Signal::STOP);
    up.tells("service-2 paused").await;
    assert_eq!(up.post("2/pause").await.status, StatusCode::CONFLICT);
    assert_eq!(up.post("2/resume").await.json["state"], "running");
    send(up.pids[1], Signal::TERM);
    up.tells("service-2 exited: code 0").await;
}

#[tokio::test]
async fn a_stopped_node_drains_first_and_a_second_order_does_not_hurry_it() {
    let mut up = Up::start(&["1", "--", "--drain-delay", "4s"]).await;
    let answer = up.post("1/stop").await;
    assert_eq!((answer.status, &answer.json["state"]), (StatusCode::ACCEPTED, &json!("running")));
    assert_eq!(up.get().await.status, StatusCode::OK);
    up.post("1/stop").await;
    // A second SIGTERM would have made it 143.
    up.tells("service-1 stopped: code 0").await;
    assert_eq!(up.node(1).await["state"], "stopped");
}

#[tokio::test]
async fn a_restart_that_is_called_off_or_asked_for_twice_is_a_conflict() {
    let up = Up::start(&["1", "--", "--drain-delay", "1h"]).await;
    let (restart, others) = tokio::join!(up.post("1/restart"), async {
        // The restart waits for the drain from here on.
        eventually("/ready says that the node drains", async || up.node(1).await["ready"] == false).await;
        let second = up.post("1/restart").await;
        (second, up.post("1/stop").await)
    });
    let (second, stop) = others;
    assert_eq!((second.status, stop.status), (StatusCode::CONFLICT, StatusCode::ACCEPTED));
    assert_eq!(second.json["error"], "service-1 is restarting already");
    assert_eq!(restart.status, StatusCode::CONFLICT);
    assert_eq!(restart.json["error"], "the restart of service-1 was called off: it was told to stop meanwhile");
}

#[tokio::test]
async fn a_restart_whose_port_was_taken_meanwhile_says_so_and_can_be_tried_again() {
    let mut up = Up::start(&["2"]).await;
    up.post("2/kill").await;
    let port = u16::try_from(up.node(2).await["port"].as_u64().expect("a port")).expect("a port");
    let taken = TcpListener::bind(("127.0.0.1", port)).expect("free, as the node is gone");
    let answer = up.post("2/restart").await;
    assert_eq!(answer.status, StatusCode::INTERNAL_SERVER_ERROR);
    assert!(answer.json["error"].as_str().is_some_and(|error| error.contains(&format!("port {port}"))));
    up.tells("service-2 not restarted: ").await;
    assert_eq!(up.node(2).await["state"], "exited");
    drop(taken);
    assert_eq!(up.post("2/restart").await.status, StatusCode::OK);
    assert_eq!(up.get().await.header("cascade-status"), "complete");
}

#[tokio::test]
async fn wrong_use_of_the_control_api_is_refused_with_a_reason() {
    let up = Up::start(&["2"]).await;
    assert_eq!(up.post("2/stop").await.json["state"], "stopped");
    for (method, path, status, parts) in [
        (Method::POST, "/3/kill", 404, &["\"3\"", "1 to 2"][..]),
        (Method::POST, "/0/kill", 404, &["\"0\"", "1 to 2"]),
        (Method::POST, "/x/kill", 404, &["\"x\"", "1 to 2"]),
        (Method::GET, "/99999999999999999999", 404, &["99999999999999999999", "1 to 2"]),
        (Method::POST, "/%ff/kill", 404, &["UTF-8"]),
        (Method::POST, "/1/explode", 404, &["\"explode\"", "kill, pause, resume, stop, restart"]),
        (Method::POST, "/1/kill/now", 404, &["/api/nodes/1/kill/now"]),
        (Method::GET, "/1/kill", 405, &["/api/nodes/1/kill", "GET"]),
        (Method::POST, "", 405, &["/api/nodes", "POST"]),
        (Method::DELETE, "/1", 405, &["/api/nodes/1", "DELETE"]),
        (Method::POST, "/1/resume", 409, &["service-1 is running", "resume", "pause"]),
        (Method::POST, "/2/resume", 409, &["service-2 is stopped", "resume", "restart"]),
        (Method::POST, "/2/pause", 409, &["service-2 is stopped", "pause"]),
        (Method::POST, "/2/stop", 409, &["service-2 is stopped", "stop"]),
        (Method::POST, "/2/kill", 409, &["service-2 is stopped", "kill"]),
    ] {
        let answer = up.ask(method.clone(), &format!("{}{path}", up.control), &[]).await;
        assert_eq!(answer.status, status, "{method} {path}: {}", answer.json);
        let error = answer.json["error"].as_str().expect("a reason");
        assert!(parts.iter().all(|part| error.contains(part)), "{method} {path}: {error}");
        assert_eq!(answer.json.as_object().map(serde_json::Map::len), Some(1));
    }
    assert_eq!(up.node(1).await["state"], "running");
}

#[tokio::test]
async fn a_page_of_another_site_changes_nothing() {
    let up = Up::start(&["1"]).await;
    let url = format!("{}/1/kill", up.control);
    let refused = up.ask(Method::POST, &url, &[("sec-fetch-site", "cross-site")]).await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN);
    assert!(refused.json["error"].is_string());
    assert_eq!(up.node(1).await["state"], "running");
    let own = up.ask(Method::POST, &url, &[("sec-fetch-site", "same-origin")]).await;
    assert_eq!((own.status, &own.json["state"]), (StatusCode::OK, &json!("exited")));
}

#[tokio::test]
async fn killing_up_leaves_no_node_behind_not_even_a_paused_one() {
    let mut up = Up::start(&["3"]).await;
    up.post("2/pause").await;
    up.signal(Signal::KILL);
    up.end().await;
    up.all_are_gone().await;
}

#[tokio::test]
async fn each_signal_to_stop_ends_every_node_and_then_up_with_code_0() {
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let mut up = Up::start(&["3"]).await;
        up.post("2/pause").await;
        up.post("3/kill").await;
        let pid = up.pid();
        up.signal(signal);
        up.tells("stopping 3 nodes").await;
        up.tells("service-1 stopped: code 0").await;
        up.tells("service-2 stopped: code 0").await;
        up.tells("all nodes have stopped").await;
        assert_eq!(up.end().await.0.code(), Some(0), "{signal:?}");
        up.all_are_gone().await;
        assert!(nodes_of(pid).is_empty());
    }
}

#[tokio::test]
async fn nodes_that_do_not_stop_in_time_are_killed() {
    let mut up = Up::start(&["2", "--stop-timeout", "300ms", "--", "--drain-delay", "1h"]).await;
    up.signal(Signal::TERM);
    up.tells("2 of 2 nodes were still running after 300ms and were killed").await;
    assert_eq!(up.end().await.0.code(), Some(0));
    up.all_are_gone().await;
}

#[tokio::test]
async fn a_second_signal_kills_at_once_and_gives_its_own_code() {
    for (second, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let mut up = Up::start(&["2", "--stop-timeout", "1h", "--", "--drain-delay", "1h"]).await;
        up.signal(Signal::TERM);
        up.tells("service-1 is asked to stop").await;
        up.signal(second);
        assert_eq!(up.end().await.0.code(), Some(code));
        up.all_are_gone().await;
    }
}

/// Two neighbouring ports, below those that the system gives out by itself; the first one is taken.
fn taken_and_free() -> (TcpListener, u16) {
    let start = 20_000 + u16::try_from(std::process::id() % 10_000).expect("small");
    let found = (start..start + 2_000).find_map(|port| {
        let taken = TcpListener::bind(("127.0.0.1", port)).ok()?;
        TcpListener::bind(("127.0.0.1", port + 1)).ok().map(|_| (taken, port))
    });
    found.expect("two free ports")
}

#[tokio::test]
async fn a_taken_node_port_is_named_and_what_was_started_is_stopped_again() {
    let (_taken, port) = taken_and_free();
    let mut command = command(&["2", "--base-port", &port.to_string(), "--control", "127.0.0.1:0"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("up starts");
    let pid = child.id().expect("running");
    let output = within("the end of up", child.wait_with_output()).await.expect("waited for");
    let error = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.starts_with("error: service-1 ended with code 1"), "{error}");
    assert!(error.contains(&format!("cannot listen on port {port} ([::]:{port}): Address already in use")), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
    assert!(output.stdout.is_empty());
    eventually("all nodes are gone", async || nodes_of(pid).is_empty()).await;
}

#[tokio::test]
async fn a_taken_control_port_is_named_before_any_node_starts() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = taken.local_addr().expect("bound").to_string();
    let output = command(&["2", "--base-port", "0", "--control", &address]).output();
    let output = within("the end of up", output).await.expect("waited for");
    let error = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.starts_with(&format!("error: cannot listen on {address} (--control): ")), "{error}");
}

#[tokio::test]
async fn wrong_flags_end_with_code_2_and_one_line() {
    for (args, parts) in [
        (&["0"][..], &["'0'", "1 to 64"][..]),
        (&["65"], &["'65'", "1 to 64"]),
        (&["--base-port", "65533"], &["65533", "65535"]),
        (&["--control", "8090"], &["'8090'", "127.0.0.1:8090"]),
        (&["--base-port", "0", "--control", "off", "--", "--port", "1"], &["--port"]),
        (&["--base-port", "0", "--control", "off", "--", "--timeout", "soon"], &["'soon'", "--timeout"]),
    ] {
        let output = within("the end of up", command(args).output()).await.expect("waited for");
        let error = String::from_utf8(output.stderr).expect("text");
        assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
        assert!(parts.iter().all(|part| error.contains(part)), "{args:?}: {error}");
        assert_eq!(error.lines().count(), 1, "{args:?}: {error}");
    }
}

#[tokio::test]
async fn what_makes_a_node_does_not_reach_the_nodes_and_other_settings_do() {
    let up = Up::start_with(&["2"], |command| {
        for name in ["targetUri", "TARGET_URI", "REST_CASCADE_TARGET"] {
            command.env(name, "http://127.0.0.1:1");
        }
        command.env("PORT", "1").env("REST_CASCADE_PORT", "1").env("REST_CASCADE_LISTEN", "127.0.0.1:1");
        command.env("HOSTNAME", "other").env("REST_CASCADE_NAME", "other").env("REST_CASCADE_TIMEOUT", "1234ms");
    })
    .await;
    let answer = up.get().await;
    assert_eq!(answer.header("cascade-status"), "complete");
    assert_eq!(answer.json["host"], "service-1");
    assert_eq!(answer.json["responseInfo"]["host"], "service-2");
    for number in 1..=2 {
        let config = format!("{}/config", up.node(number).await["url"].as_str().expect("a URL"));
        let config = up.ask(Method::GET, &config, &[]).await.json.to_string();
        assert!(config.contains("\"timeout\":\"1s 234ms\""), "{config}");
    }
}

#[tokio::test]
async fn nodes_log_under_their_name_and_only_warnings_unless_more_is_asked_for() {
    for (args, informed) in [(&["2"][..], false), (&["2", "--verbose"], true)] {
        let mut up = Up::start_with(args, |command| {
            command.stderr(Stdio::piped()).env("REST_CASCADE_TIMOUT", "1s");
        })
        .await;
        up.signal(Signal::TERM);
        let said = up.end().await.1;
        let misspelt = said.lines().filter(|line| line.contains("REST_CASCADE_TIMOUT")).collect::<Vec<_>>();
        assert_eq!(misspelt, ["warning: REST_CASCADE_TIMOUT is not a setting of this program, ignored"]);
        for name in ["service-1", "service-2"] {
            let started = said.lines().any(|line| line.starts_with(name) && line.contains("INFO listening on port"));
            assert_eq!(started, informed, "{args:?}: {said}");
        }
    }
}

#[tokio::test]
async fn a_reader_that_does_not_read_blocks_neither_up_nor_the_nodes() {
    let mut up = Up::start_with(&["2", "--verbose", "--", "--access-log", "all"], |command| {
        command.stderr(Stdio::piped());
    })
    .await;
    // More than the pipes between nodes, up and this test hold.
    for _ in 0..1500 {
        assert_eq!(up.get().await.header("cascade-status"), "complete");
    }
    assert_eq!(up.post("2/restart").await.status, StatusCode::OK);
    up.signal(Signal::TERM);
    up.tells("all nodes have stopped").await;
    let _unread = up.take_stderr();
    assert_eq!(up.end().await.0.code(), Some(0));
}
