//! The load tool of the article against the real thing.

use std::process::Command;

use crate::support::Cascade;

/// What `ab` prints, by the words before the colon.
struct Ab(String);

impl Ab {
    fn run(flags: &str, url: &str) -> Ab {
        let output = Command::new("ab").args(flags.split_whitespace()).arg(url).output();
        let output = output.expect("ab is installed (apache2-utils)");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        Ab(text)
    }

    fn figure(&self, name: &str) -> Option<u64> {
        let line = self.0.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|value| value.split_whitespace().next()?.parse().ok())
    }
}

#[test]
#[ignore = "needs ab"]
fn ab_counts_no_failure_on_a_healthy_chain_with_and_without_keep_alive() {
    let cascade = Cascade::of(5);
    let url = format!("{}/", cascade.nodes()[0].uri());
    let fresh = Ab::run("-n 1000 -c 10 -s 60", &url);
    assert_eq!(
        (fresh.figure("Complete requests"), fresh.figure("Failed requests")),
        (Some(1000), Some(0)),
        "{}",
        fresh.0
    );
    assert_eq!(fresh.figure("Non-2xx responses"), None, "{}", fresh.0);
    let kept = Ab::run("-k -n 1000 -c 10 -s 60", &url);
    assert_eq!((kept.figure("Complete requests"), kept.figure("Failed requests")), (Some(1000), Some(0)), "{}", kept.0);
    assert_eq!(kept.figure("Keep-Alive requests"), Some(1000), "{}", kept.0);
    assert_eq!(cascade.nodes()[4].metric(&["requests_total", "route=\"/\"", "\"complete\""]), 2000.0);
}

#[test]
#[ignore = "needs ab"]
fn ab_sees_no_failure_where_node_3_is_gone_and_our_count_tells() {
    let mut cascade = Cascade::of(5);
    cascade.node(3).kill();
    let url = format!("{}/", cascade.nodes()[0].uri());
    let blind = Ab::run("-k -n 500 -c 5 -s 60", &url);
    assert_eq!(
        (blind.figure("Complete requests"), blind.figure("Failed requests")),
        (Some(500), Some(0)),
        "{}",
        blind.0
    );
    assert_eq!(cascade.nodes()[0].metric(&["requests_total", "\"200\"", "\"partial\""]), 500.0);
}
