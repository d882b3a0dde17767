//! A node of the built binary, and raw HTTP/1 on a socket. Asserts only that what was asked could be done.

use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Nothing that is right takes this long, however busy the machine.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// A running node; it ends when this drops.
pub(super) struct Node {
    child: Child,
    pub(super) port: u16,
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rest-cascade"));
    command.env_clear().env("PORT", "0").env("HOSTNAME", "node").args(args);
    command
}

impl Node {
    pub(super) fn start(args: &[&str]) -> Node {
        let mut child = command(args).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("the built binary");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("an announcement");
        let announced: Value = serde_json::from_str(&line).expect("one line of JSON");
        let port = announced["port"].as_u64().and_then(|port| port.try_into().ok()).expect("a port");
        Node { child, port }
    }

    /// A leaf with these faults.
    pub(super) fn with(faults: &str) -> Node {
        let node = Node::start(&[]);
        node.put(faults);
        node
    }

    /// A node whose target is `self`.
    pub(super) fn front(&self) -> Node {
        Node::start(&["--target", &format!("http://127.0.0.1:{}", self.port)])
    }

    pub(super) fn connect(&self) -> Socket {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).expect("the node listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("not zero");
        stream.set_nodelay(true).expect("a TCP socket");
        Socket(BufReader::new(stream))
    }

    pub(super) fn get(&self, path: &str) -> Answer {
        self.connect().ask("GET", path, "")
    }

    pub(super) fn put(&self, faults: &str) -> Value {
        let answer = self.connect().ask("PUT", "/faults", faults);
        assert_eq!(answer.status, 200, "{faults}: {}", answer.body);
        answer.json()
    }

    pub(super) fn clear(&self) -> Value {
        self.connect().ask("DELETE", "/faults", "").json()
    }

    pub(super) fn faults(&self) -> Value {
        self.get("/faults").json()
    }

    /// A figure under `observed`.
    pub(super) fn observed(&self, name: &str) -> u64 {
        self.faults()["observed"][name].as_u64().unwrap_or_else(|| panic!("{name} is no figure of /faults"))
    }

    #[track_caller]
    pub(super) fn eventually(&self, name: &str, value: u64) {
        let start = Instant::now();
        while self.observed(name) != value {
            assert!(start.elapsed() < PATIENCE, "{name} never became {value}: {}", self.faults());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Runs a node that is to refuse to start.
pub(super) fn refusal(args: &[&str]) -> Output {
    command(args).output().expect("the built binary")
}

/// One connection to a node.
pub(super) struct Socket(BufReader<TcpStream>);

#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    /// The head's lines after the first.
    pub(super) headers: Vec<String>,
    pub(super) body: String,
}

/// How a connection ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum End {
    Closed,
    Reset,
}

impl Socket {
    pub(super) fn send(&mut self, bytes: &str) {
        self.0.get_mut().write_all(bytes.as_bytes()).expect("the node reads");
    }

    pub(super) fn request(&mut self, method: &str, path: &str, body: &str) {
        let length = body.len();
        self.send(&format!("{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n{body}"));
    }

    pub(super) fn ask(&mut self, method: &str, path: &str, body: &str) -> Answer {
        self.request(method, path, body);
        self.answer(method != "HEAD")
    }

    pub(super) fn head(&mut self) -> (u16, Vec<String>) {
        let mut lines = std::iter::from_fn(|| {
            let mut line = String::new();
            self.0.read_line(&mut line).expect("a line of a head");
            Some(line.trim_end().to_owned()).filter(|line| !line.is_empty())
        });
        let first = lines.next().expect("a status line");
        let status = first.split(' ').nth(1).and_then(|status| status.parse().ok()).expect(&first);
        (status, lines.collect())
    }

    pub(super) fn answer(&mut self, with_body: bool) -> Answer {
        let (status, headers) = self.head();
        let mut answer = Answer { status, headers, body: String::new() };
        if with_body {
            let length: usize = answer.header("content-length").and_then(|text| text.parse().ok()).expect("a length");
            let mut body = vec![0; length];
            self.0.read_exact(&mut body).expect("the whole body");
            answer.body = String::from_utf8(body).expect("UTF-8");
        }
        answer
    }

    /// All that comes until the connection ends, and how that is.
    pub(super) fn rest(&mut self) -> (Vec<u8>, End) {
        let mut bytes = Vec::new();
        match self.0.read_to_end(&mut bytes) {
            Ok(_) => (bytes, End::Closed),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => (bytes, End::Reset),
            Err(error) => panic!("neither closed nor reset: {error}"),
        }
    }
}

impl Answer {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }

    pub(super) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    pub(super) fn msg(&self) -> String {
        self.json()["msg"].as_str().map(str::to_owned).unwrap_or_else(|| panic!("no msg: {self:?}"))
    }
}
