//! Beside ab itself, on the same node.

use std::process::Command;

use super::stress;
use crate::support::{Cascade, Node};

/// A table of ab's, or of ours in its form.
struct Table(String);

impl Table {
    fn of_ab(flags: &str, url: &str) -> Table {
        let output = Command::new("ab").arg("-q").args(flags.split_whitespace()).arg(url).output();
        let output = output.expect("ab is installed (apache2-utils)");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Table(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn of_ours(flags: &str, url: &str) -> Table {
        let ended = stress(flags, url).run();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        Table(ended.stdout)
    }

    /// What stands after a name: everything but the white space, which is laid out otherwise.
    fn value(&self, name: &str) -> String {
        let value = self.0.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        value.unwrap_or_else(|| panic!("no {name} in\n{}", self.0)).split_whitespace().collect::<Vec<_>>().join(" ")
    }

    fn percents(&self) -> Vec<String> {
        let rows = self.0.lines().filter_map(|line| line.trim_start().split_once('%'));
        rows.map(|(percent, _)| percent.to_owned()).filter(|percent| percent.parse::<u8>().is_ok()).collect()
    }
}

const SAME: [&str; 8] = [
    "Server Hostname",
    "Server Port",
    "Document Path",
    "Document Length",
    "Concurrency Level",
    "Complete requests",
    "Failed requests",
    "HTML transferred",
];

#[test]
#[ignore = "needs ab"]
fn on_a_healthy_node_the_tables_say_the_same() {
    let node = Node::leaf();
    let url = format!("{}/", node.uri());
    for (flags, further) in [("-n 400 -c 4", None), ("-k -n 400 -c 4", Some("Keep-Alive requests"))] {
        let (theirs, ours) = (Table::of_ab(flags, &url), Table::of_ours(flags, &url));
        for name in SAME.into_iter().chain(further) {
            assert_eq!(ours.value(name), theirs.value(name), "{name}\n{}\n{}", ours.0, theirs.0);
        }
        assert_eq!(ours.percents(), theirs.percents());
        for name in ["Time taken for tests", "Requests per second", "Time per request", "Transfer rate"] {
            let units = |table: &Table| table.value(name).split_once(' ').map(|(_, unit)| unit.to_owned());
            assert_eq!(units(&ours), units(&theirs), "{name}");
        }
    }
    assert_eq!(node.metric(&["requests_total", "route=\"/\"", "\"complete\""]), 1600.0);
}

#[test]
#[ignore = "needs ab"]
fn what_ab_takes_for_complete_is_partial_here() {
    let mut cascade = Cascade::of(2);
    cascade.node(2).kill();
    let url = format!("{}/", cascade.nodes()[0].uri());
    let (theirs, ours) = (Table::of_ab("-n 100 -c 2", &url), Table::of_ours("-n 100 -c 2", &url));
    assert_eq!(
        (theirs.value("Complete requests"), theirs.value("Failed requests")),
        ("100".to_owned(), "0".to_owned())
    );
    for name in SAME {
        assert_eq!(ours.value(name), theirs.value(name), "{name}");
    }
    assert_eq!((ours.value("Complete cascades"), ours.value("Partial cascades")), ("0".to_owned(), "100".to_owned()));
    assert!(ours.0.contains("(refused; hop=2: 100)"), "{}", ours.0);
}
