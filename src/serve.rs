//! One node: puts its parts together, runs them on the workers, and stops them in order.

use std::net::TcpListener;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use http::{Request, Response};
use hyper::body::Incoming;
use thiserror::Error;
use tokio::runtime::{Builder, Runtime};
use tracing::{error, info, warn};

use crate::downstream::{self, Downstream};
use crate::fault::Faults;
use crate::health::{CheckError, Health, Spec};
use crate::secret::redacted;
use crate::server::{self, BindError, Body, Listeners, Server};
use crate::settings::Settings;
use crate::signals::{self, Signals, Stop};
use crate::telemetry::{self, AccessLog, Metrics};
use crate::web::{self, Door, Node, Parts, Site};

/// Why a node does not start.
#[derive(Debug, Error)]
pub enum StartError {
    #[error(transparent)]
    Bind(#[from] BindError),
    #[error(transparent)]
    Downstream(#[from] downstream::StartError),
    #[error(transparent)]
    Check(#[from] CheckError),
    #[error(transparent)]
    System(#[from] anyhow::Error),
}

impl StartError {
    /// 2 for a configuration that can never work, 1 for what the machine does not give just now.
    pub fn code(&self) -> u8 {
        match self {
            StartError::Bind(BindError::Address { .. }) | StartError::Downstream(_) | StartError::Check(_) => 2,
            StartError::Bind(BindError::Bind { .. }) | StartError::System(_) => 1,
        }
    }
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
        && let Err(error) = signals::end_with(parent)
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
    // On one line, whatever was in the value that it names.
    eprintln!("error: {}", redacted(&error.to_string()).replace(char::is_control, " "));
    ExitCode::from(error.code())
}

fn worker_runtime() -> Result<Runtime> {
    Builder::new_current_thread().enable_all().build().context("no runtime")
}

async fn serve(settings: Settings, mut signals: Signals) -> Result<u8, StartError> {
    let health = Health::start(&settings.health, followed(&settings), settings.server.worker_count())?;
    let metrics = Metrics::new();
    let downstream = Downstream::start(settings.downstream.clone(), metrics.clone())?;
    // After everything that can be wrong with the configuration: a port that opens is a node that starts.
    let Listeners { workers: listeners, control } = server::bind(&settings.server)?;
    let address = listeners[0].local_addr().context("the listener has no address")?;
    let port = address.port();
    let name = name(&settings.web.name);
    let mut config = serde_json::to_value(&settings).context("settings are not JSON")?;
    // What was left open is shown as it turned out.
    config["name"] = name.as_str().into();
    config["port"] = port.into();
    config["workers"] = listeners.len().into();
    config["policy"] = serde_json::to_value(downstream.policy()).context("a policy is not JSON")?;
    info!("effective settings: {config}");
    let faults = Faults::new(&name, settings.fault.slot.clone());
    if let Some(spec) = settings.fault.faults.clone() {
        web::inject_faults(&faults, spec).await.map_err(anyhow::Error::msg)?;
    }
    let parts = Parts {
        port,
        instance: uuid::Uuid::new_v4().simple().to_string()[..12].to_owned(),
        settings: settings.web.clone(),
        config,
        downstream,
        health: health.clone(),
        faults,
        metrics: metrics.clone(),
        access_log: AccessLog::new(settings.telemetry.access_log),
        name,
    };
    let server = Server::new(settings.server.clone(), metrics);
    health.first_verdicts().await;
    let door = if control.is_some() { Door::Public } else { Door::Only };
    let mut listeners = listeners.into_iter();
    let first = listeners.next().context("no listener")?;
    for (number, listener) in (2..).zip(listeners) {
        let worker = Worker { number, parts: parts.clone(), server: server.clone(), control: None, door };
        thread::Builder::new()
            .name(format!("worker-{number}"))
            .spawn(move || worker.run_alone(listener))
            .context("a worker thread cannot be started")?;
    }
    let control_address = control.as_ref().map(TcpListener::local_addr).transpose();
    let control_address = control_address.context("the control listener has no address")?;
    server::announce(&parts.name, address, control_address)?;
    info!(name = parts.name, port, target = parts.downstream.shown(), "listening on port {port}");

    let worker = Worker { number: 1, parts: parts.clone(), server: server.clone(), control, door };
    let local = tokio::spawn(worker.run(first));
    let stopped = stop_in_order(&settings, &parts, &server, &mut signals).await;
    local.abort();
    parts.access_log.finish();
    Ok(stopped)
}

/// The check that `--ready-follows-downstream` adds: the `/ready` of the next node, any replica of it.
fn followed(settings: &Settings) -> Option<Spec> {
    if !settings.health.ready_follows_downstream {
        return None;
    }
    let targets = &settings.downstream.target;
    let urls = targets.ready();
    if urls.is_empty() {
        warn!("--ready-follows-downstream has no effect: there is no --target to follow");
        return None;
    }
    warn!(
        "--ready-follows-downstream: while {targets} is not ready, this node takes no traffic either, and so on up: \
         one dead node empties the whole cascade, also for requests that would not need it"
    );
    Some(Spec::downstream(urls, settings.downstream.target_ca.clone()))
}

impl server::Answers for Site {
    async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        Site::answer(self, request).await
    }
}

/// The parts as one worker thread uses them.
struct Worker {
    number: usize,
    parts: Parts,
    server: Server,
    /// Which routes the listener leads to.
    door: Door,
    /// The first worker serves control, where that has an address of its own.
    control: Option<TcpListener>,
}

impl Worker {
    /// Serves on a thread of its own, with a runtime of its own.
    fn run_alone(self, listener: TcpListener) {
        match worker_runtime() {
            Ok(runtime) => runtime.block_on(self.run(listener)),
            Err(error) => {
                error!("worker-{} has no runtime: {error:#}", self.number);
                self.parts.health.poison(&format!("worker-{} has no runtime", self.number));
            }
        }
    }

    async fn run(self, listener: TcpListener) {
        let health = self.parts.health.on_this_worker(self.number);
        let node = Node::new(Parts { health: health.clone(), ..self.parts });
        if let Some(control) = self.control {
            let (server, site) = (self.server.for_control(), Site::new(node.clone(), Door::Control));
            tokio::spawn(async move {
                if let Err(error) = server.serve(control, site).await {
                    error!(%error, "control cannot listen: {error}");
                }
            });
        }
        if let Err(error) = self.server.serve(listener, Site::new(node, self.door)).await {
            error!(%error, "worker-{} cannot listen: {error}", self.number);
            health.poison(&format!("worker-{} cannot listen", self.number));
        }
        // The runtime must live until the last of its connections has ended.
        self.server.drained(Duration::MAX).await;
    }
}

/// Waits for a signal and takes the node down step by step; a second signal ends it at once.
async fn stop_in_order(settings: &Settings, parts: &Parts, server: &Server, signals: &mut Signals) -> u8 {
    let first = signals.next().await;
    let delay = match first {
        Stop::Terminate => *settings.server.drain_delay,
        Stop::Interrupt | Stop::Hangup => Duration::ZERO,
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

/// As configured, else the kernel's host name; never empty.
fn name(configured: &str) -> String {
    let kernel = rustix::system::uname().nodename().to_string_lossy().into_owned();
    [configured, kernel.as_str(), "unknown"].into_iter().find(|name| !name.is_empty()).unwrap_or_default().to_owned()
}
