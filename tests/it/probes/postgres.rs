//! A real PostgreSQL as the database: stopped, paused, restarted, used up, and badly addressed.

use super::servers::{PASSWORD, Server, unprivileged};
use super::{becomes, check, status};
use crate::support::{Node, Start, eventually};

fn node_with(url: &str) -> Node {
    Start::node().flags("--check").arg(format!("db={url}")).start()
}

fn url(server: &Server) -> String {
    format!("postgres://postgres:{PASSWORD}@127.0.0.1:{}/postgres", server.port)
}

fn error(node: &Node) -> String {
    check(&node.get("/ready"), "db")["data"]["error"].as_str().unwrap_or_default().to_owned()
}

/// The column of the table for a dead database; `/live` above all.
#[track_caller]
fn down(node: &Node) {
    becomes(node, "/ready", 503);
    for (path, expected) in [("/live", 200), ("/song", 200), ("/startup", 200), ("/work", 200), ("/wrong/live", 503)] {
        assert_eq!(status(node, path), expected, "{path}");
    }
}

#[track_caller]
fn up(node: &Node) {
    becomes(node, "/ready", 200);
    becomes(node, "/data", 200);
    assert_eq!(status(node, "/live"), 200);
}

#[test]
#[ignore = "needs postgresql"]
fn readiness_follows_a_database_that_is_stopped_paused_and_restarted_and_liveness_does_not() {
    let mut server = Server::postgres(&[]).up();
    let mut node = node_with(&url(&server));
    up(&node);
    for _ in 0..2 {
        server.stop();
        down(&node);
        becomes(&node, "/data", 503);
        assert_eq!(error(&node), "connection refused");
        server.start();
        up(&node);

        server.pause();
        down(&node);
        assert_eq!(error(&node), "timeout");
        server.resume();
        up(&node);
    }
    assert!(node.is_running(), "all that without a restart");
    node.log.until("db is UP again");
}

#[test]
#[ignore = "needs postgresql"]
fn probes_use_one_connection_and_business_requests_their_pool() {
    let server = Server::postgres(&[]).up();
    let node = Start::node()
        .flags("--check-interval 20ms --db-pool 3 --db-wait 100ms --db-timeout 1m --check")
        .arg(format!("db={}", url(&server)))
        .start();
    up(&node);
    for _ in 0..1000 {
        assert_eq!(status(&node, "/ready"), 200);
    }
    for _ in 0..50 {
        assert_eq!(status(&node, "/data"), 200);
    }
    // One of the check, one of the pool: nobody needed a second.
    let idle = server.processes();
    let mut busy: Vec<_> = (0..3).map(|_| node.connect()).collect();
    for socket in &mut busy {
        socket.send("GET /data?ms=20000 HTTP/1.1\r\nhost: node\r\n\r\n");
    }
    eventually("the pool is used up", || status(&node, "/data") == 503);
    assert!(server.processes() <= idle + 2, "{} and {idle}", server.processes());
    for path in ["/ready", "/live", "/work"] {
        assert_eq!(status(&node, path), 200, "{path} while the pool is used up");
    }
    assert!(node.get("/data").text().contains("all 3 connections of --db-pool are in use"));
    // The clients go, and so do their queries.
    drop(busy);
    eventually("the pool is free again", || status(&node, "/data") == 200);
    eventually("nothing runs on the server any more", || server.processes() <= idle);
}

#[test]
#[ignore = "needs postgresql"]
fn the_leaky_check_uses_up_the_database_and_the_right_one_keeps_its_own_connection() {
    let server = Server::postgres(&["-c", "max_connections=20"]).up();
    let node = node_with(&url(&server));
    becomes(&node, "/ready", 200);
    let mut leaked = 0;
    eventually("the database has no connection left", || {
        let answer = node.get("/wrong/leaky");
        leaked += usize::from(answer.status == 200);
        answer.status == 503 && answer.text().contains("53300")
    });
    assert!((10..=20).contains(&leaked), "{leaked}");
    assert_eq!(status(&node, "/data"), 503);
    assert_eq!(status(&node, "/live"), 200);
    std::thread::sleep(std::time::Duration::from_secs(2));
    assert_eq!(status(&node, "/ready"), 200, "its connection is older than the leak");
}

#[test]
#[ignore = "needs postgresql"]
fn a_wrong_password_is_told_and_never_shown() {
    let server = Server::postgres(&[]).up();
    let node = node_with(&format!("postgres://postgres:wr0ngs3cret@127.0.0.1:{}/postgres", server.port));
    down(&node);
    assert_eq!(error(&node), "authentication failed (28P01)");
    let data = node.get("/data");
    assert_eq!(data.status, 503);
    node.log.until("db is DOWN");
    let mut told = node.log.lines().join("\n") + data.text();
    for path in ["/ready", "/config", "/metrics", "/db", "/wrong/no-timeout", "/wrong/leaky", "/san-sang"] {
        told += node.get(path).text();
    }
    assert!(!told.contains("s3cret"), "{told}");
    let node = node_with(&format!("postgres://127.0.0.1:{}/nowhere?user=postgres&password={PASSWORD}", server.port));
    down(&node);
    assert!(error(&node).ends_with("(3D000)"), "{}", error(&node));
    assert!(!node.get("/config").text().contains(PASSWORD));
}

#[test]
#[ignore = "needs postgresql"]
fn without_tls_on_the_server_only_the_modes_that_can_do_without_are_up() {
    let server = Server::postgres(&[]).up();
    for mode in ["disable", "prefer"] {
        up(&node_with(&format!("{}?sslmode={mode}", url(&server))));
    }
    for mode in ["require", "verify-full"] {
        let node = node_with(&format!("{}?sslmode={mode}", url(&server)));
        down(&node);
        assert!(error(&node).contains("TLS"), "{mode}: {}", error(&node));
    }
}

#[test]
#[ignore = "needs postgresql"]
fn with_tls_on_the_server_its_certificate_is_checked_where_that_is_asked_for() {
    let mut server = Server::postgres(&["-c", "ssl=on"]);
    let made = |names: &[&str]| {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        rcgen::generate_simple_self_signed(names).expect("a certificate")
    };
    let certified = made(&["127.0.0.1", "localhost"]);
    let (certificate, key) =
        (server.folder.path().join("data/server.crt"), server.folder.path().join("data/server.key"));
    std::fs::write(&certificate, certified.cert.pem()).expect("our own folder");
    std::fs::write(&key, certified.signing_key.serialize_pem()).expect("our own folder");
    let owner = unprivileged(server.folder.path());
    owner.give(&certificate);
    owner.give(&key);
    server.start();
    let ours = server.folder.path().join("ours.pem");
    let strangers = server.folder.path().join("strangers.pem");
    std::fs::write(&ours, certified.cert.pem()).expect("our own folder");
    std::fs::write(&strangers, made(&["127.0.0.1"]).cert.pem()).expect("our own folder");
    for (parameters, is_up) in [
        ("sslmode=disable".to_owned(), true),
        ("sslmode=prefer".to_owned(), true),
        ("sslmode=require".to_owned(), true),
        (format!("sslmode=verify-full&sslrootcert={}", ours.display()), true),
        (format!("sslmode=verify-full&sslrootcert={}", strangers.display()), false),
    ] {
        let node = node_with(&format!("{}?{parameters}", url(&server)));
        match is_up {
            true => up(&node),
            false => {
                down(&node);
                assert!(error(&node).contains("certificate"), "{parameters}: {}", error(&node));
            }
        }
    }
}

#[test]
#[ignore = "needs postgresql"]
fn an_optional_database_that_is_down_empties_no_service() {
    let mut server = Server::postgres(&[]).up();
    let node = Start::node().flags("--check").arg(format!("db={};optional", url(&server))).start();
    up(&node);
    server.stop();
    eventually("it is told", || check(&node.get("/ready"), "db")["status"] == "DOWN");
    assert_eq!(status(&node, "/ready"), 200);
    assert_eq!(status(&node, "/data"), 503);
}
