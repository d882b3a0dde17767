//! Cascades with replicas, and the chaos that is done to them.

use std::path::PathBuf;
use std::time::Duration;

use rest_cascade::cluster::{Cluster, Harm, Host, Retransmission, State, Storm, Tiers, TiersPlan};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::up_support::within;

const FAST: Retransmission = Retransmission { handshake: Duration::from_millis(100), data: Duration::from_millis(40) };

async fn tiers(replicas: &[usize], linked: bool) -> Tiers {
    let plan = TiersPlan {
        program: PathBuf::from(env!("CARGO_BIN_EXE_rest-cascade")),
        replicas: replicas.to_vec(),
        flags: Vec::new(),
        variables: vec![("REST_CASCADE_LOG_LEVEL".to_owned(), "error".to_owned())],
        linked,
        retransmission: FAST,
        seed: 1,
    };
    let cluster = Cluster::new().expect("a cluster");
    within("tiers", cluster.start_tiers(&plan)).await.expect("tiers")
}

/// The hosts that answered, the head first, over a connection of its own.
async fn path(tiers: &Tiers) -> Vec<String> {
    let mut stream = TcpStream::connect(tiers.front().address()).await.expect("connected");
    stream.write_all(b"GET / HTTP/1.0\r\nHost: x\r\n\r\n").await.expect("sent");
    let mut answer = String::new();
    within("an answer", stream.read_to_string(&mut answer)).await.expect("an answer");
    let body = answer.split_once("\r\n\r\n").expect("a head and a body").1;
    let mut reply: Value = serde_json::from_str(body).expect("JSON");
    let mut path = Vec::new();
    while !reply.is_null() {
        path.push(reply["host"].as_str().expect("a host").to_owned());
        reply = reply["responseInfo"].take();
    }
    path
}

#[tokio::test]
async fn replicas_take_turns_at_every_tier() {
    for linked in [false, true] {
        let tiers = tiers(&[2, 2, 1], linked).await;
        let mut seen: Vec<String> = Vec::new();
        for _ in 0..8 {
            seen.extend(path(&tiers).await);
        }
        for (name, times) in
            [("service-1-1", 4), ("service-1-2", 4), ("service-2-1", 4), ("service-2-2", 4), ("service-3-1", 8)]
        {
            assert_eq!(seen.iter().filter(|host| *host == name).count(), times, "{name} of {seen:?}");
        }
        tiers.kill().await;
    }
}

#[tokio::test]
async fn a_storm_pauses_only_its_victims_and_calm_resumes_them() {
    let tiers = tiers(&[1, 1, 1], false).await;
    // The second container is not part of the cascade: a stroke at it is one at nobody.
    let hosts: Vec<Host> = vec![vec![Some((1, 0)), None]];
    let storm = Storm::new(Harm::Pause, hosts, Duration::from_millis(60), Duration::from_millis(30), 5);
    let raged = tokio::time::timeout(Duration::from_secs(2), storm.rage(&tiers)).await;
    assert!(raged.is_err(), "it ended by itself: {raged:?}");
    within("calm", storm.calm(&tiers)).await.expect("calm");
    let record = storm.record();
    assert!((5..30).contains(&record.len()), "{} strokes of about 16", record.len());
    for suffering in &record {
        assert_eq!((suffering.tier, suffering.replica), (1, 0));
        assert!(suffering.until.is_some_and(|until| until > suffering.from));
    }
    assert!(tiers.nodes().all(|(_, _, node)| node.status().state == State::Running));
    assert_eq!(path(&tiers).await.len(), 3);
    tiers.kill().await;
}

#[tokio::test]
async fn who_is_killed_is_started_again_and_the_cascade_is_whole() {
    let tiers = tiers(&[1, 1, 1], false).await;
    let hosts: Vec<Host> = vec![vec![Some((1, 0)), Some((2, 0))]];
    let storm = Storm::new(Harm::Kill, hosts, Duration::from_millis(400), Duration::from_millis(200), 2);
    let raged = tokio::time::timeout(Duration::from_secs(2), storm.rage(&tiers)).await;
    assert!(raged.is_err(), "it ended by itself: {raged:?}");
    within("calm", storm.calm(&tiers)).await.expect("calm");
    let restarts: u32 = tiers.nodes().map(|(_, _, node)| node.status().restarts).sum();
    assert_eq!(restarts as usize, storm.record().len());
    assert!(restarts >= 2, "{restarts}");
    assert_eq!(path(&tiers).await, ["service-1-1", "service-2-1", "service-3-1"]);
    tiers.kill().await;
}

#[tokio::test]
async fn what_a_victim_sends_is_lost_in_both_directions_and_comes_late() {
    let tiers = tiers(&[1, 1, 1], true).await;
    let hosts: Vec<Host> = vec![vec![Some((1, 0))]];
    let storm = Storm::new(Harm::Loss(1.0), hosts, Duration::from_millis(100), Duration::from_millis(100), 1);
    let begun = Instant::now();
    let answered = async {
        // The stroke starts within its first interval.
        tokio::time::sleep(Duration::from_millis(150)).await;
        tokio::time::timeout(Duration::from_millis(400), path(&tiers)).await
    };
    let answer = tokio::select! {
        _ = storm.rage(&tiers) => unreachable!("it never ends by itself"),
        answer = answered => answer,
    };
    assert!(answer.is_err(), "an answer over a dead link after {:?}: {answer:?}", begun.elapsed());
    within("calm", storm.calm(&tiers)).await.expect("calm");
    assert_eq!(path(&tiers).await.len(), 3);
    let lost: u64 = (0..3).filter_map(|tier| tiers.link_to(tier, 0)).map(|link| link.tally().0).sum();
    assert!(lost > 0);
    tiers.kill().await;
}
