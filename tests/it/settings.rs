//! Flags and environment: what is taken, what is refused, and what is shown.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::support::{Node, Refusal, Socket, Start, Upstream, free_port, has_ipv6};

/// Starts on a port that must be free; where it was taken meanwhile, on the next.
fn on_a_free_port(start: impl Fn(u16) -> Start) -> Node {
    (0..10).find_map(|_| start(free_port()).try_start().ok()).expect("one of ten ports is free")
}

#[track_caller]
fn assert_refused(refusal: &Refusal, parts: &[&str]) {
    assert_eq!(refusal.code, Some(2), "{refusal:?}");
    assert_eq!(refusal.stderr.lines().count(), 1, "{refusal:?}");
    assert_eq!(refusal.stdout, "", "no port was opened");
    for part in parts {
        assert!(refusal.stderr.contains(part), "{part:?} is not in {refusal:?}");
    }
}

#[test]
fn the_port_that_kubernetes_injects_is_ignored_with_one_warning() {
    // The default port may be taken on this machine; the refusal then names it just as well.
    let warning = match Start::node().env("PORT", "tcp://10.0.0.1:80").try_start() {
        Ok(node) => {
            assert_eq!(node.port, 8080);
            node.log.until("listening on port");
            node.log.lines().join("\n")
        }
        Err(refusal) => {
            assert!(refusal.code == Some(1) && refusal.stderr.contains("port 8080"), "{refusal:?}");
            refusal.stderr
        }
    };
    assert_eq!(warning.matches("PORT=tcp://10.0.0.1:80").count(), 1, "{warning}");
    assert!(warning.contains("WARN PORT=tcp://10.0.0.1:80 ignored: Kubernetes injects it"), "{warning}");
}

#[test]
fn what_kubernetes_injects_for_a_service_of_our_name_is_no_setting() {
    let node = Start::node()
        .env("REST_CASCADE_PORT", "tcp://10.0.0.1:8080")
        .env("REST_CASCADE_SERVICE_HOST", "10.0.0.1")
        .env("REST_CASCADE_SERVICE_PORT", "8080")
        .env("REST_CASCADE_PORT_8080_TCP_PROTO", "tcp")
        .start();
    assert_eq!(node.get("/").status, 200);
    node.log.until("listening on port");
    assert_eq!(node.log.lines().iter().filter(|line| line.contains("WARN")).count(), 1);
}

#[test]
fn the_port_is_taken_from_the_environment() {
    let node = on_a_free_port(|port| Start::node().env("PORT", format!(" {port} ")));
    assert_eq!(node.get("/").json()["port"], node.port);
}

#[test]
fn ports_that_make_no_sense_end_with_one_line_and_no_port_opened() {
    for port in ["abc", "70000", "-1", "80 80", "0x50", "tcp:80", "８０"] {
        assert_refused(&Start::node().env("PORT", port).run(), &[port, "--port", "PORT"]);
    }
}

#[test]
fn wrong_values_end_with_one_line_that_names_them() {
    for (name, value) in [
        ("targetUri", "service-2:8080"),
        ("targetUri", "http://u:1/#x"),
        ("targetUri", "ftp://u"),
        ("REST_CASCADE_TIMEOUT", "10"),
        ("REST_CASCADE_TIMEOUT", "2h"),
        ("REST_CASCADE_POOL_IDLE_TIMEOUT", "900s"),
        ("REST_CASCADE_ON_FAILURE", "explode"),
        ("REST_CASCADE_MAX_DEPTH", "0"),
        ("REST_CASCADE_LOG_LEVEL", "info,=,"),
        ("REST_CASCADE_MAX_CONNECTIONS", "none"),
        ("REST_CASCADE_TRACE", "perhaps"),
    ] {
        assert_refused(&Start::node().env(name, value).run(), &[value, name]);
    }
    assert_refused(&Start::node().flags("--listen nowhere").run(), &["--listen nowhere"]);
    assert_refused(&Start::node().flags("--no-such-flag").run(), &["--no-such-flag"]);
    assert_refused(&Start::node().flags("launch").run(), &["launch"]);
}

#[test]
fn quotes_from_a_compose_list_are_not_part_of_the_value() {
    let upstream = Upstream::leaf();
    for quote in ["\"", "'"] {
        let node = Start::calling(format!("{quote}{}{quote}", upstream.uri())).start();
        assert!(node.get("/").json()["responseInfo"]["leaf"] == true);
        node.log.until("WARN targetUri: the quotes around its value are not part of it");
    }
}

#[test]
fn an_empty_or_missing_target_is_a_leaf() {
    for target in ["", "  ", "\"\"", ","] {
        let node = Start::calling(target).env("HOSTNAME", "").start();
        let answer = node.get("/");
        assert!(answer.is_complete(), "{target:?}");
        assert!(answer.json()["responseInfo"].is_null() && answer.json()["msg"].is_null());
    }
}

#[test]
fn without_a_name_the_kernels_host_name_stands_in() {
    let kernel = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let host = Node::leaf().get("/").json()["host"].as_str().map(str::to_owned).expect("a host");
    assert!(!host.is_empty());
    assert_eq!(host, kernel);
}

#[test]
fn a_ca_file_that_is_missing_or_holds_none_ends_with_one_line() {
    for target in ["https://u:1", "http://u:1"] {
        let refusal = Start::calling(target).flags("--target-ca /no/such/ca.pem").run();
        assert_refused(&refusal, &["--target-ca /no/such/ca.pem", "No such file"]);
        let empty = tempfile::NamedTempFile::new().expect("a file");
        let refusal = Start::calling(target).arg("--target-ca").arg(empty.path()).run();
        assert_refused(&refusal, &["--target-ca", "no certificate"]);
    }
}

#[test]
fn a_misspelt_variable_is_told_and_the_node_runs() {
    let node = Start::node().env("REST_CASCADE_TIMOUT", "1s").start();
    node.log.until("WARN REST_CASCADE_TIMOUT is not a setting of this program, ignored");
    assert_eq!(node.get("/config").json()["timeout"], "10s");
}

#[test]
fn proxies_of_the_environment_never_catch_a_call() {
    let upstream = Upstream::leaf();
    let mut start = Start::calling(upstream.uri());
    for name in ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"] {
        start = start.env(name, "http://127.0.0.1:9");
    }
    let node = start.start();
    assert!(node.get("/").is_complete());
    assert_eq!(upstream.requests().len(), 1);
}

#[test]
fn a_node_answers_on_every_address_family_that_the_machine_has() {
    let node = Node::leaf();
    assert!(node.get("/").is_complete());
    assert_eq!(Socket::try_connect(("::1", node.port)).is_ok(), has_ipv6());
    if has_ipv6() {
        assert!(Socket::connect(("::1", node.port)).get("/").is_complete());
        let node = Start::node().flags("--listen [::1]:0").start();
        assert!(Socket::connect(("::1", node.port)).get("/").is_complete());
        assert!(Socket::try_connect(("127.0.0.1", node.port)).is_err());
    }
    let node = Start::node().flags("--listen 127.0.0.1:0").start();
    assert!(node.get("/").is_complete());
    assert!(Socket::try_connect(("::1", node.port)).is_err());
}

#[test]
fn a_host_name_to_listen_on_works_again_after_a_restart() {
    let mut node = on_a_free_port(|port| Start::node().env("REST_CASCADE_LISTEN", format!("localhost:{port}")));
    for _ in 0..2 {
        let address = format!("localhost:{}", node.port);
        // A connection that is open when the node stops leaves its port in TIME_WAIT.
        let mut open = Socket::connect(&address);
        assert!(open.get("/").is_complete());
        node.signal(rustix::process::Signal::TERM);
        assert!(node.end().success());
        node = Start::node().env("REST_CASCADE_LISTEN", &address).start();
    }
}

#[test]
fn every_effective_setting_is_shown_at_start_and_at_config() {
    let node =
        Start::node().flags("--timeout 1234ms --on-failure map=503").env("REST_CASCADE_DRAIN_DELAY", "7s").start();
    let line = node.log.until("effective settings: ");
    let started: Value = serde_json::from_str(line.split("effective settings: ").nth(1).expect("JSON")).expect("JSON");
    let config = node.get("/config").json();
    assert_eq!(started, config);
    for (setting, value) in [("timeout", "1s 234ms"), ("on_failure", "map=503"), ("drain_delay", "7s")] {
        assert_eq!(config[setting], value, "{config}");
    }
    let help = Start::node().flags("serve --help").run();
    assert_eq!(help.code, Some(0));
    let mut missing = BTreeSet::new();
    for flag in help.stdout.split_whitespace().filter_map(|word| word.strip_prefix("--")) {
        let name: String = flag.chars().take_while(|letter| letter.is_ascii_lowercase() || *letter == '-').collect();
        let setting = name.trim_end_matches('-').replace('-', "_");
        if setting != "help" && config.get(&setting).is_none() {
            missing.insert(setting);
        }
    }
    assert!(missing.is_empty(), "not at /config: {missing:?}\n{config}");
}

#[test]
fn idle_connections_end_before_swarm_forgets_them() {
    let config = Node::leaf().get("/config").json();
    let idle: humantime::Duration =
        config["pool_idle_timeout"].as_str().and_then(|idle| idle.parse().ok()).expect("a time");
    assert!(idle.as_secs() < 900, "{idle}");
    let of_the_next_node =
        config["idle_timeout"].as_str().expect("a time").parse::<humantime::Duration>().expect("one");
    assert!(*idle < *of_the_next_node, "ours must close first: {idle} {of_the_next_node}");
}

#[test]
fn user_and_password_of_a_target_are_sent_and_never_shown() {
    let upstream = Upstream::answering(|peer, _| peer.send("HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n"));
    let target = upstream.uri().replace("http://", "http://us%65r:pa%24%24w0rd@");
    let node = Start::calling(&target).flags("--log-level trace").start();
    let answer = node.get("/");
    assert_eq!(answer.reason(), "bad_status");
    assert_eq!(upstream.until_request(1).header("authorization"), Some("Basic dXNlcjpwYSQkdzByZA=="));
    let config = node.get("/config").text().to_owned();
    assert!(config.contains(&upstream.uri()), "{config}");
    let metrics = node.get("/metrics").text().to_owned();
    node.log.until("access");
    let shown = [answer.text(), &config, &metrics, &node.log.lines().join("\n")].join("\n");
    for secret in ["pa%24%24w0rd", "pa$$w0rd", "dXNlcjpwYSQkdzByZA", "us%65r"] {
        assert!(!shown.contains(secret), "{secret} is in\n{shown}");
    }
    for target in ["http://user:pa55@u:99999/", "ftp://user:pa55@u", "http://user:pa55/x@u", "user:pa55@u"] {
        let refusal = Start::calling(target).run();
        assert_refused(&refusal, &["targetUri", "***@u"]);
        assert!(!refusal.stderr.contains("pa55"), "{refusal:?}");
    }
}

#[test]
fn help_and_version_end_well() {
    for flags in ["--help", "--version", "serve --help", "healthcheck --help"] {
        let ended = Start::node().flags(flags).run();
        assert!(ended.code == Some(0) && ended.stdout.contains("rest-cascade") && ended.stderr.is_empty(), "{ended:?}");
    }
}
