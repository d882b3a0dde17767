//! The articles' experiments from the command line.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::{Start, exit_within};

/// Longer than a whole lab takes, on a machine that does other things too.
const LIMIT: Duration = Duration::from_secs(400);

/// Runs a lab to its end; its exit code and its report.
fn lab(flags: &str) -> (Option<i32>, Value, String) {
    let out = tempfile::tempdir().expect("a directory");
    let mut child = Start::node().flags("lab").flags(flags).arg("--out").arg(out.path()).spawn();
    let status = exit_within(&mut child, LIMIT);
    let json = std::fs::read_to_string(out.path().join("report.json")).expect("a report");
    let page = std::fs::read_to_string(out.path().join("report.html")).expect("a page");
    (status.code(), serde_json::from_str(&json).expect("JSON"), page)
}

fn figures(report: &Value) -> Vec<(&str, u64, u64, u64)> {
    let steps = report["steps"].as_array().expect("steps").iter();
    let number = |value: &Value| value.as_u64().unwrap_or_default();
    steps
        .map(|step| {
            let name = step["name"].as_str().expect("a name");
            (name, number(&step["total"]), number(&step["ok"]), number(&step["errors"]["504"]))
        })
        .collect()
}

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

#[test]
#[ignore = "takes a minute and both cores: the whole experiment at a tenth of its time"]
fn the_bulkhead_gives_what_the_model_and_a_real_envoy_give() {
    let (code, report, page) = lab("bulkhead");
    let figures = figures(&report);
    println!("{figures:?}");
    assert_eq!(code, Some(0), "{figures:?} {}", report["warnings"]);
    assert_eq!(figures.len(), 4);
    assert!((384..=408).contains(&figures[0].2), "{figures:?}");
    for (name, _, ok, timeouts) in &figures[1..] {
        assert!((3240..=3285).contains(ok) && *timeouts == 0, "{name}: {figures:?}");
    }
    let recovery = report["steps"][0]["recovery_s"].as_f64().expect("an answer in the end");
    assert!((225.0..240.0).contains(&recovery), "{recovery}");
    assert!(page.contains("<svg") && !page.contains("src="));
}

#[test]
#[ignore = "takes a minute and both cores: the whole experiment at a tenth of its time"]
fn the_breaker_gives_what_the_model_and_a_real_envoy_give() {
    let (code, report, _) = lab("breaker");
    let figures = figures(&report);
    println!("{figures:?}");
    assert_eq!(code, Some(0), "{figures:?} {}", report["warnings"]);
    assert!((3132..=3142).contains(&figures[0].2), "{figures:?}");
    assert!((441..=465).contains(&figures[1].3), "{figures:?}");
    assert!(figures[2].2 == 0 && (993..=1023).contains(&figures[2].3), "{figures:?}");
    // The first ejection, the return, the second ejection, as the article's chart has them.
    let ejections = report["steps"][1]["ejections"].as_array().expect("ejections");
    for (value, at) in
        [(&ejections[0]["from_s"], 12.2), (&ejections[0]["until_s"], 46.7), (&ejections[1]["from_s"], 57.1)]
    {
        assert!(value.as_f64().is_some_and(|seen| (seen - at).abs() < 1.0), "{ejections:?}");
    }
}

#[test]
#[ignore = "takes 20 s and both cores: steps of the experiment by the article's own pool"]
fn the_old_rule_of_the_pool_gives_the_articles_own_figures() {
    let (code, report, _) = lab("bulkhead --step 2 --pool-rule envoy-1.13");
    let figures = figures(&report);
    println!("{figures:?}");
    assert_eq!(code, Some(0), "{figures:?}");
}

#[test]
#[ignore = "takes 40 s and both cores: the first step with a queue as a current WireMock's"]
fn a_current_wiremock_behind_kept_connections_does_not_collapse() {
    let (code, report, _) = lab("bulkhead --step 1 --queue keep-alive-first");
    let figures = figures(&report);
    println!("{figures:?}");
    assert_eq!(code, Some(0), "{figures:?}");
}
