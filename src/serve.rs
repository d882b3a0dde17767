//! One node: puts its parts together, runs them on the workers, and stops them in order.

use std::io::Write as _;
use std::net::TcpListener;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;
use thiserror::Error;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::{error, info, warn};

use crate::downstream::{Downstream, TlsError};
use crate::health::Health;
use crate::server::{self, BindError, Server};
use crate::settings::Settings;
use crate::telemetry::{self, AccessLog, Metrics};
use crate::web::{self, Node, Parts};

/// Why a node does not start.
#[derive(Debug, Error)]
pub enum StartError {
    #[error(transparent)]
    Bind(#[from] BindError),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error(transparent)]
    System(#[from] anyhow::Error),
}

impl StartError {
    /// 2 for a configuration that can never work, 1 for what the machine does not give just now.
    pub fn code(&self) -> u8 {
        match self {
            StartError::Bind(BindError::Address(..)) | StartError::Tls(_) => 2,
            StartError::Bind(BindError::Bind { .. }) | StartError::System(_) => 1,
        }
    }
}

/// The line on stdout by which whoever started the node learns where it is.
#[derive(Debug, Serialize)]
struct Announcement<'a> {
    listening: String,
    name: &'a str,
    port: u16,
    pid: u32,
}

/// The subcommand: runs a node until a signal stops it.
pub fn run(settings: Settings, warnings: &[String]) -> ExitCode {
    let started = worker_runtime().and_then(|runtime| {
        // Before anything else: a SIGTERM that comes early must find its handler.
        let signals = runtime.block_on(async { Signals::listen() })?;
        Ok((runtime, signals))
    });
    let (runtime, signals) = match started {
        Ok(started) => started,
        Err(error) => return refuse(&error.into()),
    };
    if let Some(parent) = settings.parent
        && let Err(error) = end_with(parent)
    {
        return refuse(&error.into());
    }
    let logging = telemetry::start(&settings.telemetry);
    for warning in warnings {
        warn!("{warning}");
    }
    let code = match runtime.block_on(serve(settings, signals)) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            drop(logging);
            return refuse(&error);
        }
    };
    drop(logging);
    // Lookups and other work in the background end with the process: nothing waits for them.
    runtime.shutdown_background();
    code
}

fn refuse(error: &StartError) -> ExitCode {
    eprintln!("error: {error:#}");
    ExitCode::from(error.code())
}

fn worker_runtime() -> Result<Runtime> {
    Builder::new_current_thread().enable_all().build().context("no runtime")
}

/// Has the kernel end this process when its parent ends, however that happens.
fn end_with(parent: i32) -> Result<()> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
        .context("the end of the parent cannot be followed")?;
    // It may have ended before we asked.
    let now = rustix::process::getppid().map(rustix::process::Pid::as_raw_pid);
    anyhow::ensure!(now == Some(parent), "the parent {parent} has ended");
    Ok(())
}

async fn serve(settings: Settings, mut signals: Signals) -> Result<u8, StartError> {
    let metrics = Metrics::new();
    // Before a port opens: it may find that the configuration can never work.
    let downstream = Downstream::start(settings.downstream.clone(), metrics.clone())?;
    let listeners = server::bind(&settings.server)?;
    let port = listeners[0].local_addr().context("the listener has no address")?.port();
    let name = name(&settings.web.name);
    let config = serde_json::to_value(&settings).context("settings are not JSON")?;
    info!("effective settings: {config}");
    let parts = Parts {
        port,
        instance: uuid::Uuid::new_v4().simple().to_string()[..12].to_owned(),
        settings: settings.web.clone(),
        config,
        downstream,
        health: Health::default(),
        metrics: metrics.clone(),
        access_log: AccessLog::new(settings.telemetry.access_log),
        name,
    };
    let server = Server::new(settings.server.clone(), metrics);
    let mut listeners = listeners.into_iter();
    let first = listeners.next().context("no listener")?;
    for (number, listener) in listeners.enumerate() {
        let worker = Worker { parts: parts.clone(), server: server.clone() };
        thread::Builder::new()
            .name(format!("worker-{}", number + 2))
            .spawn(move || worker.run_alone(listener))
            .context("a worker thread cannot be started")?;
    }
    announce(&parts)?;
    info!(name = parts.name, port, target = parts.downstream.shown(), "listening on port {port}");

    let worker = Worker { parts: parts.clone(), server: server.clone() };
    let local = tokio::spawn(worker.run(first));
    let stopped = stop_in_order(&settings, &parts, &server, &mut signals).await;
    local.abort();
    parts.access_log.finish();
    Ok(stopped)
}

/// The parts as one worker thread uses them.
struct Worker {
    parts: Parts,
    server: Server,
}

impl Worker {
    /// Serves on a thread of its own, with a runtime of its own.
    fn run_alone(self, listener: TcpListener) {
        match worker_runtime() {
            Ok(runtime) => runtime.block_on(self.run(listener)),
            Err(error) => error!("a worker has no runtime: {error:#}"),
        }
    }

    async fn run(self, listener: TcpListener) {
        let downstream = self.parts.downstream.on_this_worker();
        let node = Node::new(Parts { downstream: downstream.clone(), ..self.parts });
        if let Err(error) = self.server.serve(listener, web::router(node)).await {
            error!(%error, "a worker cannot listen: {error}");
        }
        // The runtime must live until the last of its connections has ended.
        self.server.drained(Duration::MAX).await;
        downstream.close_idle();
    }
}

/// Waits for a signal and takes the node down step by step; a second signal ends it at once.
async fn stop_in_order(settings: &Settings, parts: &Parts, server: &Server, signals: &mut Signals) -> u8 {
    let first = signals.next().await;
    let delay = match first {
        Stop::Terminate => *settings.server.drain_delay,
        Stop::Interrupt => Duration::ZERO,
    };
    let drain = async {
        parts.health.drain();
        info!("{first}: /ready now answers 503; serving for another {delay:?}");
        tokio::time::sleep(delay).await;
        server.close();
        let limit = *settings.server.drain_timeout;
        info!(open = server.open(), "listener closed; requests in flight have {limit:?} to finish");
        match server.drained(limit).await {
            0 => info!("every request was answered; stopped"),
            cut => warn!(cut, "{cut} connections were still busy after {limit:?} and were cut; stopped"),
        }
    };
    tokio::select! {
        () = drain => 0,
        second = signals.next() => {
            warn!("{second} while draining: stopped at once");
            second.code()
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Stop {
    Terminate,
    Interrupt,
}

impl Stop {
    /// As a shell reports a process that this signal ended.
    fn code(self) -> u8 {
        match self {
            Stop::Terminate => 143,
            Stop::Interrupt => 130,
        }
    }
}

impl std::fmt::Display for Stop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Stop::Terminate => "SIGTERM",
            Stop::Interrupt => "SIGINT",
        })
    }
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn listen() -> Result<Signals> {
        let listen = |kind| signal(kind).context("signals cannot be received");
        Ok(Signals { terminate: listen(SignalKind::terminate())?, interrupt: listen(SignalKind::interrupt())? })
    }

    async fn next(&mut self) -> Stop {
        tokio::select! {
            _ = self.terminate.recv() => Stop::Terminate,
            _ = self.interrupt.recv() => Stop::Interrupt,
        }
    }
}

fn announce(parts: &Parts) -> Result<()> {
    let announcement = Announcement {
        listening: format!("http://127.0.0.1:{}", parts.port),
        name: &parts.name,
        port: parts.port,
        pid: std::process::id(),
    };
    let line = serde_json::to_string(&announcement).context("the announcement is not JSON")?;
    // Nobody has to listen: a closed stdout is no reason not to serve.
    let _ = writeln!(std::io::stdout(), "{line}");
    Ok(())
}

/// As configured, else the kernel's host name; never empty.
fn name(configured: &str) -> String {
    let kernel = rustix::system::uname().nodename().to_string_lossy().into_owned();
    [configured, kernel.as_str(), "unknown"].into_iter().find(|name| !name.is_empty()).unwrap_or_default().to_owned()
}
