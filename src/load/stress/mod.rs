//! `stress URL`: one load, and what it gave as ab's table, JSON, a line for each second, or a page with charts.

mod bar;
mod lines;
mod page;
mod settings;
mod table;

use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use thiserror::Error;
use tokio::runtime::Builder;

pub use settings::{Header, Settings, Share};

use super::aim::{Aim, AimError};
use super::run::{Results, Run, StartError, start};
use crate::secret::redacted;
use crate::signals::{Signals, Stop};
use crate::tls::{self, TrustError};
use bar::Bar;

/// How often the bar moves.
const TICK: Duration = Duration::from_millis(100);
/// Descriptors that this program needs for other things than connections.
const OTHER_FILES: u64 = 64;

#[derive(Debug, Error)]
enum StressError {
    #[error("{0}")]
    Use(String),
    #[error("cannot write {}: {error}", file.display())]
    File { file: PathBuf, error: io::Error },
    #[error("{shown}: {error}")]
    Aim { shown: String, error: AimError },
    #[error("nobody to trust for an https URL: {0}")]
    Trust(TrustError),
    #[error(transparent)]
    Start(#[from] StartError),
    #[error(transparent)]
    System(#[from] anyhow::Error),
}

impl StressError {
    fn code(&self) -> u8 {
        match self {
            StressError::Use(_) | StressError::File { .. } | StressError::Trust(_) => 2,
            StressError::Aim { error, .. } if !error.is_of_the_network() => 2,
            StressError::Aim { .. } | StressError::Start(_) | StressError::System(_) => 1,
        }
    }
}

/// The subcommand.
pub fn run(settings: &Settings, warnings: &[String]) -> ExitCode {
    let runtime = Builder::new_current_thread().enable_all().build().context("no runtime").map_err(StressError::from);
    let ended = runtime.and_then(|runtime| {
        let ended = runtime.block_on(stress(settings, warnings));
        // A name that is still being looked up is not waited for.
        runtime.shutdown_background();
        ended
    });
    ExitCode::from(ended.unwrap_or_else(|error| {
        let _ = writeln!(io::stderr(), "error: {error:#}");
        error.code()
    }))
}

async fn stress(settings: &Settings, warnings: &[String]) -> Result<u8, StressError> {
    let mut signals = Signals::listen()?;
    let plan = settings.plan().map_err(StressError::Use)?;
    let (most, (flag, asked)) = (most_connections()?, settings.asked_connections(&plan));
    if asked > most {
        let limit = "what the limit of open files leaves (ulimit -n)";
        return Err(StressError::Use(format!("{flag} {asked}: must be from 1 to {most}, {limit}")));
    }
    let (csv, html) = (create(settings.csv.as_deref())?, create(settings.html.as_deref())?);
    for warning in warnings {
        let _ = writeln!(io::stderr(), "warning: {warning}");
    }
    let aim = tokio::select! {
        aim = find(settings) => aim?,
        signal = signals.next() => return Ok(signal.code()),
    };
    let mut run = start(plan, aim.clone(), settings.options(most))?;
    let bar = Bar::new(&plan, &aim);
    let (results, stopped) = follow(&mut run, &bar, &mut signals).await;
    bar.clear();
    let Some(results) = results else { return Ok(stopped.map_or(1, Stop::code)) };

    let told = table::Told { aim: &aim, plan: &plan, keep_alive: settings.keep_alive, results: &results };
    if let Some((file, path)) = csv {
        write(file, path, &lines::csv(&results.summary))?;
    }
    if let Some((file, path)) = html {
        write(file, path, &page::html(&told))?;
    }
    let text = match settings.json {
        true => serde_json::to_string(&results.summary).context("figures are JSON")? + "\n",
        false => told.to_string(),
    };
    // Whoever reads it may have seen enough.
    let _ = io::stdout().write_all(text.as_bytes());
    for warning in &results.summary.warnings {
        let _ = writeln!(io::stderr(), "warning: {warning}");
    }
    Ok(match stopped {
        Some(signal) => signal.code(),
        None => u8::from(has_failed(&results, settings.fail_over)),
    })
}

/// To the end, or to the first signal; a second one ends it without figures.
async fn follow(run: &mut Run, bar: &Bar, signals: &mut Signals) -> (Option<Results>, Option<Stop>) {
    let mut stopped = None;
    let mut tick = tokio::time::interval(TICK);
    loop {
        let progress = run.progress();
        tokio::select! {
            results = run.finish() => return (Some(results), stopped),
            signal = signals.next() => {
                run.stop();
                if stopped.replace(signal).is_some() {
                    return (None, stopped);
                }
            }
            _ = tick.tick() => bar.show(&progress),
        }
    }
}

async fn find(settings: &Settings) -> Result<Aim, StressError> {
    let tls = match settings.url.scheme() {
        "https" => Some(Arc::new(tls::verifying(settings.ca.as_deref()).map_err(StressError::Trust)?)),
        _ => None,
    };
    let found = Aim::find(&settings.url, settings.method(), &settings.headers(), tls).await;
    found.map_err(|error| StressError::Aim { shown: redacted(settings.url.as_str()), error })
}

/// How many connections this process may have at a time.
fn most_connections() -> anyhow::Result<usize> {
    let files = super::raise_file_limit()?;
    Ok(usize::try_from(files.saturating_sub(OTHER_FILES)).unwrap_or(usize::MAX).max(1))
}

type Output<'a> = Option<(File, &'a Path)>;

/// Before anything is sent: a file that cannot be written is not found out after an hour.
fn create(path: Option<&Path>) -> Result<Output<'_>, StressError> {
    let Some(path) = path else { return Ok(None) };
    let file = File::create(path).map_err(|error| StressError::File { file: path.to_owned(), error })?;
    Ok(Some((file, path)))
}

fn write(mut file: File, path: &Path, text: &str) -> Result<(), StressError> {
    file.write_all(text.as_bytes()).map_err(|error| StressError::File { file: path.to_owned(), error })
}

/// Also if nothing was answered at all: that is no success.
fn has_failed(results: &Results, limit: Share) -> bool {
    let summary = &results.summary;
    summary.total == 0 || summary.ko as f64 > limit.0 * summary.total as f64
}
