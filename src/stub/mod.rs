//! A stand-in for WireMock: its JSON mappings, its delays and faults, and its worker threads, which are what an
//! exercise about overload is about.

mod admin;
mod book;
mod mapping;
mod matching;
mod settings;
mod site;

use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use thiserror::Error;
use tokio::runtime::Builder;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

pub use settings::Settings;

use crate::fault::{Count, Seats};
use crate::server::{self, BindError, Server};
use crate::signals::{self, Signals};
use crate::telemetry::{self, Metrics};
use book::{Book, LoadError};
use site::{Shared, Site};

/// Answers that are being written have this long when the stub ends; a worker's delay is not waited for.
const LAST_ANSWERS: Duration = Duration::from_millis(500);

/// Why there is no stub.
#[derive(Debug, Error)]
enum StubError {
    #[error("{0}")]
    Use(String),
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error(transparent)]
    Bind(#[from] BindError),
    #[error(transparent)]
    System(#[from] anyhow::Error),
}

impl StubError {
    fn code(&self) -> u8 {
        match self {
            StubError::Use(_) | StubError::Load(_) | StubError::Bind(BindError::Address { .. }) => 2,
            StubError::Bind(BindError::Bind { .. }) | StubError::System(_) => 1,
        }
    }
}

/// The subcommand: serves until a signal or `POST /__admin/shutdown` ends it.
pub fn run(settings: Settings, warnings: &[String]) -> ExitCode {
    let logging = telemetry::start(&settings.telemetry);
    for warning in warnings {
        warn!("{warning}");
    }
    let runtime = Builder::new_current_thread().enable_all().build().context("no runtime").map_err(StubError::from);
    let code = runtime.and_then(|runtime| {
        let code = runtime.block_on(serve(settings));
        runtime.shutdown_background();
        code
    });
    drop(logging);
    ExitCode::from(code.unwrap_or_else(|error| {
        let _ = writeln!(std::io::stderr(), "error: {}", error.to_string().replace(char::is_control, " "));
        error.code()
    }))
}

async fn serve(settings: Settings) -> Result<u8, StubError> {
    let mut signals = Signals::listen()?;
    if let Some(parent) = settings.parent {
        signals::end_with(parent)?;
    }
    let workers = settings.workers.clone();
    let Some(effective) =
        workers.container_threads.checked_sub(workers.jetty_acceptor_threads).filter(|left| *left > 0)
    else {
        return Err(StubError::Use(format!(
            "--container-threads {} leaves no worker beside the {} of --jetty-acceptor-threads",
            workers.container_threads, workers.jetty_acceptor_threads
        )));
    };
    if settings.server.control_listen.is_some() {
        return Err(StubError::Use("--control-listen: a stub has one port".to_owned()));
    }
    if settings.server.workers > 1 {
        return Err(StubError::Use(format!(
            "--workers {}: a stub runs on one; --container-threads is how many requests it works on",
            settings.server.workers
        )));
    }
    let journal = if workers.no_request_journal { 0 } else { workers.max_request_journal_entries };
    let book = Book::new(workers.mappings.as_deref(), journal, workers.seed.unwrap_or_else(rand::random))?;
    let queue = workers.queue.map_or(u64::MAX, |queue| queue as u64);
    let mut listeners = server::bind(&settings.server)?.workers;
    let listener = listeners.pop().context("no listener")?;
    let address = listener.local_addr().context("the listener has no address")?;
    let shutdown = CancellationToken::new();
    let shared = Arc::new(Shared {
        book,
        seats: Seats::new(effective as u64, queue),
        settings: workers,
        worked: Count::default(),
        dead_worked: Count::default(),
        skipped: Count::default(),
        refused: Count::default(),
        shutdown: shutdown.clone(),
    });
    let server = Server::new(settings.server.clone(), Metrics::new());
    let name = &shared.settings.name;
    info!("{name}: {effective} workers of {} threads, listening on {address}", shared.settings.container_threads);
    server::announce(name, address, None)?;
    let serving = tokio::spawn({
        let (server, site) = (server.clone(), Site::new(shared));
        async move { server.serve(listener, site).await }
    });
    tokio::select! {
        signal = signals.next() => info!("{signal}: stopping"),
        () = shutdown.cancelled() => info!("asked to shut down: stopping"),
        ended = serving => {
            ended.context("the accept loop broke")?.context("cannot listen")?;
        }
    }
    server.close();
    server.drained(LAST_ANSWERS).await;
    Ok(0)
}
