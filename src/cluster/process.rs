//! One child process: how it is started, how its address is learnt, how its end is noticed. Restarts nothing.

use std::io;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use procfs::process::ProcState;
use rustix::process::{Pid, Signal};
use serde::Deserialize;
use thiserror::Error;
use tokio::process::{Child, ChildStderr, ChildStdout, Command};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::lines::Lines;
use super::ready::{Seen, Watch};
use super::{Cluster, Ending, What};

/// Its last words may follow its end by this much.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// What a stub answers also while all of its workers are busy.
const GAUGES: &str = "/__admin/rest-cascade/workers";
/// Lines of stderr that a failed start repeats.
const WORDS: usize = 5;

/// What makes a node the one that it is. Each node gets its own by flag, so the starter's must not reach it.
const OWN_VARIABLES: [&str; 9] = [
    "targetUri",
    "TARGET_URI",
    "REST_CASCADE_TARGET",
    "PORT",
    "REST_CASCADE_PORT",
    "HOSTNAME",
    "REST_CASCADE_NAME",
    "REST_CASCADE_LISTEN",
    "REST_CASCADE_CONTROL_LISTEN",
];

/// What a child process is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    #[default]
    Serve,
    Stub,
}

/// How a node is started.
#[derive(Clone, Debug)]
pub struct Launch {
    /// This binary.
    pub program: PathBuf,
    pub role: Role,
    pub name: String,
    /// 0 takes a free one, and a restarted node takes that one again.
    pub port: u16,
    /// URL of the next node.
    pub target: Option<String>,
    /// Further flags of the role.
    pub flags: Vec<String>,
    /// Environment variables that it gets where the starter's environment has none of that name.
    pub variables: Vec<(String, String)>,
    /// It must tell its address within this time.
    pub limit: Duration,
}

/// Why a node was not started.
#[derive(Debug, Error)]
pub enum StartError {
    #[error("{name} cannot be started from {}: {error}", program.display())]
    Spawn { name: String, program: PathBuf, error: io::Error },
    #[error("{name} ended with {} before it told its address{}", Ending::from(Ok(*status)), after_colon(said))]
    Ended { name: String, status: ExitStatus, said: Vec<String> },
    #[error("{name} did not tell its address within {limit:?}{}", after_colon(said))]
    Silent { name: String, limit: Duration, said: Vec<String> },
    #[error("{name} wrote {line:?} where its address was expected")]
    NotANode { name: String, line: String },
}

impl StartError {
    /// The exit code for whoever cannot go on without the node: 2 where the node refused its configuration.
    pub fn code(&self) -> u8 {
        match self {
            StartError::Ended { status, .. } if status.code() == Some(2) => 2,
            StartError::Spawn { .. }
            | StartError::Ended { .. }
            | StartError::Silent { .. }
            | StartError::NotANode { .. } => 1,
        }
    }
}

fn after_colon(said: &[String]) -> String {
    let said: Vec<&str> = said.iter().map(|line| line.strip_prefix("error: ").unwrap_or(line)).collect();
    if said.is_empty() { String::new() } else { format!(": {}", said.join(" / ")) }
}

/// The line that a node writes on stdout once it listens.
#[derive(Debug, Deserialize)]
pub(super) struct Announced {
    pub(super) listening: String,
    pub(super) port: u16,
}

/// A process that has told its address. On drop it is killed.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    said: JoinHandle<()>,
    watch: Watch,
    pub(super) pid: u32,
    pub(super) announced: Announced,
}

/// What a process does by itself.
#[derive(Debug)]
pub(super) enum Happening {
    Ended(Ending),
    Seen(Seen),
}

impl Launch {
    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        let role = match self.role {
            Role::Serve => "serve",
            Role::Stub => "stub",
        };
        command.args([role, "--name", &self.name, "--port", &self.port.to_string()]);
        command.args(["--parent", &std::process::id().to_string()]);
        if let Some(target) = &self.target {
            command.args(["--target", target]);
        }
        command.args(&self.flags);
        for name in OWN_VARIABLES {
            command.env_remove(name);
        }
        for (name, value) in &self.variables {
            if std::env::var_os(name).is_none_or(|value| value.is_empty()) {
                command.env(name, value);
            }
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // A group of its own: Ctrl-C in the terminal reaches the starter alone, which stops the nodes in order.
        command.process_group(0).kill_on_drop(true);
        command
    }
}

impl Process {
    /// Starts the process and waits until it has told its address. The process ends when the calling thread does.
    pub(super) async fn start(launch: &Launch, name: &Arc<str>, cluster: &Cluster) -> Result<Process, StartError> {
        let mut child = launch.command().spawn().map_err(|error| StartError::Spawn {
            name: launch.name.clone(),
            program: launch.program.clone(),
            error,
        })?;
        let mut out = Lines::new(child.stdout.take().expect("stdout is piped"));
        let mut err = Lines::new(child.stderr.take().expect("stderr is piped"));
        let mut said = Vec::new();
        let announced = announced(launch, &mut child, &mut out, &mut err, &mut said).await?;
        let pid = child.id().expect("not waited for to its end");
        let path = match launch.role {
            Role::Serve => "/ready",
            Role::Stub => GAUGES,
        };
        let watch = Watch::start(cluster.client.clone(), format!("{}{path}", announced.listening));
        let said = tokio::spawn(pass_on(said, err, Arc::clone(name), cluster.clone()));
        // Nothing more is expected there, but a full pipe would block the node.
        tokio::spawn(async move { while out.next().await.is_some() {} });
        Ok(Process { child, said, watch, pid, announced })
    }

    pub(super) async fn next(&mut self) -> Happening {
        tokio::select! {
            status = self.child.wait() => {
                // So that a panic's message is told before the end that it explains.
                let _ = timeout(LAST_WORDS, &mut self.said).await;
                Happening::Ended(status.into())
            }
            seen = self.watch.next() => Happening::Seen(seen),
        }
    }

    /// Sends a signal. The process has not been waited for to its end, so its id is still its own.
    pub(super) fn signal(&self, signal: Signal) {
        if self.child.id().is_some()
            && let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw)
        {
            // The only failure left is that it has just ended, which will be noticed.
            let _ = rustix::process::kill_process(pid, signal);
        }
    }

    /// Whether SIGSTOP holds the process, whoever sent it; `None` where the system does not say.
    pub(super) fn is_held(&self) -> Option<bool> {
        let process = procfs::process::Process::new(i32::try_from(self.pid).ok()?).ok()?;
        Some(process.stat().ok()?.state().ok()? == ProcState::Stopped)
    }
}

async fn announced(
    launch: &Launch,
    child: &mut Child,
    out: &mut Lines<ChildStdout>,
    err: &mut Lines<ChildStderr>,
    said: &mut Vec<String>,
) -> Result<Announced, StartError> {
    let limit = sleep(launch.limit);
    tokio::pin!(limit);
    let first = loop {
        tokio::select! {
                   line = out.next() => break line,
                   Some(line) = err.next() => said.push(line),
                   () = &mut limit => return Err(StartError::Silent {
        name: launch.name.clone(), limit: launch.limit, said: last(said) }),
               }
    };
    let Some(line) = first else {
        let ended = timeout(LAST_WORDS, child.wait()).await;
        let _ = timeout(LAST_WORDS, async {
            while let Some(line) = err.next().await {
                said.push(line);
            }
        })
        .await;
        let (name, said) = (launch.name.clone(), last(said));
        return Err(match ended {
            Ok(Ok(status)) => StartError::Ended { name, status, said },
            _ => StartError::Silent { name, limit: launch.limit, said },
        });
    };
    serde_json::from_str(&line).map_err(|_| StartError::NotANode { name: launch.name.clone(), line })
}

/// The errors among the lines, else the last few.
fn last(said: &[String]) -> Vec<String> {
    let errors: Vec<String> = said.iter().filter(|line| line.starts_with("error: ")).cloned().collect();
    if errors.is_empty() { said[said.len().saturating_sub(WORDS)..].to_vec() } else { errors }
}

async fn pass_on(before: Vec<String>, mut lines: Lines<ChildStderr>, name: Arc<str>, cluster: Cluster) {
    for line in before {
        cluster.tell(&name, What::Said(line));
    }
    while let Some(line) = lines.next().await {
        cluster.tell(&name, What::Said(line));
    }
}
