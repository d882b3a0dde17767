//! Dependencies as they are configured: wrong ones are refused at start, right ones asked, and their secrets kept.

use super::{becomes, check, status};
use crate::support::{Node, Start, Upstream, free_port};

/// One line on stderr, code 2, nothing on stdout.
#[track_caller]
fn refused(flags: &[&str], parts: &[&str]) {
    let start = flags.iter().fold(Start::node(), |start, flag| start.arg(flag));
    let refusal = start.run();
    assert_eq!(refusal.code, Some(2), "{flags:?}: {refusal:?}");
    assert_eq!(refusal.stdout, "");
    let last = refusal.stderr.lines().last().unwrap_or_default();
    for part in parts {
        assert!(last.contains(part), "{flags:?}: {last:?} lacks {part:?}");
    }
    assert!(!refusal.stderr.contains("s3cret"), "{}", refusal.stderr);
}

#[test]
fn what_cannot_be_checked_is_refused_before_any_port_opens() {
    for (flags, parts) in [
        (&["--check", "db"][..], &["'db'", "--check", "NAME=URL"][..]),
        (&["--check", "db=mysql://u:s3cret@h"], &["\"mysql\"", "postgres", "redis"]),
        (&["--check", "db=postgres://u:s3cret@h:x/"], &["--check", "***"]),
        (&["--check", "db=postgres://h/?password=s3cret&sslmode=maybe"], &["sslmode=maybe", "verify-full"]),
        (&["--check", "db=sim:;critical"], &["\"critical\"", "optional"]),
        (&["--check", "db=sim:slow"], &["ms", "60000"]),
        (&["--check", "a=sim:", "--check", "a=sim:"], &["--check a", "twice"]),
        (&["--check", "loaded=sim:"], &["--check loaded", "node's own"]),
        (&["--check", "db=postgres://h/?sslmode=verify-full&sslrootcert=/nowhere"], &["--check db", "/nowhere"]),
        (&["--check-interval", "1ms"], &["'1ms'", "--check-interval", "from 10ms"]),
        (&["--check-timeout", "0"], &["'0'", "--check-timeout", "from 1ms"]),
        (&["--check-mode", "sometimes"], &["'sometimes'", "--check-mode"]),
        (&["--db-pool", "0"], &["'0'", "--db-pool", "from 1 to 1000"]),
        (&["--heartbeat-limit", "1ms"], &["'1ms'", "--heartbeat-limit"]),
        (&["--startup-delay", "soon"], &["'soon'", "--startup-delay"]),
    ] {
        refused(flags, parts);
    }
}

#[test]
fn dependencies_in_the_environment_are_separated_by_blanks() {
    let node = Start::node().env("REST_CASCADE_CHECK", "db=sim: cache=sim:down;optional  mq=sim:").start();
    let answer = node.get("/ready");
    assert_eq!(answer.status, 200);
    assert_eq!(check(&answer, "cache")["status"], "DOWN");
    assert_eq!(check(&answer, "mq")["status"], "UP");
    let config = node.get("/config").json();
    assert_eq!(config["check"], serde_json::json!(["db=sim:up", "cache=sim:down;optional", "mq=sim:up"]));
}

#[test]
fn a_tcp_dependency_is_up_while_its_port_is_open() {
    let mut queue = Upstream::accepting(|peer| peer.until_gone());
    let node = Start::node().flags("--check").arg(format!("mq=tcp://{}", queue.address)).start();
    becomes(&node, "/ready", 200);
    queue.stop();
    becomes(&node, "/ready", 503);
    assert_eq!(check(&node.get("/ready"), "mq")["data"]["error"], "connection refused");
    assert_eq!(status(&node, "/live"), 200);
    assert_eq!(status(&node, "/data"), 200, "the database is another one");
}

#[test]
fn an_http_dependency_is_up_while_it_answers_2xx_and_a_nodes_ready_is_one() {
    let below = Node::leaf();
    let node = Start::node().flags("--check").arg(format!("below={}/ready", below.uri())).start();
    becomes(&node, "/ready", 200);
    below.get("/db?up=false");
    becomes(&node, "/ready", 503);
    assert_eq!(check(&node.get("/ready"), "below")["data"]["error"], "status 503");
    below.get("/db?up=true");
    becomes(&node, "/ready", 200);
    let moved = Upstream::answering(|peer, _| {
        peer.send("HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1/\r\ncontent-length: 0\r\n\r\n")
    });
    let node = Start::node().flags("--check").arg(format!("web={}", moved.uri())).start();
    becomes(&node, "/ready", 503);
    assert_eq!(check(&node.get("/ready"), "web")["data"]["error"], "status 302", "followed nowhere");
}

#[test]
fn a_dependency_that_says_nonsense_is_down_and_the_answer_stays_readable() {
    for kind in ["postgres", "redis", "http"] {
        let mad = Upstream::accepting(|peer| {
            peer.send([b'\x00', b'\x1b', b'"', b'<', b'\xff'].repeat(2000));
            peer.until_gone();
        });
        let node =
            Start::node().flags("--check-timeout 300ms --check").arg(format!("x={kind}://{}", mad.address)).start();
        becomes(&node, "/ready", 503);
        let answer = node.get("/ready");
        assert_eq!(check(&answer, "x")["status"], "DOWN", "{kind}");
        assert!(answer.body.len() < 10 * 1024, "{kind}: {}", answer.body.len());
        assert_eq!(status(&node, "/live"), 200);
    }
}

#[test]
fn a_dead_dependency_at_start_does_not_keep_the_node_from_starting() {
    let port = free_port();
    for check in [
        format!("db=postgres://u:s3cret@127.0.0.1:{port}/d"),
        format!("db=redis://:s3cret@127.0.0.1:{port}"),
        format!("db=http://u:s3cret@127.0.0.1:{port}/"),
        format!("db=tcp://127.0.0.1:{port}"),
        "db=tcp://no-such-name.invalid:1".to_owned(),
    ] {
        let node = Start::node().flags("--check").arg(&check).start();
        let shown: Vec<(String, u16)> = ["/ready", "/data", "/wrong/live", "/db", "/config", "/metrics"]
            .into_iter()
            .map(|path| {
                let answer = node.get(path);
                (answer.text().to_owned(), answer.status)
            })
            .collect();
        assert_eq!(
            shown.iter().map(|(_, status)| *status).collect::<Vec<_>>(),
            [503, 503, 503, 409, 200, 200],
            "{check}"
        );
        for path in ["/live", "/startup", "/work"] {
            assert_eq!(status(&node, path), 200, "{path} with {check}");
        }
        node.log.until("db is DOWN");
        let told = format!("{shown:?}{}", node.log.lines().join("\n"));
        assert!(!told.contains("s3cret"), "{told}");
    }
}
