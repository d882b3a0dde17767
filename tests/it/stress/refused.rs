//! Wrong use: one line that names value and limit, exit code 2, and nothing is sent.

use super::stress;
use crate::support::Upstream;

#[test]
fn wrong_use_is_one_line_and_sends_nothing() {
    let upstream = Upstream::leaf();
    for (flags, parts) in [
        ("--rate 0", &["'0'", "--rate", "0.001"][..]),
        ("--rate NaN", &["'NaN'", "--rate"]),
        ("--rate -5", &["'-5'", "--rate"]),
        ("--rate 1e9", &["'1e9'", "1000000"]),
        ("-n -1", &["'-1'", "--requests"]),
        ("-n 0", &["'0'", "--requests"]),
        ("-n 1.5", &["'1.5'", "--requests"]),
        ("-c 0 -n 5", &["'0'", "--connections"]),
        ("-c 5 -n 2", &["-c 5", "-n 2"]),
        ("-n 5 --rate 5", &["-n", "--rate"]),
        ("-c 5 --rate 5", &["-c", "--rate"]),
        ("--duration 5s", &["--duration", "--rate"]),
        ("--rate 5 --duration 5", &["'5'", "--duration", "300ms"]),
        ("--rate 5 --ramp 2h", &["'2h'", "--ramp", "1h"]),
        ("--timeout 0", &["'0'", "--timeout", "1ms"]),
        ("--fail-over 1", &["'1'", "--fail-over", "1%"]),
        ("--fail-over -1%", &["'-1%'", "--fail-over", "0%"]),
        ("-H s3cret", &["'***'", "--header", "name: value"]),
        ("-H connection:close", &["--header", "connection"]),
        ("--csv /nowhere/at/all.csv", &["/nowhere/at/all.csv"]),
        ("--html /nowhere/at/all.html", &["/nowhere/at/all.html"]),
        ("--nonsense", &["--nonsense"]),
    ] {
        let ended = stress(flags, upstream.uri()).run();
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""), "{flags}: {ended:?}");
        assert_eq!(ended.stderr.lines().count(), 1, "{flags}: {ended:?}");
        for part in parts {
            assert!(ended.stderr.contains(part), "{flags}: {part} is missing in {:?}", ended.stderr);
        }
        assert!(!ended.stderr.contains("s3cret"), "{ended:?}");
    }
    assert_eq!(upstream.connections(), 0);
}

#[test]
fn what_is_no_url_is_refused_by_name() {
    for (url, parts) in [
        ("127.0.0.1:80/", &["'127.0.0.1:80/'", "http://localhost:8080/"][..]),
        ("localhost:8080", &["'localhost:8080'", "http:// missing"]),
        ("ftp://h/", &["'ftp://h/'", "scheme ftp"]),
        ("http://h/#top", &["#fragment"]),
        ("http://u:s3cret@h:70000/", &["***@h:70000"]),
        ("", &["URL"]),
    ] {
        let ended = stress("-n 1", url).run();
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""), "{url}: {ended:?}");
        assert_eq!(ended.stderr.lines().count(), 1, "{url}: {ended:?}");
        assert!(parts.iter().all(|part| ended.stderr.contains(part)), "{url}: {ended:?}");
        assert!(!ended.stderr.contains("s3cret"), "{ended:?}");
    }
}

#[test]
fn more_connections_than_open_files_are_refused_and_by_default_there_are_fewer() {
    let upstream = Upstream::leaf();
    let limited = |flags: &str| {
        let mut command = std::process::Command::new("prlimit");
        command.args(["--nofile=100", env!("CARGO_BIN_EXE_rest-cascade"), "stress"]);
        let path = std::env::var("PATH").unwrap_or_default();
        crate::support::Start::by(command).env("PATH", path).flags(flags).arg(upstream.uri()).run()
    };
    for (flags, begin) in
        [("-n 50 -c 50", "error: -c 50:"), ("--rate 1 --max-in-flight 50", "error: --max-in-flight 50:")]
    {
        let ended = limited(flags);
        assert_eq!((ended.code, ended.stderr.lines().count()), (Some(2), 1), "{ended:?}");
        assert!(ended.stderr.starts_with(begin) && ended.stderr.contains("1 to 36"), "{ended:?}");
    }
    assert_eq!(limited("--rate 10 --duration 200ms").code, Some(0));
}
