//! Who may change a node, and at which of its doors.

use serde_json::Value;

use crate::support::{Answer, Node, Refusal, Socket, Start, eventually};

/// Every way to change something: method, path, a body that is right.
const CHANGES: [(&str, &str, &str); 16] = [
    ("PUT", "/faults", "{}"),
    ("POST", "/faults", "{}"),
    ("GET", "/faults?error_rate=0", ""),
    ("GET", "/faults/?seed=7", ""),
    ("DELETE", "/faults", ""),
    ("GET", "/db?up=true", ""),
    ("GET", "/dat?csdl=true", ""),
    ("GET", "/dat/?csdl=true", ""),
    ("GET", "/db?mode=up", ""),
    ("PUT", "/db", r#"{"up":true}"#),
    ("POST", "/dat", r#"{"mode":"up"}"#),
    ("PUT", "/db?up=true", ""),
    ("PUT", "/startup", r#"{"done":true}"#),
    ("POST", "/startupz", r#"{"done":true}"#),
    ("GET", "/startup?done=true", ""),
    ("GET", "/health/started?%64one=true", ""),
];

/// What only looks. A probe stays one whatever its query says.
const LOOKS: [(&str, &str); 21] = [
    ("GET", "/faults"),
    ("HEAD", "/faults"),
    ("OPTIONS", "/faults"),
    ("GET", "/db"),
    ("GET", "/dat"),
    ("HEAD", "/db?up=false"),
    ("GET", "/startup"),
    ("HEAD", "/startup?done=false"),
    ("GET", "/config"),
    ("GET", "/metrics"),
    ("GET", "/live"),
    ("GET", "/livez?done=false"),
    ("GET", "/song"),
    ("GET", "/ready?mode=down"),
    ("GET", "/san-sang"),
    ("GET", "/health/ready"),
    ("GET", "/wrong/live?up=false"),
    ("GET", "/wrong/shallow"),
    ("GET", "/"),
    ("GET", "/work?up=false"),
    ("GET", "/data"),
];

const TOKEN: &str = "s3cret-Token/9";

fn ask(at: &Door, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
    let lines: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let mut socket = at.connect();
    // A node that refuses a long body need not read it all.
    let _ = socket.try_send(format!(
        "{method} {path} HTTP/1.1\r\nhost: node\r\n{lines}content-length: {}\r\n\r\n{body}",
        body.len()
    ));
    if method == "HEAD" { socket.head() } else { socket.answer() }
}

/// One of a node's ports.
struct Door(u16);

impl Door {
    fn public(node: &Node) -> Door {
        Door(node.port)
    }

    fn control(node: &Node) -> Door {
        let uri = node.announcement["control"].as_str().expect("a control port is announced");
        Door(uri.strip_prefix("http://127.0.0.1:").expect("an address").parse().expect("a port"))
    }

    fn connect(&self) -> Socket {
        Socket::connect(("127.0.0.1", self.0))
    }

    fn status(&self, path: &str) -> u16 {
        self.connect().get(path).status
    }
}

/// The envelope of `answer`, which must be one.
#[track_caller]
fn problem(answer: &Answer, status: u16) -> Value {
    assert_eq!(answer.status, status, "{}", answer.text());
    assert_eq!(answer.header("content-type"), Some("application/json"), "{}", answer.text());
    let json = answer.json();
    assert_eq!((&json["host"], &json["status"]), (&"guarded".into(), &status.into()), "{json}");
    assert!(json["error"].as_str().is_some_and(|error| !error.is_empty() && error.lines().count() == 1), "{json}");
    json
}

fn guarded() -> Start {
    Start::node().env("HOSTNAME", "guarded")
}

fn with_token() -> Node {
    guarded().flags("--control-token").arg(TOKEN).start()
}

#[test]
fn without_the_token_nothing_changes() {
    let node = with_token();
    let door = Door::public(&node);
    let nearly = format!("Bearer {}", &TOKEN[1..]);
    for authorization in ["", "Bearer", &nearly, TOKEN, &format!("Basic {TOKEN}")] {
        for (method, path, body) in CHANGES {
            let headers: &[_] = if authorization.is_empty() { &[] } else { &[("authorization", authorization)] };
            let answer = ask(&door, method, path, headers, body);
            let json = problem(&answer, 401);
            assert_eq!(answer.header("www-authenticate"), Some("Bearer"), "{method} {path}");
            assert!(json["error"].as_str().expect("text").contains("--control-token"), "{json}");
        }
    }
    for (method, path, body) in [
        ("PUT", "/faults", r#"{"error_rate":1}"#),
        ("GET", "/db?up=false", ""),
        ("PUT", "/startup", r#"{"done":false}"#),
    ] {
        problem(&ask(&door, method, path, &[], body), 401);
    }
    assert_eq!(door.connect().get("/faults").json()["enabled"], false);
    assert_eq!((door.status("/"), door.status("/ready"), door.status("/startup")), (200, 200, 200));
}

#[test]
fn with_the_token_everything_can_be_changed() {
    let node = with_token();
    for authorization in [format!("Bearer {TOKEN}"), format!("bearer {TOKEN}")] {
        for (method, path, body) in CHANGES {
            let answer = ask(&Door::public(&node), method, path, &[("authorization", &authorization)], body);
            assert_eq!(answer.status, 200, "{method} {path}: {}", answer.text());
        }
    }
    let down = [("authorization", &*format!("Bearer {TOKEN}"))];
    assert_eq!(ask(&Door::public(&node), "GET", "/db?up=false", &down, "").status, 200);
    assert_eq!(node.get("/ready").status, 503, "what is allowed has its effect");
}

#[test]
fn looking_needs_no_token_and_is_allowed_to_everybody() {
    let node = with_token();
    for headers in [&[][..], &[("sec-fetch-site", "cross-site")]] {
        for (method, path) in LOOKS {
            let answer = ask(&Door::public(&node), method, path, headers, "");
            assert_eq!(answer.status, 200, "{method} {path}");
        }
    }
    assert_eq!(node.get("/db").text(), r#"{"mode":"up"}"#);
    assert_eq!(node.get("/startup").status, 200);
}

#[test]
fn without_a_token_configured_a_token_is_not_asked_for() {
    let node = guarded().start();
    for (method, path, body) in CHANGES {
        assert_eq!(ask(&Door::public(&node), method, path, &[], body).status, 200, "{method} {path}");
    }
}

#[test]
fn a_page_of_another_site_changes_nothing_whatever_it_holds() {
    let authorization = format!("Bearer {TOKEN}");
    for node in [guarded().start(), with_token()] {
        let door = Door::public(&node);
        for (method, path, body) in CHANGES {
            let site = |site| [("authorization", authorization.as_str()), ("sec-fetch-site", site)];
            problem(&ask(&door, method, path, &site("cross-site"), body), 403);
            for own in ["same-origin", "none", "same-site"] {
                assert_eq!(ask(&door, method, path, &site(own), body).status, 200, "{method} {path} {own}");
            }
        }
        problem(&ask(&door, "GET", "/db?up=false", &[("sec-fetch-site", "cross-site")], ""), 403);
        assert_eq!(door.status("/ready"), 200);
    }
}

#[test]
fn the_token_is_never_shown() {
    let told = |name: &str| guarded().env("REST_CASCADE_CONTROL_TOKEN", TOKEN).env("REST_CASCADE_ACCESS_LOG", name);
    let mut node = told("all").start();
    let authorization = format!("Bearer {TOKEN}");
    let config = node.get("/config");
    assert_eq!(config.json()["control_token"], "***");
    for (method, path, body) in CHANGES {
        ask(&Door::public(&node), method, path, &[("authorization", &authorization)], body);
    }
    for path in ["/config", "/metrics", "/faults", "/db", "/ready", "/"] {
        assert!(!node.get(path).text().contains(TOKEN), "{path}");
    }
    assert!(!node.announcement.to_string().contains(TOKEN));
    node.signal(rustix::process::Signal::TERM);
    node.end();
    let log = node.log.whole();
    assert!(log.contains("effective settings") && log.contains("/faults"), "{log}");
    assert!(!log.contains(TOKEN), "{log}");

    for help in ["serve --help", "serve -h"] {
        let Refusal { code, stdout, .. } = told("off").flags(help).run();
        assert_eq!(code, Some(0));
        assert!(stdout.contains("REST_CASCADE_CONTROL_TOKEN") && !stdout.contains(TOKEN), "{stdout}");
    }
    let spoiled = format!("{TOKEN} and more");
    for start in [
        guarded().env("REST_CASCADE_CONTROL_TOKEN", &spoiled),
        guarded().flags("--control-token").arg(&spoiled),
        guarded().arg(format!("--control-token={spoiled}")),
    ] {
        let Refusal { code, stderr, stdout } = start.run();
        assert_eq!((code, stdout.as_str()), (Some(2), ""));
        assert!(stderr.contains("--control-token") && stderr.contains("1 to 256"), "{stderr}");
        assert!(!stderr.contains(TOKEN) && stderr.lines().count() == 1, "{stderr}");
    }
}

#[test]
fn the_help_shows_no_password_of_a_dependency() {
    let start = guarded().env("REST_CASCADE_CHECK", "db=postgres://u:pa55w0rd@h/d");
    let Refusal { code, stdout, .. } = start.flags("serve --help").run();
    assert_eq!(code, Some(0));
    assert!(stdout.contains("REST_CASCADE_CHECK") && !stdout.contains("pa55w0rd"), "{stdout}");
}

#[test]
fn the_probes_that_harm_are_not_for_pages_of_other_sites() {
    let node = guarded().start();
    for path in ["/wrong/blocking", "/chan", "/wrong/leaky"] {
        for foreign in [("sec-fetch-site", "cross-site"), ("origin", "http://elsewhere.example")] {
            problem(&ask(&Door::public(&node), "GET", path, &[foreign], ""), 403);
        }
    }
    assert_eq!(node.get("/chan?ms=1").status, 200);
}

#[test]
fn control_is_reached_while_every_public_place_is_taken() {
    let start = guarded().flags("--control-listen 127.0.0.1:0 --max-connections 2");
    let node = start.flags("--faults").arg(r#"{"delay":"10m"}"#).start();
    let (public, control) = (Door::public(&node), Door::control(&node));
    let mut held: Vec<Socket> = (0..2).map(|_| public.connect()).collect();
    held.iter_mut().for_each(|socket| socket.send("GET / HTTP/1.1\r\nhost: x\r\n\r\n"));
    eventually("both are held", || control.connect().get("/faults").json()["observed"]["requests"] == 2);
    assert_eq!(control.status("/live"), 200);
    assert_eq!(ask(&control, "DELETE", "/faults", &[], "").status, 200);
    for socket in &mut held {
        assert!(socket.answer().is_complete());
    }
}

#[test]
fn control_has_a_door_of_its_own_where_it_is_told_to() {
    let node = guarded().flags("--control-listen 127.0.0.1:0").start();
    let (public, control) = (Door::public(&node), Door::control(&node));
    assert_ne!(public.0, control.0);
    for path in ["/faults", "/db", "/dat", "/config", "/metrics"] {
        problem(&public.connect().get(path), 404);
        assert_eq!(control.status(path), 200, "{path}");
    }
    for path in ["/", "/work", "/viec", "/data"] {
        assert_eq!(public.status(path), 200, "{path}");
        problem(&control.connect().get(path), 404);
    }
    for path in ["/live", "/livez", "/song", "/ready", "/san-sang", "/startup", "/wrong/live"] {
        assert_eq!((public.status(path), control.status(path)), (200, 200), "{path}");
    }
    assert_eq!(ask(&control, "PUT", "/faults", &[], r#"{"error_rate":1,"status":418}"#).status, 200);
    assert_eq!(public.status("/work"), 418, "the two doors lead to one node");
    assert_eq!(ask(&control, "DELETE", "/faults", &[], "").status, 200);
    assert_eq!(control.status("/db?up=false"), 200);
    assert_eq!((public.status("/ready"), control.status("/ready")), (503, 503));
}

#[test]
fn the_public_door_shows_the_startup_probe_and_does_not_turn_it() {
    let node = guarded().flags("--control-listen 127.0.0.1:0 --startup-delay 1h --control-token").arg(TOKEN).start();
    let (public, control) = (Door::public(&node), Door::control(&node));
    let authorization = format!("Bearer {TOKEN}");
    let token = [("authorization", authorization.as_str())];
    let changes = CHANGES.iter().filter(|(_, path, _)| path.contains("start"));
    assert_eq!(changes.clone().count(), 4);
    for (method, path, body) in changes.clone() {
        let json = problem(&ask(&public, method, path, &token, body), 403);
        assert!(json["error"].as_str().expect("text").contains("--control-listen"), "{json}");
        problem(&ask(&control, method, path, &[], body), 401);
        assert_eq!((public.status("/startup"), control.status("/startup")), (503, 503));
    }
    assert_eq!(ask(&control, "GET", "/startup?done=true", &token, "").status, 200);
    assert_eq!((public.status("/startup"), control.status("/startup")), (200, 200));
}

#[test]
fn both_doors_stay_open_through_the_drain_delay_and_close_together() {
    let mut node = guarded().flags("--control-listen 127.0.0.1:0 --drain-delay 1s --drain-timeout 20s").start();
    let doors = [Door::public(&node), Door::control(&node)];
    let mut idle: Vec<_> = doors.iter().map(Door::connect).collect();
    assert!(idle.iter_mut().all(|socket| socket.get("/live").status == 200));
    node.signal(rustix::process::Signal::TERM);
    node.log.until("/ready now answers 503");
    for door in &doors {
        assert_eq!((door.status("/ready"), door.status("/live")), (503, 200));
    }
    node.log.until("listener closed");
    for door in &doors {
        eventually("the door is closed", || Socket::try_connect(("127.0.0.1", door.0)).is_err());
    }
    idle.iter_mut().for_each(|socket| assert!(socket.until_closed().is_empty()));
    assert_eq!(node.end().code(), Some(0));
}

#[test]
fn an_address_for_control_that_cannot_be_had_ends_the_start() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = taken.local_addr().expect("bound").port().to_string();
    let address = format!("127.0.0.1:{port}");
    let refused = guarded().flags("--control-listen").arg(&address).run();
    assert_eq!((refused.code, refused.stdout.as_str()), (Some(1), ""));
    let line = refused.stderr.lines().last().expect("a line");
    assert!(line.contains(&port) && line.contains("--control-listen") && line.contains("in use"), "{line}");

    // Before any port opens: that the public one is taken, too, is not even noticed.
    for nonsense in ["nonsense", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:70000", ":", "http://127.0.0.1:1"] {
        let refused = guarded().env("PORT", &port).arg(format!("--control-listen={nonsense}")).run();
        let line = refused.stderr.lines().last().expect("a line");
        assert_eq!(refused.code, Some(2), "{line}");
        assert!(line.starts_with("error: ") && line.contains(nonsense) && line.contains("--control-listen"), "{line}");
    }
}

#[test]
fn a_door_is_announced_at_the_address_where_it_is() {
    let node = guarded().flags("--listen 127.0.0.2:0 --control-listen 0.0.0.0:0").start();
    assert_eq!(node.announcement["listening"], format!("http://127.0.0.2:{}", node.port));
    assert_eq!(Door::control(&node).status("/config"), 200);
    assert_eq!(Node::leaf().announcement.get("control"), None);
}

#[test]
fn every_refusal_is_json_that_names_the_node() {
    let node = guarded().start();
    let door = Door::public(&node);
    for (path, limit) in [("/faults", 16 * 1024), ("/db", 64 * 1024), ("/startup", 64 * 1024)] {
        for too_long in [limit + 1, 64 * 1024 + 1, 1024 * 1024] {
            let json = problem(&ask(&door, "PUT", path, &[], &" ".repeat(too_long)), 413);
            assert!(json["error"].as_str().expect("text").contains(&limit.to_string()), "{json}");
        }
        let chunk = format!("{:x}\r\n{}\r\n0\r\n\r\n", limit + 1, " ".repeat(limit + 1));
        let mut socket = door.connect();
        socket.send(format!("PUT {path} HTTP/1.1\r\nhost: node\r\ntransfer-encoding: chunked\r\n\r\n{chunk}"));
        problem(&socket.answer(), 413);
        // What is just short enough is read, and refused for what it says.
        problem(&ask(&door, "PUT", path, &[], &" ".repeat(limit)), 400);
    }
    problem(&ask(&door, "GET", "/nowhere", &[], ""), 404);
    problem(&ask(&door, "PATCH", "/faults", &[], ""), 405);
    problem(&ask(&door, "POST", "/", &[], ""), 405);
    problem(&ask(&door, "GET", "/data?s=1", &[], ""), 400);
    let mut socket = door.connect();
    socket.send("PUT /db HTTP/1.1\r\nhost: node\r\ntransfer-encoding: chunked\r\n\r\nno length\r\n");
    problem(&socket.answer(), 400);
}
