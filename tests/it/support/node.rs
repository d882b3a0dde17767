//! Nodes as their users start them: the built binary, told by flags and environment, found by its announcement.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::http::{Answer, Socket};
use super::{PATIENCE, eventually};

/// How to start a node; nothing of this test's own environment reaches it.
pub(crate) struct Start(Command);

/// A running node; dropping it kills it.
pub(crate) struct Node {
    pub(crate) port: u16,
    pub(crate) announcement: Value,
    pub(crate) log: Log,
    child: Child,
}

/// How a process that was not to run ended.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Start {
    /// A leaf on a free port, unless told otherwise.
    pub(crate) fn node() -> Start {
        Start::by(Command::new(env!("CARGO_BIN_EXE_rest-cascade"))).env("PORT", "0")
    }

    /// Whatever starts the binary in the end: `unshare …`, say.
    pub(crate) fn by(mut command: Command) -> Start {
        command.env_clear();
        Start(command)
    }

    pub(crate) fn calling(uri: impl AsRef<str>) -> Start {
        Start::node().env("targetUri", uri)
    }

    /// Flags as one writes them, separated by blanks.
    pub(crate) fn flags(mut self, flags: &str) -> Start {
        self.0.args(flags.split_whitespace());
        self
    }

    pub(crate) fn arg(mut self, arg: impl AsRef<std::ffi::OsStr>) -> Start {
        self.0.arg(arg);
        self
    }

    pub(crate) fn env(mut self, name: &str, value: impl AsRef<str>) -> Start {
        self.0.env(name, value.as_ref());
        self
    }

    /// Starts it and waits for its announcement.
    #[track_caller]
    pub(crate) fn start(self) -> Node {
        self.try_start().unwrap_or_else(|refusal| panic!("no node: {refusal:?}"))
    }

    pub(crate) fn try_start(self) -> Result<Node, Refusal> {
        let mut child = self.spawn();
        let log = Log::of(child.stderr.take().expect("piped"));
        let mut line = String::new();
        let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
        stdout.read_line(&mut line).expect("UTF-8");
        if line.is_empty() {
            let code = exit_within(&mut child, PATIENCE).code();
            return Err(Refusal { code, stdout: line, stderr: log.whole() });
        }
        let announcement: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"));
        let port = announcement["port"].as_u64().and_then(|port| port.try_into().ok()).expect("a port");
        Ok(Node { port, announcement, log, child })
    }

    /// Starts it and waits for nothing.
    pub(crate) fn spawn(mut self) -> Child {
        self.0.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        self.0.spawn().unwrap_or_else(|error| panic!("{:?}: {error}", self.0))
    }

    /// Runs it to its end.
    pub(crate) fn run(self) -> Refusal {
        let mut child = self.spawn();
        let log = Log::of(child.stderr.take().expect("piped"));
        let status = exit_within(&mut child, PATIENCE);
        let mut stdout = String::new();
        child.stdout.take().expect("piped").read_to_string(&mut stdout).expect("UTF-8");
        Refusal { code: status.code(), stdout, stderr: log.whole() }
    }
}

/// How `child` ended; it is killed when it does not.
#[track_caller]
pub(crate) fn exit_within(child: &mut Child, limit: Duration) -> ExitStatus {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("our own child") {
            return status;
        }
        if start.elapsed() > limit {
            let _ = child.kill();
            panic!("process {} still runs after {limit:?}", child.id());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

impl Node {
    pub(crate) fn leaf() -> Node {
        Start::node().start()
    }

    pub(crate) fn uri(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn connect(&self) -> Socket {
        Socket::connect(("127.0.0.1", self.port))
    }

    /// One request on a connection of its own.
    pub(crate) fn get(&self, path: &str) -> Answer {
        self.connect().get(path)
    }

    /// A request with a body.
    pub(crate) fn send(&self, method: &str, path: &str, body: &str) -> Answer {
        let mut socket = self.connect();
        let length = body.len();
        socket.send(format!("{method} {path} HTTP/1.1\r\nhost: node\r\ncontent-length: {length}\r\n\r\n{body}"));
        socket.answer()
    }

    /// What `/downstream` shows.
    pub(crate) fn downstream(&self) -> Value {
        self.get("/downstream").json()
    }

    pub(crate) fn get_with(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        self.connect().request("GET", path, headers)
    }

    /// The sum of the series of `/metrics` whose name and labels contain every one of `parts`.
    pub(crate) fn metric(&self, parts: &[&str]) -> f64 {
        let text = self.get("/metrics").text().to_owned();
        let series = text.lines().filter(|line| !line.starts_with('#'));
        let matching = series.filter(|line| parts.iter().all(|part| line.contains(part)));
        matching.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.rustix_pid(), signal).expect("our own child");
    }

    pub(crate) fn rustix_pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Stops it without its knowledge: the kernel still takes connections, nothing answers.
    pub(crate) fn pause(&self) {
        self.signal(Signal::STOP);
        let stat = format!("/proc/{}/stat", self.pid());
        eventually("the node is stopped", || std::fs::read_to_string(&stat).expect("a child").contains(") T "));
    }

    pub(crate) fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Ends it as `kill -9` does; connections are reset or refused from now on.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("our own child");
        self.child.wait().expect("our own child");
    }

    /// Waits for its end.
    #[track_caller]
    pub(crate) fn end(&mut self) -> ExitStatus {
        exit_within(&mut self.child, PATIENCE)
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("our own child").is_none()
    }

    /// Open file descriptors, by the kernel's count.
    pub(crate) fn open_files(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.pid())).expect("a running child").count()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // It may have ended already, which is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- log of the node on port {}:\n{}", self.port, self.log.whole());
        }
    }
}

/// What a process writes to stderr, line by line. Clones are the same log.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<(Mutex<Written>, Condvar)>);

#[derive(Default)]
struct Written {
    lines: Vec<String>,
    ended: bool,
}

impl Log {
    fn of(stderr: impl Read + Send + 'static) -> Log {
        let log = Log::default();
        let writer = log.clone();
        std::thread::spawn(move || {
            let mut stderr = BufReader::new(stderr);
            let mut line = Vec::new();
            while stderr.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
                let text = String::from_utf8_lossy(&line).trim_end_matches('\n').to_owned();
                writer.0.0.lock().expect("no panic under it").lines.push(text);
                writer.0.1.notify_all();
                line.clear();
            }
            writer.0.0.lock().expect("no panic under it").ended = true;
            writer.0.1.notify_all();
        });
        log
    }

    /// Waits for a line that contains `part`.
    #[track_caller]
    pub(crate) fn until(&self, part: &str) -> String {
        let contains = |line: &&String| line.contains(part);
        let written = self.wait(|written| written.ended || written.lines.iter().any(|line| contains(&line)));
        let found = written.iter().find(contains).cloned();
        found.unwrap_or_else(|| panic!("no line with {part:?} in\n{}", written.join("\n")))
    }

    /// The lines so far.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.wait(|_| true)
    }

    /// Everything, once the process has closed it.
    pub(crate) fn whole(&self) -> String {
        self.wait(|written| written.ended).join("\n")
    }

    fn wait(&self, done: impl Fn(&Written) -> bool) -> Vec<String> {
        let written = self.0.0.lock().expect("no panic under it");
        let waited = self.0.1.wait_timeout_while(written, PATIENCE, |written| !done(written));
        waited.expect("no panic under it").0.lines.clone()
    }
}

/// Nodes `service-1` … `service-N`, each calling the next.
pub(crate) struct Cascade {
    nodes: Vec<Node>,
}

/// A node that calls `uri` by this policy, and whose answers tell how its calls ended.
pub(crate) fn following(uri: &str, policy: Value) -> Node {
    following_with(Start::calling(uri), policy)
}

pub(crate) fn following_with(start: Start, policy: Value) -> Node {
    let node = start.flags("--on-failure propagate").start();
    let answer = node.send("PUT", "/policy", &policy.to_string());
    assert_eq!(answer.status, 200, "{}", answer.text());
    node
}

/// So many requests at the same time, each on a connection of its own.
pub(crate) fn at_once(node: &Node, count: usize) -> Vec<Answer> {
    let sockets: Vec<_> = (0..count)
        .map(|_| {
            let mut socket = node.connect();
            socket.send("GET / HTTP/1.1\r\nhost: x\r\n\r\n");
            socket
        })
        .collect();
    sockets.into_iter().map(|mut socket| socket.answer()).collect()
}

impl Cascade {
    pub(crate) fn of(length: usize) -> Cascade {
        Cascade::with(length, |start| start)
    }

    /// A cascade whose nodes are told more.
    pub(crate) fn with(length: usize, tell: impl Fn(Start) -> Start) -> Cascade {
        Cascade::ending_at("", length, tell)
    }

    /// A cascade whose last node calls `uri`. Started from its end, so that no port is guessed.
    pub(crate) fn ending_at(uri: &str, length: usize, tell: impl Fn(Start) -> Start) -> Cascade {
        let mut target = uri.to_owned();
        let mut nodes = Vec::new();
        for number in (1..=length).rev() {
            let node = tell(Start::calling(&target).env("HOSTNAME", format!("service-{number}"))).start();
            target = node.uri();
            nodes.insert(0, node);
        }
        Cascade { nodes }
    }

    /// The node `service-{number}`.
    pub(crate) fn node(&mut self, number: usize) -> &mut Node {
        &mut self.nodes[number - 1]
    }

    /// Asks the first node.
    pub(crate) fn get(&self, path: &str) -> Answer {
        self.nodes[0].get(path)
    }

    pub(crate) fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Starts a node that has ended again, where it was.
    pub(crate) fn restart(&mut self, number: usize) {
        let port = self.nodes[number - 1].port.to_string();
        let target = self.nodes.get(number).map(Node::uri).unwrap_or_default();
        let start = Start::calling(target).env("HOSTNAME", format!("service-{number}")).env("PORT", port);
        self.nodes[number - 1] = start.start();
    }
}
