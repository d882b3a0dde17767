//! A cascade on this machine: starts the nodes, prints what happens to them, serves the control API, stops them all.

mod api;
mod screen;
mod settings;

use std::convert::Infallible;
use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::sync::broadcast::{self, error::RecvError};
use tokio_util::task::AbortOnDropHandle;

pub use settings::{Control, Settings};

use crate::cluster::{Cascade, Cluster, Event, Plan, StartError};
use crate::signals::Signals;
use screen::Screen;

/// The longest cascade that nodes make by default; a longer one has to be allowed to them.
const DEFAULT_DEPTH: usize = 32;

/// Why there is no cascade.
#[derive(Debug, Error)]
enum UpError {
    #[error("{0}")]
    Use(String),
    #[error("cannot listen on {at} (--control): {error}")]
    Control { at: Control, error: std::io::Error },
    #[error(transparent)]
    Node(#[from] StartError),
    #[error(transparent)]
    System(#[from] anyhow::Error),
}

impl UpError {
    fn code(&self) -> u8 {
        match self {
            UpError::Use(_) => 2,
            UpError::Node(error) => error.code(),
            UpError::Control { .. } | UpError::System(_) => 1,
        }
    }
}

/// The subcommand: runs the cascade until a signal stops it.
pub fn run(settings: Settings, warnings: &[String]) -> ExitCode {
    let (screen, guards) = Screen::start(warnings);
    // One thread: the kernel ends the nodes when the thread that started them ends, so it must be the main one.
    let result = Builder::new_current_thread().enable_all().build().context("no runtime").map_err(UpError::from);
    let result = result.and_then(|runtime| runtime.block_on(up(&settings, warnings, &screen)));
    drop(guards);
    ExitCode::from(result.unwrap_or_else(|error| {
        let _ = writeln!(std::io::stderr(), "error: {error:#}");
        error.code()
    }))
}

async fn up(settings: &Settings, warnings: &[String], screen: &Screen) -> Result<u8, UpError> {
    let mut signals = Signals::listen_with_hangup()?;
    let control = settings.checked_control().map_err(UpError::Use)?;
    for warning in warnings {
        screen.complain(&format!("warning: {warning}"));
    }
    // Before the nodes, so that none is started in vain.
    let listener = listen(&control).await?;
    let cluster = Cluster::new()?;
    let mut events = cluster.events();
    let cascade = tokio::select! {
        cascade = start(settings, &cluster) => Arc::new(cascade?),
        // Those that run already are killed on drop.
        signal = signals.next() => return Ok(signal.code()),
    };
    let address = listener.as_ref().map(TcpListener::local_addr).transpose().context("no control address")?;
    if let Some(address) = address.filter(|address| !address.ip().is_loopback()) {
        screen.complain(&format!("warning: --control {address}: whoever reaches this address can stop the nodes"));
    }
    screen.cascade(&cascade, address);
    let api = listener.map(|listener| serve(listener, &cascade));

    let first = tokio::select! {
        signal = signals.next() => signal,
        never = follow(&mut events, screen) => match never {},
    };
    let (count, limit) = (cascade.nodes().len(), settings.stop_timeout);
    screen.note(&format!("{first}: stopping {count} nodes, at most {limit}; a second signal kills them at once"));
    drop(api);
    tokio::select! {
        killed = cascade.stop(*limit) => {
            while let Ok(event) = events.try_recv() {
                screen.event(&event);
            }
            screen.note(&match killed {
                0 => "all nodes have stopped".to_owned(),
                killed => format!("{killed} of {count} nodes were still running after {limit} and were killed"),
            });
            Ok(0)
        }
        second = signals.next() => {
            screen.note(&format!("{second} while stopping: all nodes are killed"));
            Ok(second.code())
        }
        never = follow(&mut events, screen) => match never {},
    }
}

async fn listen(control: &Control) -> Result<Option<TcpListener>, UpError> {
    let Control::At { .. } = control else { return Ok(None) };
    let listener = TcpListener::bind(control.to_string()).await;
    listener.map(Some).map_err(|error| UpError::Control { at: control.clone(), error })
}

async fn start(settings: &Settings, cluster: &Cluster) -> Result<Cascade, UpError> {
    let program = std::env::current_exe().context("this binary's path is unknown")?;
    let level = if settings.verbose { "info" } else { "warn" };
    let mut variables = vec![("REST_CASCADE_LOG_LEVEL".to_owned(), level.to_owned())];
    if settings.nodes > DEFAULT_DEPTH {
        variables.push(("REST_CASCADE_MAX_DEPTH".to_owned(), settings.nodes.to_string()));
    }
    let plan = Plan {
        program,
        nodes: settings.nodes,
        base_port: settings.base_port,
        flags: settings.node_flags.clone(),
        variables,
    };
    Ok(cluster.start_cascade(&plan).await?)
}

fn serve(listener: TcpListener, cascade: &Arc<Cascade>) -> AbortOnDropHandle<()> {
    let router = api::router(Arc::clone(cascade));
    AbortOnDropHandle::new(tokio::spawn(async move {
        // It ends only with its task.
        let _ = axum::serve(listener, router).await;
    }))
}

/// Prints events as they come, for ever.
async fn follow(events: &mut broadcast::Receiver<Event>, screen: &Screen) -> Infallible {
    loop {
        match events.recv().await {
            Ok(event) => screen.event(&event),
            Err(RecvError::Lagged(lost)) => screen.complain(&format!("{lost} events came too fast to be shown")),
            // The cluster that sends them outlives this.
            Err(RecvError::Closed) => std::future::pending().await,
        }
    }
}
