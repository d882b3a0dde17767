//! The articles' experiments, replayed on real processes with their own figures beside ours. Knows a node by its flags
//! and its HTTP answers alone.

mod experiment;
mod page;
mod report;
mod scenario;
mod settings;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use maud::Markup;
use thiserror::Error;
use tokio::runtime::Builder;

pub use settings::{Lab, Settings};

use crate::cluster::Cluster;
use crate::load;
use crate::signals::Signals;
use report::{Report, StepReport};
use scenario::Step;
use settings::Common;

/// Two sockets for each of 500 requests in flight, in the gateway, and some for everything else.
const FILES: u64 = 4096;

#[derive(Debug, Error)]
enum LabError {
    #[error("{0}")]
    Use(String),
    #[error("{0:#}")]
    System(#[from] anyhow::Error),
}

/// The subcommand: runs the steps, prints their tables, writes the report. 1 if a step is outside of what counts as
/// the same, 130 after Ctrl-C.
pub fn run(settings: &Settings, warnings: &[String]) -> ExitCode {
    for warning in warnings {
        say(&format!("warning: {warning}"));
    }
    let result = match &settings.lab {
        Lab::Bulkhead(lab) => replay("bulkhead", &lab.common, scenario::bulkhead(lab.queue, lab.pool_rule)),
        Lab::Breaker(common) => replay("breaker", common, scenario::breaker()),
    };
    ExitCode::from(result.unwrap_or_else(|error| {
        say(&format!("error: {}", error.to_string().replace(char::is_control, " ")));
        match error {
            LabError::Use(_) => 2,
            LabError::System(_) => 1,
        }
    }))
}

/// To the terminal, beside what a script reads.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

fn replay(name: &'static str, common: &Common, all: Vec<Step>) -> Result<u8, LabError> {
    let wanted = common.steps(all.len()).map_err(LabError::Use)?;
    let out = common.out.clone().unwrap_or_else(|| PathBuf::from(format!("lab-{name}")));
    writable(&out)?;
    enough_files()?;
    let steps: Vec<Step> = all.into_iter().zip(1..).filter(|(_, n)| wanted.contains(n)).map(|(step, _)| step).collect();
    // One thread: the kernel ends the children when the thread that started them ends, so it must be the main one.
    let runtime = Builder::new_current_thread().enable_all().build().context("no runtime")?;
    runtime.block_on(steps_in_turn(name, common, &steps, &out))
}

/// Whether the report can be written is known before, not after, minutes of work.
fn writable(out: &Path) -> Result<(), LabError> {
    let refuse =
        |error: std::io::Error| LabError::Use(format!("--out {}: cannot be written to: {error}", out.display()));
    std::fs::create_dir_all(out).map_err(refuse)?;
    let probe = out.join("report.json");
    std::fs::OpenOptions::new().append(true).create(true).open(probe).map(drop).map_err(refuse)
}

fn enough_files() -> Result<(), LabError> {
    match load::raise_file_limit()? {
        limit if limit < FILES => Err(LabError::Use(format!(
            "open files are limited to {limit} here, and {FILES} are needed: raise `ulimit -Hn`"
        ))),
        _ => Ok(()),
    }
}

async fn steps_in_turn(name: &'static str, common: &Common, steps: &[Step], out: &Path) -> Result<u8, LabError> {
    let mut signals = Signals::listen()?;
    let cluster = Cluster::new()?;
    let mut report =
        Report { lab: name, speed: common.speed, seed: common.seed, steps: Vec::new(), warnings: Vec::new() };
    let mut parts: Vec<Markup> = Vec::new();
    let mut code = 0;
    for step in steps {
        say(&format!("{}: {} – {:.0} s …", step.name, step.title, 130.0 / common.speed));
        let mut stopped = None;
        let outcome = experiment::run(&cluster, step, common.speed, out, async {
            stopped = Some(signals.next().await);
        })
        .await?;
        let one = StepReport::new(step, &outcome);
        let _ = write!(std::io::stdout(), "{}", one.text());
        let doubts = one.summary.warnings.iter().map(|warning| format!("{}: {warning}", step.name));
        report.warnings.extend(doubts);
        parts.push(page::step(step, &one, &outcome));
        code = code.max(u8::from(!one.within));
        report.steps.push(one);
        if let Some(signal) = stopped {
            report.warnings.push(format!("{signal}: ended early, in {}", step.name));
            code = signal.code();
            break;
        }
    }
    for warning in &report.warnings {
        say(&format!("warning: {warning}"));
    }
    let write = |file: &str, text: String| {
        let path = out.join(file);
        std::fs::write(&path, text).with_context(|| format!("{} cannot be written", path.display()))
    };
    write("report.json", serde_json::to_string_pretty(&report).context("a report is not JSON")?)?;
    write("report.html", page::whole(&report, &parts))?;
    let _ = writeln!(
        std::io::stdout(),
        "\n{} and {}",
        out.join("report.html").display(),
        out.join("report.json").display()
    );
    Ok(code)
}
