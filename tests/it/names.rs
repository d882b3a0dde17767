//! Targets whose names change: a name server of our own, and nodes that see only it.
//!
//! A node reads `/etc/resolv.conf`, so it gets one of its own in a mount namespace.

use std::collections::HashMap;
use std::io::Write as _;
use std::net::{Ipv4Addr, UdpSocket};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{Node, Start, Upstream, eventually, timed};

/// What the name server says of a name.
#[derive(Clone)]
enum Says {
    Addresses(Vec<Ipv4Addr>),
    /// Nothing at all: the packet is lost.
    Nothing,
}

/// A name server on an address of its own; it does not know a name that it was not told.
struct NameServer {
    says: Arc<Mutex<HashMap<String, Says>>>,
    resolv_conf: tempfile::NamedTempFile,
}

impl NameServer {
    /// Listens at 127.77.0.`number`, so that tests do not meet.
    fn start(number: u8) -> NameServer {
        let address = Ipv4Addr::new(127, 77, 0, number);
        let socket = UdpSocket::bind((address, 53)).expect("port 53 needs root");
        let says = Arc::new(Mutex::new(HashMap::<String, Says>::new()));
        let told = Arc::clone(&says);
        thread::spawn(move || {
            let mut packet = [0; 512];
            while let Ok((length, from)) = socket.recv_from(&mut packet) {
                if let Some(answer) = answer(&packet[..length], &told.lock().expect("no panic under it")) {
                    socket.send_to(&answer, from).expect("a loopback");
                }
            }
        });
        let mut resolv_conf = tempfile::NamedTempFile::new().expect("a file");
        writeln!(resolv_conf, "nameserver {address}\nsearch svc.test\noptions ndots:1 timeout:1").expect("a file");
        NameServer { says, resolv_conf }
    }

    fn set(&self, name: &str, says: Says) {
        self.says.lock().expect("no panic under it").insert(name.to_owned(), says);
    }

    fn forget(&self, name: &str) {
        self.says.lock().expect("no panic under it").remove(name);
    }

    /// A node that resolves by this server alone.
    fn node(&self, target: &str, flags: &str) -> Node {
        let mut unshare = Command::new("/usr/bin/unshare");
        unshare.args(["--mount", "/bin/sh", "-c", "mount --bind \"$0\" /etc/resolv.conf && exec \"$@\""]);
        unshare.arg(self.resolv_conf.path()).arg(env!("CARGO_BIN_EXE_rest-cascade"));
        Start::by(unshare).env("PORT", "0").env("targetUri", target).flags(flags).start()
    }
}

/// The answer to one question in one packet, by RFC 1035.
fn answer(query: &[u8], told: &HashMap<String, Says>) -> Option<Vec<u8>> {
    let mut at = 12;
    let mut labels = Vec::new();
    while *query.get(at)? > 0 {
        let length = usize::from(query[at]);
        labels.push(String::from_utf8_lossy(query.get(at + 1..at + 1 + length)?).to_ascii_lowercase());
        at += 1 + length;
    }
    let question = query.get(12..at + 5)?;
    let is_a = question.get(question.len() - 4..question.len() - 2)? == [0, 1];
    let (code, addresses) = match told.get(&labels.join(".")) {
        None => (3, Vec::new()),
        Some(Says::Nothing) => return None,
        Some(Says::Addresses(addresses)) if is_a => (0, addresses.clone()),
        // It has no IPv6 address.
        Some(Says::Addresses(_)) => (0, Vec::new()),
    };
    let mut packet = query[..2].to_vec();
    packet.extend([0x85, 0x80 | code, 0, 1, 0, u8::try_from(addresses.len()).ok()?, 0, 0, 0, 0]);
    packet.extend(question);
    for address in addresses {
        // The name of the question, A, IN, an hour to live, four bytes.
        packet.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0x0e, 0x10, 0, 4]);
        packet.extend(address.octets());
    }
    Some(packet)
}

fn replica(last: [u8; 2], port: u16, name: &'static str) -> Upstream {
    let ip = Ipv4Addr::new(127, 77, last[0], last[1]);
    Upstream::answering_at(ip.into(), port, move |peer, _| peer.json(&format!("\"{name}\"")))
}

fn at(upstream: &Upstream) -> Ipv4Addr {
    match upstream.address.ip() {
        std::net::IpAddr::V4(ip) => ip,
        std::net::IpAddr::V6(ip) => panic!("{ip}"),
    }
}

#[test]
#[ignore = "needs root and network namespaces"]
fn a_name_that_moves_is_followed_within_five_seconds() {
    let server = NameServer::start(1);
    let first = replica([1, 1], 0, "first");
    let port = first.address.port();
    let second = replica([1, 2], port, "second");
    server.set("backend.test", Says::Addresses(vec![at(&first)]));
    let node = server.node(&format!("http://backend.test:{port}"), "");
    assert_eq!(node.get("/").json()["responseInfo"], "first");
    // The old one still answers, on connections that wait in the pool: the name alone says that it is over.
    server.set("backend.test", Says::Addresses(vec![at(&second)]));
    let (_, took) = timed(|| eventually("the second", || node.get("/").json()["responseInfo"] == "second"));
    assert!(took < Duration::from_secs(7), "{took:?}");
    first.until_nobody_is_there();
    for _ in 0..20 {
        assert_eq!(node.get("/").json()["responseInfo"], "second");
    }
}

#[test]
#[ignore = "needs root and network namespaces"]
fn a_service_that_is_made_anew_elsewhere_is_reached_without_a_restart() {
    let server = NameServer::start(2);
    let mut first = replica([2, 1], 0, "first");
    let port = first.address.port();
    server.set("backend.test", Says::Addresses(vec![at(&first)]));
    let node = server.node(&format!("http://backend.test:{port}"), "--pool-idle-timeout 1s");
    assert_eq!(node.get("/").json()["responseInfo"], "first");
    first.until_nobody_is_there();
    first.stop();
    assert_eq!(node.get("/").reason(), "refused");
    let second = replica([2, 2], port, "second");
    server.set("backend.test", Says::Addresses(vec![at(&second)]));
    let (_, took) = timed(|| eventually("the second", || node.get("/").json()["responseInfo"] == "second"));
    assert!(took < Duration::from_secs(7), "{took:?}");
}

#[test]
#[ignore = "needs root and network namespaces"]
fn a_name_that_does_not_exist_is_told_and_found_when_it_does() {
    let server = NameServer::start(3);
    let upstream = replica([3, 1], 0, "here");
    let node = server.node(&format!("http://backend.test:{}", upstream.address.port()), "");
    node.log.until("backend.test cannot be resolved: no such name");
    assert_eq!(node.get("/").reason(), "dns");
    server.set("backend.test", Says::Addresses(vec![at(&upstream)]));
    let (_, took) = timed(|| eventually("it is found", || node.get("/").is_complete()));
    assert!(took < Duration::from_secs(4), "no negative answer is kept beyond a second: {took:?}");

    server.forget("backend.test");
    drop(upstream);
    let (_, took) = timed(|| eventually("it is gone", || node.get("/").reason() == "dns"));
    assert!(took < Duration::from_secs(10), "{took:?}");
}

#[test]
#[ignore = "needs root and network namespaces"]
fn a_name_server_that_does_not_answer_costs_its_time_out_and_nothing_after_that() {
    let server = NameServer::start(4);
    let upstream = replica([4, 1], 0, "here");
    server.set("backend.test", Says::Nothing);
    let uri = format!("http://backend.test:{}", upstream.address.port());
    let node = server.node(&uri, "--dns-timeout 500ms");
    let (answer, took) = timed(|| node.get("/"));
    assert_eq!(answer.reason(), "dns", "{}", answer.text());
    assert!(took < Duration::from_secs(3), "{took:?}");
    server.set("backend.test", Says::Addresses(vec![at(&upstream)]));
    eventually("it is found", || node.get("/").is_complete());
    // Now that the address is known, a name server that is away takes nothing away.
    server.set("backend.test", Says::Nothing);
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(6) {
        assert!(node.get("/").is_complete());
        thread::sleep(Duration::from_millis(100));
    }
}

#[test]
#[ignore = "needs root and network namespaces"]
fn every_address_of_a_name_is_a_replica() {
    let server = NameServer::start(5);
    let first = replica([5, 1], 0, "first");
    let second = replica([5, 2], first.address.port(), "second");
    server.set("backend.test", Says::Addresses(vec![at(&first), at(&second)]));
    let node = server.node(&format!("http://backend.test:{}", first.address.port()), "");
    for _ in 0..20 {
        assert!(node.get("/").is_complete());
    }
    assert_eq!((first.requests().len(), second.requests().len()), (10, 10));
}

#[test]
#[ignore = "needs root and network namespaces"]
fn a_short_name_is_found_in_the_search_domain() {
    let server = NameServer::start(6);
    let upstream = replica([6, 1], 0, "here");
    server.set("backend.svc.test", Says::Addresses(vec![at(&upstream)]));
    let port = upstream.address.port();
    let node = server.node(&format!("http://backend:{port}"), "");
    assert!(node.get("/").is_complete());
    assert_eq!(upstream.until_request(1).header("host"), Some(format!("backend:{port}").as_str()));
}

#[test]
#[ignore = "needs root and network namespaces"]
fn where_ipv6_is_off_a_node_starts_on_ipv4() {
    let mut unshare = Command::new("/usr/bin/unshare");
    let script = "echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6 && ip link set lo up && exec \"$@\"";
    unshare.args(["--net", "/bin/sh", "-c", script, "sh", env!("CARGO_BIN_EXE_rest-cascade")]);
    let node = Start::by(unshare).env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("PORT", "0").start();
    for (url, code) in [("http://127.0.0.1", 0), ("http://[::1]", 1)] {
        let mut nsenter = Command::new("/usr/bin/nsenter");
        nsenter.arg(format!("--net=/proc/{}/ns/net", node.pid())).arg(env!("CARGO_BIN_EXE_rest-cascade"));
        let asked = Start::by(nsenter).flags("healthcheck").arg(format!("{url}:{}/live", node.port)).run();
        assert_eq!(asked.code, Some(code), "{asked:?}");
    }
}
