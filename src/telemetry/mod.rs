//! What a node tells of itself: log lines and metrics. Decides nothing.

mod access;
mod metrics;
mod policy_metrics;

use std::io::IsTerminal;

use clap::{Args, ValueEnum};
use serde::Serialize;
use tracing_appender::non_blocking::{NonBlocking, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::EnvFilter;

pub use access::{AccessLog, Line};
pub use metrics::{CallOutcome, Counted, Metrics, Outcome, RouteMetrics, Side};
pub use policy_metrics::{PolicyMetrics, PoolFigures};

/// Log lines that may wait to be written. A slow terminal must not slow the requests, so beyond this lines are
/// dropped, and counted.
const BUFFERED_LINES: usize = 16_384;

#[derive(Args, Clone, Debug, Serialize)]
#[command(next_help_heading = "Logs")]
#[group(skip)]
pub struct Settings {
    /// Log lines as text or as one JSON object each, on stderr
    #[arg(long, default_value = "text", value_name = "FORMAT")]
    pub log_format: LogFormat,
    /// What to log: error, warn, info, debug, trace, or a filter such as info,hyper=debug
    #[arg(long, default_value = "info", value_name = "FILTER", value_parser = filter)]
    pub log_level: String,
    /// Access lines: all, off, or auto = the first 100 of each second, the rest as one counted line
    #[arg(long, default_value = "auto", value_name = "WHICH")]
    pub access_log: AccessMode,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    Text,
    Json,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum AccessMode {
    Auto,
    All,
    Off,
}

fn filter(text: &str) -> Result<String, String> {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    // To the filter, a bare word that is no level is the name of a module, and everything else would be silent.
    let is_level = |word: &str| LEVELS.contains(&word.trim().to_ascii_lowercase().as_str());
    match text.split(',').find(|part| !part.contains('=') && !is_level(part)) {
        Some(part) => Err(format!("{part:?} is none of {}; for one module, write module=level", LEVELS.join(", "))),
        None => EnvFilter::try_new(text).map(|_| text.to_owned()).map_err(|error| error.to_string()),
    }
}

/// Keeps the log's writer alive; on drop, what is buffered is written, and a line tells how many were dropped.
#[derive(Debug)]
pub struct Logging {
    writer: Option<(NonBlocking, WorkerGuard)>,
}

impl Drop for Logging {
    fn drop(&mut self) {
        let Some((writer, guard)) = self.writer.take() else { return };
        let dropped = writer.error_counter().dropped_lines();
        if dropped > 0 {
            tracing::warn!(dropped, "{dropped} log lines were dropped: stderr was slower than the log");
        }
        drop(guard);
    }
}

/// Starts logging to stderr, without waiting for whoever reads it.
pub fn start(settings: &Settings) -> Logging {
    let (writer, guard) =
        NonBlockingBuilder::default().buffered_lines_limit(BUFFERED_LINES).lossy(true).finish(std::io::stderr());
    let lines = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(&settings.log_level))
        .with_target(false)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(writer.clone());
    let started = match settings.log_format {
        LogFormat::Text => lines.try_init(),
        LogFormat::Json => lines.json().flatten_event(true).try_init(),
    };
    // Only a second start in one process can fail: it is a test's, and the first log serves it.
    drop(started);
    Logging { writer: Some((writer, guard)) }
}
