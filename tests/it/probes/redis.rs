//! A real Redis as a dependency.

use super::servers::{PASSWORD, Server};
use super::{becomes, check, status};
use crate::support::{Node, Start, eventually};

fn node_with(password: &str, server: &Server) -> Node {
    Start::node().flags("--check").arg(format!("cache=redis://:{password}@127.0.0.1:{}/0", server.port)).start()
}

fn error(node: &Node) -> String {
    check(&node.get("/ready"), "cache")["data"]["error"].as_str().unwrap_or_default().to_owned()
}

#[test]
#[ignore = "needs redis"]
fn readiness_follows_a_redis_that_is_stopped_paused_and_restarted_and_liveness_does_not() {
    let mut server = Server::redis().up();
    let mut node = node_with(PASSWORD, &server);
    becomes(&node, "/ready", 200);
    for _ in 0..2 {
        server.stop();
        becomes(&node, "/ready", 503);
        assert_eq!(error(&node), "connection refused");
        assert_eq!((status(&node, "/live"), status(&node, "/data")), (200, 200));
        server.start();
        becomes(&node, "/ready", 200);

        server.pause();
        becomes(&node, "/ready", 503);
        assert_eq!(error(&node), "timeout");
        assert_eq!((status(&node, "/live"), status(&node, "/data")), (200, 200));
        server.resume();
        becomes(&node, "/ready", 200);
    }
    assert!(node.is_running(), "all that without a restart");
}

#[test]
#[ignore = "needs redis"]
fn a_wrong_password_is_told_and_never_shown() {
    let server = Server::redis().up();
    let node = node_with("wr0ngs3cret", &server);
    eventually("it is refused", || error(&node).contains("authentication failed"));
    assert_eq!(status(&node, "/live"), 200);
    node.log.until("cache is DOWN");
    let told = [node.get("/ready").text(), node.get("/config").text(), &node.log.lines().join("\n")].concat();
    assert!(!told.contains("s3cret"), "{told}");
}

#[test]
#[ignore = "needs redis"]
fn a_redis_as_the_database_serves_business_requests() {
    let mut server = Server::redis().up();
    let node = Start::node().flags("--check").arg(format!("db=redis://:{PASSWORD}@127.0.0.1:{}", server.port)).start();
    becomes(&node, "/data", 200);
    for _ in 0..100 {
        assert_eq!(status(&node, "/data"), 200);
    }
    server.stop();
    becomes(&node, "/data", 503);
    server.start();
    becomes(&node, "/data", 200);
}
