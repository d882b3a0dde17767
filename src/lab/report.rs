//! What a lab gave, as data and as a table: ours beside what was seen elsewhere, and whether that is the same.

use std::fmt::Write as _;

use serde::Serialize;
use serde_json::{Value, json};

use super::experiment::{Ejection, Outcome};
use super::scenario::{Figures, Step};
use crate::load::Summary;

/// The whole of a lab, as `report.json` has it.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub lab: &'static str,
    pub speed: f64,
    pub seed: u64,
    pub steps: Vec<StepReport>,
    pub warnings: Vec<String>,
}

#[derive(Debug, Serialize)]
pub(super) struct StepReport {
    #[serde(flatten)]
    pub summary: Summary,
    pub title: &'static str,
    pub accept: Value,
    pub within: bool,
    pub article: Figures,
    pub model: Option<Figures>,
    pub envoy: Option<Figures>,
    pub ejections: Vec<Value>,
    /// When a request sent to the stub at 140 s was answered; `null` where none was sent, or none was answered.
    pub recovery_s: Option<f64>,
    /// `[t, busy, queued]`, of the replica that had most of them.
    pub workers: Vec<[f64; 3]>,
}

impl StepReport {
    pub(super) fn new(step: &Step, outcome: &Outcome) -> StepReport {
        let mut summary = outcome.results.summary.clone();
        summary.name = step.name.to_owned();
        let timeouts = errors(&summary, "504");
        let within = |[least, most]: [u64; 2], value: u64| (least..=most).contains(&value);
        let ejection = |Ejection { endpoint, from_s, until_s }: &Ejection| json!({"endpoint": endpoint, "from_s": from_s, "until_s": until_s});
        StepReport {
            within: !outcome.interrupted
                && within(step.accept.ok, summary.ok)
                && within(step.accept.timeouts, timeouts),
            title: step.title,
            accept: json!(step.accept),
            article: step.article,
            model: step.model,
            envoy: step.envoy,
            ejections: outcome.ejections.iter().map(ejection).collect(),
            recovery_s: outcome.recovery_s,
            workers: outcome.workers.clone(),
            summary,
        }
    }

    /// The rows of the table: who, and the figures as text.
    pub(super) fn rows(&self) -> Vec<Vec<String>> {
        let Summary { total, ok, ko, partial, ms, .. } = &self.summary;
        let times = ms.map_or([None; 8], |ms| {
            [ms.min, ms.p50, ms.p75, ms.p95, ms.p99, ms.max, ms.mean, ms.sd].map(|ms| Some(ms.round() as u64))
        });
        let errors = self.summary.errors.iter().map(|(cause, count)| format!("{cause}: {count}"));
        let mut rows = vec![row("here", *total, *ok, ko + partial, times, errors.collect())];
        let others = [("article", Some(self.article)), ("model", self.model), ("Envoy 1.40", self.envoy)];
        for (who, seen) in others {
            let Some(Figures { total, ok, ko, refused, timeouts, broken, ms }) = seen else { continue };
            let errors = [("503", refused), ("504", timeouts), ("premature close", broken)];
            let errors = errors.into_iter().filter(|(_, count)| *count > 0);
            rows.push(row(who, total, ok, ko, ms, errors.map(|(what, count)| format!("{what}: {count}")).collect()));
        }
        rows
    }

    /// The table for a terminal, with what it means.
    pub(super) fn text(&self) -> String {
        let mut text = format!("\n{} – {}\n", self.summary.name, self.title);
        let rows: Vec<Vec<String>> = std::iter::once(HEAD.map(str::to_owned).to_vec()).chain(self.rows()).collect();
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        for row in &rows {
            for (column, cell) in row.iter().enumerate() {
                let width = width(column);
                let _ = match column {
                    0 => write!(text, "  {cell:<width$}"),
                    _ if column + 1 == row.len() => write!(text, "  {cell}"),
                    _ => write!(text, "  {cell:>width$}"),
                };
            }
            text.push('\n');
        }
        let accept = |name: &str| format!("{} to {}", self.accept[name][0], self.accept[name][1]);
        let verdict = if self.within { "within" } else { "OUTSIDE" };
        let _ = writeln!(text, "  {verdict} what counts as the same: OK {}, 504 {}", accept("ok"), accept("504"));
        for ejection in &self.ejections {
            let seconds = |value: &Value| value.as_f64().map_or("the end".to_owned(), |at| format!("{at:.1} s"));
            let (from, until) = (seconds(&ejection["from_s"]), seconds(&ejection["until_s"]));
            let _ = writeln!(
                text,
                "  {} ejected from {from} to {until}",
                ejection["endpoint"].as_str().unwrap_or_default()
            );
        }
        if let Some(answered) = self.recovery_s {
            let _ = writeln!(
                text,
                "  a request to the stub at 140 s, 10 s after the load, was answered at {answered:.1} s (the model of \
                 a FIFO queue: 231.7)"
            );
        }
        text
    }
}

/// What stands above the rows.
pub(super) const HEAD: [&str; 15] =
    ["", "Total", "OK", "KO", "%KO", "Cnt/s", "min", "p50", "p75", "p95", "p99", "max", "mean", "sd", "errors"];

fn row(who: &str, total: u64, ok: u64, ko: u64, ms: [Option<u64>; 8], errors: Vec<String>) -> Vec<String> {
    let share = if total == 0 { 0.0 } else { ko as f64 * 100.0 / total as f64 };
    let mut row = vec![who.to_owned(), total.to_string(), ok.to_string(), ko.to_string(), format!("{share:.0}")];
    row.push(format!("{:.1}", total as f64 / 130.0));
    row.extend(ms.map(|ms| ms.map_or("–".to_owned(), |ms| ms.to_string())));
    row.push(errors.join(", "));
    row
}

fn errors(summary: &Summary, cause: &str) -> u64 {
    summary.errors.get(cause).copied().unwrap_or_default()
}
