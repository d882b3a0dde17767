//! https targets: whom a node trusts, and what it says when it does not.

use std::io::Write as _;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tempfile::NamedTempFile;

use crate::support::{Start, Upstream, timed};

/// An authority, made for one test.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// Its certificate in a PEM file.
    file: NamedTempFile,
}

impl Authority {
    fn new() -> Authority {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).expect("a certificate");
        let mut file = NamedTempFile::new().expect("a file");
        file.write_all(certificate.pem().as_bytes()).expect("a file");
        Authority { issuer: Issuer::new(params, key), file }
    }

    /// A server's configuration with a certificate for `names`, changed by `change`.
    fn server(&self, names: &[&str], change: impl FnOnce(&mut CertificateParams)) -> rustls::ServerConfig {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).expect("names");
        change(&mut params);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        let key = rustls::pki_types::PrivateKeyDer::Pkcs8(key.serialize_der().into());
        rustls::ServerConfig::builder_with_provider(rustls::crypto::ring::default_provider().into())
            .with_safe_default_protocol_versions()
            .expect("ring has them")
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .expect("a key that fits")
    }
}

fn secure(config: rustls::ServerConfig) -> Upstream {
    Upstream::secure(config, |peer, _| peer.json("{\"secure\":true}"))
}

/// A node that calls `upstream` by https under this host name and trusts `authority`.
fn calling(upstream: &Upstream, host: &str, authority: &Authority) -> Start {
    let start = Start::calling(format!("https://{host}:{}", upstream.address.port()));
    start.arg("--target-ca").arg(authority.file.path())
}

#[test]
fn a_target_with_a_trusted_certificate_answers() {
    let authority = Authority::new();
    let upstream = secure(authority.server(&["localhost", "127.0.0.1"], |_| {}));
    for host in ["127.0.0.1", "localhost"] {
        let node = calling(&upstream, host, &authority).start();
        let mut socket = node.connect();
        for _ in 0..5 {
            let answer = socket.get("/");
            assert!(answer.is_complete(), "{}", answer.text());
            assert_eq!(answer.json()["responseInfo"]["secure"], true);
        }
    }
    assert_eq!(upstream.connections(), 2, "a TLS connection is used again too");
}

#[test]
fn whom_the_node_does_not_trust_it_does_not_call() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let yesterday = rcgen::date_time_ymd(2020, 1, 2);
    for (what, config) in [
        ("another authority", stranger.server(&["127.0.0.1"], |_| {})),
        ("another name", authority.server(&["other.example"], |_| {})),
        ("expired", authority.server(&["127.0.0.1"], |params| params.not_after = yesterday)),
    ] {
        let upstream = secure(config);
        let node = calling(&upstream, "127.0.0.1", &authority).start();
        let answer = node.get("/");
        assert_eq!(answer.reason(), "tls", "{what}: {}", answer.text());
        assert_eq!(answer.header("cascade-reason"), Some("tls; hop=2"));
        assert_eq!(upstream.requests().len(), 0, "{what}");
        assert_eq!(node.metric(&["downstream_calls_total", "reason=\"tls\""]), 1.0);
    }
}

#[test]
fn the_systems_authorities_do_not_include_ours() {
    let authority = Authority::new();
    let upstream = secure(authority.server(&["127.0.0.1"], |_| {}));
    let start = Start::calling(format!("https://{}", upstream.address));
    // A machine without any authority refuses at start, and says what to give.
    match start.try_start() {
        Ok(node) => assert_eq!(node.get("/").reason(), "tls"),
        Err(refusal) => assert!(refusal.code == Some(2) && refusal.stderr.contains("--target-ca FILE"), "{refusal:?}"),
    }
}

#[test]
fn a_target_that_speaks_no_tls_is_tls_and_one_that_speaks_only_tls_is_protocol() {
    let authority = Authority::new();
    let plain = Upstream::accepting(|peer| {
        peer.send("HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n");
        peer.until_gone();
    });
    let answer = calling(&plain, "127.0.0.1", &authority).start().get("/");
    assert_eq!(answer.reason(), "tls", "{}", answer.text());

    let hangs_up = Upstream::accepting(|peer| peer.close());
    let answer = calling(&hangs_up, "127.0.0.1", &authority).start().get("/");
    assert_eq!(answer.reason(), "tls", "{}", answer.text());

    let upstream = secure(authority.server(&["127.0.0.1"], |_| {}));
    let answer = Start::calling(upstream.uri()).start().get("/");
    assert_eq!(answer.reason(), "protocol", "{}", answer.text());
}

#[test]
fn a_handshake_that_never_ends_is_bounded_by_the_connect_time_out() {
    let authority = Authority::new();
    let silent = Upstream::accepting(|peer| peer.until_gone());
    let node = calling(&silent, "127.0.0.1", &authority).flags("--connect-timeout 400ms").start();
    let (answer, took) = timed(|| node.get("/"));
    assert_eq!(answer.reason(), "connect_timeout", "{}", answer.text());
    assert!(took.as_millis() >= 380 && took.as_secs() < 5, "{took:?}");
    silent.until_nobody_is_there();
}

#[test]
fn a_load_trusts_whom_it_is_told_to() {
    let authority = Authority::new();
    let upstream = secure(authority.server(&["127.0.0.1"], |_| {}));
    let url = upstream.uri().replace("http:", "https:");
    let load = |authority: &Authority, flags: &str| {
        let start = Start::node().flags("stress -n 20 -c 2").flags(flags).arg(&url);
        start.arg("--ca").arg(authority.file.path()).run()
    };
    let ended = load(&authority, "-k");
    assert_eq!((ended.code, upstream.connections()), (Some(0), 2), "{ended:?}");
    assert!(ended.stdout.contains("Complete cascades:      20\n"), "{ended:?}");
    let ended = load(&Authority::new(), "");
    assert!(ended.code == Some(1) && ended.stdout.contains("(tls: 20)"), "{ended:?}");
}
