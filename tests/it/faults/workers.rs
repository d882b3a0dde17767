//! A limited number of workers and their queue: who waits, who is refused, and what becomes of work nobody waits for.

use std::time::Duration;

use super::node::{Node, Socket};

/// A request of a client that waits for its answer.
fn asking(node: &Node) -> Socket {
    let mut socket = node.connect();
    socket.request("GET", "/", "");
    socket
}

/// A node with one worker, which is busy with `delay`, and one more request in the queue.
fn busy(faults: &str) -> (Node, Socket, Socket) {
    let node = Node::with(faults);
    let first = asking(&node);
    node.eventually("working", 1);
    let second = asking(&node);
    node.eventually("waiting", 1);
    (node, first, second)
}

/// Long enough for what must not happen to happen.
fn a_while() {
    std::thread::sleep(Duration::from_millis(300));
}

#[test]
fn beyond_the_queue_a_request_is_refused_at_once_as_overflow() {
    let (node, mut first, mut second) = busy(r#"{"workers":1,"queue":1,"delay":"60s"}"#);
    let answer = node.get("/");
    assert_eq!(answer.status, 503);
    assert!(answer.msg().starts_with("overflow: all 1 workers"), "{}", answer.msg());
    assert_eq!(answer.header("cascade-reason"), Some("overflow; hop=1"));
    assert_eq!(node.front().get("/").header("cascade-reason"), Some("overflow; hop=2"));
    let report = node.faults();
    assert_eq!((&report["observed"]["queued"], &report["observed"]["rejected"]), (&1.into(), &2.into()));
    node.clear();
    assert_eq!((first.answer(true).status, second.answer(true).status), (200, 200));
}

#[test]
fn requests_are_served_in_the_order_of_their_coming() {
    let node = Node::with(r#"{"workers":1,"delay":"300ms"}"#);
    let (sender, order) = std::sync::mpsc::channel();
    let clients: Vec<_> = (0..5_u64)
        .map(|number| {
            let mut socket = asking(&node);
            node.eventually("requests", number + 1);
            let sender = sender.clone();
            std::thread::spawn(move || {
                assert_eq!(socket.answer(true).status, 200);
                sender.send(number).expect("the test listens");
            })
        })
        .collect();
    let served: Vec<_> = order.iter().take(5).collect();
    assert_eq!(served, [0, 1, 2, 3, 4]);
    clients.into_iter().for_each(|client| client.join().expect("an answer"));
}

#[test]
fn work_goes_on_for_a_client_that_has_gone() {
    let (node, first, second) = busy(r#"{"workers":1,"delay":"500ms","dead_work":"work"}"#);
    drop((first, second));
    a_while();
    assert!(node.observed("working") == 1 || node.observed("dead_work") > 0, "{}", node.faults());
    // Both are worked on, one after the other, for nobody.
    node.eventually("dead_work", 2);
    node.eventually("working", 0);
    let report = node.faults();
    assert_eq!((&report["observed"]["delayed"], &report["observed"]["skipped"]), (&2.into(), &0.into()));
}

#[test]
fn a_worker_is_taken_until_the_end_of_dead_work() {
    let (node, first, second) = busy(r#"{"workers":1,"queue":1,"delay":"60s"}"#);
    drop((first, second));
    a_while();
    assert_eq!((node.observed("working"), node.observed("waiting")), (1, 1));
    assert_eq!(node.get("/").status, 503);
}

#[test]
fn skip_keeps_the_place_in_the_queue_and_skips_the_work() {
    let (node, mut first, second) = busy(r#"{"workers":1,"queue":1,"delay":"2s","dead_work":"skip"}"#);
    drop(second);
    a_while();
    assert_eq!(node.observed("waiting"), 1);
    assert_eq!(first.answer(true).status, 200);
    node.eventually("skipped", 1);
    node.eventually("working", 0);
    let report = node.faults();
    assert_eq!((&report["observed"]["delayed"], &report["observed"]["dead_work"]), (&1.into(), &0.into()));
}

#[test]
fn skip_does_not_stop_what_a_worker_has_begun() {
    let (node, first, _second) = busy(r#"{"workers":1,"delay":"60s","dead_work":"skip"}"#);
    drop(first);
    a_while();
    assert_eq!((node.observed("working"), node.observed("waiting")), (1, 1));
}

#[test]
fn cancel_takes_a_request_out_wherever_it_is() {
    let (node, first, second) = busy(r#"{"workers":1,"queue":1,"delay":"60s","dead_work":"cancel"}"#);
    drop(second);
    node.eventually("waiting", 0);
    drop(first);
    node.eventually("working", 0);
    let report = node.faults();
    assert_eq!((&report["observed"]["dead_work"], &report["observed"]["delayed"]), (&0.into(), &0.into()));
}

#[test]
fn a_worker_is_busy_until_a_dribbled_answer_is_out() {
    let node = Node::with(r#"{"workers":1,"queue":0,"dribble":"60s"}"#);
    let mut socket = asking(&node);
    assert_eq!(socket.head().0, 200);
    assert_eq!(node.get("/").status, 503);
    drop(socket);
    node.eventually("working", 0);
}
