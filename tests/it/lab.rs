//! The articles' experiments from the command line. `.ci/run` runs them whole, with the binary as it is released.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::{Start, exit_within};

/// Longer than a whole lab takes, on a machine that does other things too.
const LIMIT: Duration = Duration::from_secs(400);

#[test]
fn wrong_use_is_refused_before_anything_runs() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let file = file.path().to_string_lossy().into_owned();
    for (flags, parts) in [
        ("bulkhead --speed 0", &["'0'", "--speed", "from 1 to 30"][..]),
        ("bulkhead --speed NaN", &["'NaN'", "--speed"]),
        ("breaker --speed 1000", &["'1000'", "--speed"]),
        ("bulkhead --step 9", &["--step 9", "from 1 to 4"]),
        ("breaker --step 0", &["--step 0", "from 1 to 3"]),
        ("bulkhead --queue lifo", &["lifo", "keep-alive-first"]),
        ("alchemy", &["alchemy"]),
        (&format!("bulkhead --out {file}"), &["--out", "cannot be written to"]),
    ] {
        let refusal = Start::node().flags("lab").flags(flags).run();
        assert_eq!(refusal.code, Some(2), "{flags}: {refusal:?}");
        let error = refusal.stderr.lines().last().unwrap_or_default();
        assert!(parts.iter().all(|part| error.contains(part)), "{flags}: {error}");
    }
}

#[test]
fn an_interrupted_lab_prints_what_there_is_and_leaves_nobody_behind() {
    let out = tempfile::tempdir().expect("a directory");
    let mut child = Start::node().flags("lab breaker --step 1 --out").arg(out.path()).spawn();
    let begun = Instant::now();
    while !out.path().join("step-1-policy.json").exists() {
        assert!(begun.elapsed() < LIMIT, "it never began");
        std::thread::sleep(Duration::from_millis(20));
    }
    std::thread::sleep(Duration::from_millis(1500));
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("our own child");
    assert_eq!(exit_within(&mut child, LIMIT).code(), Some(130));
    let report: Value =
        serde_json::from_str(&std::fs::read_to_string(out.path().join("report.json")).expect("a report"))
            .expect("JSON");
    assert_eq!(report["steps"][0]["within"], false);
    assert!(report["warnings"].to_string().contains("SIGINT"), "{}", report["warnings"]);
}
