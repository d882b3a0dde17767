//! The language of the tests of `up`: the real command, what it prints, and what became of its processes.

use std::future::Future;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use reqwest::{Client, Method, StatusCode};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::process::{Child, ChildStderr, Command};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

/// Nothing that is right takes this long, however busy the machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// `up` with every port free, running. On drop it is killed, and its nodes with it.
pub(crate) struct Up {
    child: Child,
    lines: mpsc::UnboundedReceiver<String>,
    client: Client,
    pub(crate) head: String,
    pub(crate) control: String,
    pub(crate) pids: Vec<u32>,
}

/// An answer of a node or of the control API.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) json: Value,
    headers: reqwest::header::HeaderMap,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().expect("text"))
    }
}

pub(crate) fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rest-cascade"));
    command.arg("up").args(args).stdin(Stdio::null()).kill_on_drop(true);
    command
}

impl Up {
    pub(crate) async fn start(args: &[&str]) -> Up {
        Up::start_with(args, |_| ()).await
    }

    /// `args` stand before the flags that make all ports free, or after them from `--` on.
    pub(crate) async fn start_with(args: &[&str], change: impl FnOnce(&mut Command)) -> Up {
        let dashes = args.iter().position(|arg| *arg == "--").unwrap_or(args.len());
        let (own, of_nodes) = args.split_at(dashes);
        let mut command = command(&[own, &["--base-port", "0", "--control", "127.0.0.1:0"], of_nodes].concat());
        command.stdout(Stdio::piped());
        change(&mut command);
        let mut child = command.spawn().expect("up starts");
        let (sender, lines) = mpsc::unbounded_channel();
        let mut out = BufReader::new(child.stdout.take().expect("piped")).lines();
        tokio::spawn(async move {
            while let Ok(Some(line)) = out.next_line().await {
                let _ = sender.send(line);
            }
        });
        let mut up =
            Up { child, lines, client: client(), head: String::new(), control: String::new(), pids: Vec::new() };
        up.read_table().await;
        up
    }

    async fn read_table(&mut self) {
        loop {
            let line = self.line().await;
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                [_, name, url, pid, _] if name.starts_with("service-") => {
                    assert!(url.starts_with("http://127.0.0.1:"), "{line}");
                    self.pids.push(pid.parse().expect("a PID"));
                }
                ["try", "it:", "curl", url] => self.head = url.to_owned(),
                ["control:", "curl", url] => self.control = url.to_owned(),
                ["stop", "all:", ..] => return,
                _ => {}
            }
        }
    }

    async fn line(&mut self) -> String {
        within("a line of up", self.lines.recv()).await.expect("up still prints")
    }

    /// Waits for a line with this in it.
    pub(crate) async fn tells(&mut self, part: &str) {
        while !self.line().await.contains(part) {}
    }

    /// GET / of the head.
    pub(crate) async fn get(&self) -> Answer {
        self.ask(Method::GET, &self.head, &[]).await
    }

    /// POST to the control API, as `2/kill`.
    pub(crate) async fn post(&self, what: &str) -> Answer {
        self.ask(Method::POST, &format!("{}/{what}", self.control), &[]).await
    }

    pub(crate) async fn ask(&self, method: Method, url: &str, headers: &[(&str, &str)]) -> Answer {
        let mut request = self.client.request(method, url);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = request.send().await.unwrap_or_else(|error| panic!("{url}: {error:?}"));
        let (status, headers) = (response.status(), response.headers().clone());
        let text = response.text().await.expect("a body");
        let json = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{url}: {status}, not JSON: {text:?}"));
        Answer { status, json, headers }
    }

    /// Node 1, 2, … as the control API shows it.
    pub(crate) async fn node(&self, number: usize) -> Value {
        self.ask(Method::GET, &self.control, &[]).await.json[number - 1].clone()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id().expect("not yet waited for")
    }

    pub(crate) fn signal(&self, signal: Signal) {
        send(self.pid(), signal);
    }

    /// The reading end of its stderr, if that is piped: held and not read, it is a full pipe sooner or later.
    pub(crate) fn take_stderr(&mut self) -> Option<ChildStderr> {
        self.child.stderr.take()
    }

    /// Waits for the end of `up`; then what it wrote on stderr, if that is piped.
    pub(crate) async fn end(&mut self) -> (ExitStatus, String) {
        let mut said = String::new();
        if let Some(mut err) = self.child.stderr.take() {
            within("the end of stderr", err.read_to_string(&mut said)).await.expect("text");
        }
        (within("the end of up", self.child.wait()).await.expect("waited for"), said)
    }

    pub(crate) async fn all_are_gone(&self) {
        for pid in &self.pids {
            eventually(&format!("the end of node {pid}"), async || is_gone(*pid)).await;
        }
    }
}

pub(crate) fn client() -> Client {
    let _ = rustls::crypto::ring::default_provider().install_default();
    Client::builder().no_proxy().timeout(PATIENCE).build().expect("a client")
}

pub(crate) fn send(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(pid.try_into().expect("small")).expect("not 0");
    kill_process(pid, signal).expect("the process is there");
}

/// Ended, though perhaps not yet waited for by whoever is its parent now.
pub(crate) fn is_gone(pid: u32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return true };
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    matches!(state, Some('Z' | 'X'))
}

/// Nodes that the process `up` has started and that still run.
pub(crate) fn nodes_of(up: u32) -> Vec<u32> {
    let processes = std::fs::read_dir("/proc").expect("/proc").flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| {
        let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.contains(&format!("\0--parent\0{up}\0")) && !is_gone(*pid)
    })
    .collect()
}

pub(crate) async fn within<T>(what: &str, work: impl Future<Output = T>) -> T {
    timeout(PATIENCE, work).await.unwrap_or_else(|_| panic!("never came: {what}"))
}

/// Waits until `holds`, for what can only be looked at.
pub(crate) async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    within(what, async {
        while !holds().await {
            sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}
