//! Child processes that do not behave as nodes do, and nodes whose handle is dropped.

use std::path::PathBuf;
use std::time::Duration;

use rest_cascade::cluster::{Cluster, Launch, Role, StartError, What};
use rustix::process::Signal;

use crate::up_support::{PATIENCE, eventually, is_gone, send, within};

fn launch(program: &str) -> Launch {
    Launch {
        program: PathBuf::from(program),
        role: Role::Serve,
        name: "service-1".to_owned(),
        port: 0,
        target: None,
        flags: Vec::new(),
        variables: Vec::new(),
        limit: PATIENCE,
    }
}

fn node() -> Launch {
    launch(env!("CARGO_BIN_EXE_rest-cascade"))
}

async fn refusal(launch: Launch) -> StartError {
    let cluster = Cluster::new().expect("a cluster");
    within("a refusal", cluster.start(launch)).await.expect_err("not a node")
}

#[tokio::test]
async fn a_silent_process_is_given_up_after_its_limit_with_what_it_wrote() {
    let silent = launch(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/silent-node.sh"));
    let error = refusal(Launch { limit: Duration::from_secs(2), ..silent }).await;
    assert_eq!(error.to_string(), "service-1 did not tell its address within 2s: still thinking");
    assert_eq!(error.code(), 1);
}

#[tokio::test]
async fn what_is_no_node_is_told_apart() {
    for (program, message) in [
        ("/bin/false", "service-1 ended with code 1 before it told its address"),
        ("/bin/echo", "service-1 wrote \"serve --name service-1 --port 0"),
        ("/no/such/file", "service-1 cannot be started from /no/such/file: No such file"),
    ] {
        let error = refusal(launch(program)).await;
        assert!(error.to_string().starts_with(message), "{error}");
        assert_eq!(error.code(), 1);
    }
}

#[tokio::test]
async fn a_node_that_refuses_its_flags_passes_its_exit_code_on() {
    let error = refusal(Launch { flags: vec!["--timeout=0".to_owned()], ..node() }).await;
    assert!(error.to_string().contains("ended with code 2"), "{error}");
    assert!(error.to_string().contains("'0' for '--timeout"), "{error}");
    assert_eq!(error.code(), 2);
}

#[tokio::test]
async fn dropping_a_node_kills_its_process() {
    let cluster = Cluster::new().expect("a cluster");
    let node = cluster.start(node()).await.expect("a node");
    let pid = node.status().pid.expect("running");
    assert!(!is_gone(pid));
    drop(node);
    eventually("the end of the process", async || is_gone(pid)).await;
}

#[tokio::test]
async fn every_reader_of_the_events_sees_what_others_do_to_a_process() {
    let cluster = Cluster::new().expect("a cluster");
    let mut readers = [cluster.events(), cluster.events()];
    let node = cluster.start(node()).await.expect("a node");
    let pid = node.status().pid.expect("running");
    send(pid, Signal::STOP);
    for reader in &mut readers {
        within("paused", async { while !matches!(reader.recv().await.expect("an event").what, What::Paused) {} }).await;
    }
    send(pid, Signal::CONT);
    send(pid, Signal::KILL);
    for reader in &mut readers {
        let exited = async { while !matches!(reader.recv().await.expect("an event").what, What::Exited(_)) {} };
        within("exited", exited).await;
    }
    assert_eq!(node.status().pid, None);
}
