//! What a load gave, in the form of ab's table, so that it can be read beside one. What ab cannot tell has lines of its
//! own: complete, partial and failed apart, and how late the generator was.

use std::collections::BTreeMap;
use std::fmt;

use super::settings::describe;
use crate::load::run::Results;
use crate::load::spread::Spread;
use crate::load::{Aim, Plan};

/// The rows of ab's last table.
const PERCENTS: [f64; 9] = [50.0, 66.0, 75.0, 80.0, 90.0, 95.0, 98.0, 99.0, 100.0];

/// Lines with an empty one before them, as ab has it.
const FIRST_OF_GROUP: [&str; 3] = ["Document Path", "Concurrency Level", "Load"];

/// A load and its results, to be shown.
pub(super) struct Told<'a> {
    pub(super) aim: &'a Aim,
    pub(super) plan: &'a Plan,
    pub(super) keep_alive: bool,
    pub(super) results: &'a Results,
}

impl Told<'_> {
    /// Lines with a name and a value, in ab's order.
    pub(super) fn lines(&self) -> Vec<(&'static str, String)> {
        let Results { summary, tally, elapsed, .. } = self.results;
        let seconds = elapsed.as_secs_f64();
        let mut lines = Vec::new();
        if let Some(server) = &tally.server {
            lines.push(("Server Software", server.clone()));
        }
        lines.push(("Server Hostname", self.aim.host().to_owned()));
        lines.push(("Server Port", self.aim.port().to_string()));
        lines.push(("Document Path", self.aim.path()));
        lines.push(("Document Length", tally.length.map_or("unknown".to_owned(), |length| format!("{length} bytes"))));
        if tally.other_lengths > 0 {
            lines.push(("Other lengths", tally.other_lengths.to_string()));
        }
        match self.plan {
            Plan::Closed { connections, .. } => lines.push(("Concurrency Level", connections.to_string())),
            Plan::Open { .. } => {
                lines.push(("Load", describe(self.plan)));
                lines.push(("Most in flight", summary.most_in_flight.to_string()));
            }
        }
        lines.push(("Time taken for tests", format!("{seconds:.3} seconds")));
        lines.push(("Complete requests", summary.total.to_string()));
        lines.push(("Failed requests", with_parts(summary.ko, &summary.errors)));
        lines.push(("Complete cascades", summary.ok.to_string()));
        lines.push(("Partial cascades", with_parts(summary.partial, &summary.partials)));
        if !summary.flags.is_empty() {
            lines.push(("Flags", parts(&summary.flags)));
        }
        if summary.unanswered > 0 {
            lines.push(("Unanswered", format!("{} when the load ended, not counted", summary.unanswered)));
        }
        if summary.unsent > 0 {
            lines.push(("Not sent", summary.unsent.to_string()));
        }
        if self.keep_alive {
            lines.push(("Keep-Alive requests", tally.kept.to_string()));
        }
        lines.push(("Connections opened", summary.connects.to_string()));
        lines.push(("Total transferred", format!("{} bytes", tally.received)));
        lines.push(("HTML transferred", format!("{} bytes", tally.bodies)));
        if summary.total > 0 && seconds > 0.0 {
            let total = summary.total as f64;
            lines.push(("Requests per second", format!("{:.2} [#/sec] (mean)", total / seconds)));
            if let Plan::Closed { connections, .. } = self.plan {
                let each = seconds * 1e3 * *connections as f64 / total;
                lines.push(("Time per request", format!("{each:.3} [ms] (mean)")));
            }
            let across = "(mean, across all concurrent requests)";
            lines.push(("Time per request", format!("{:.3} [ms] {across}", seconds * 1e3 / total)));
            let rate = tally.received as f64 / 1024.0 / seconds;
            lines.push(("Transfer rate", format!("{rate:.2} [Kbytes/sec] received")));
        }
        if let Some(late) = summary.lateness_ms {
            let [p50, p99, max] = [late.p50, late.p99, late.max].map(ms);
            lines.push(("Generator lateness", format!("p50 {p50}, p99 {p99}, max {max} ms")));
        }
        lines
    }
}

impl fmt::Display for Told<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in self.lines() {
            if FIRST_OF_GROUP.contains(&name) {
                writeln!(f)?;
            }
            writeln!(f, "{:<23} {value}", format!("{name}:"))?;
        }
        let Results { latency, tally, .. } = self.results;
        if latency.count() == 0 {
            return Ok(());
        }
        writeln!(
            f,
            "\nConnection Times (ms)\n{:14}{:>9} {:>9} {:>9} {:>9} {:>9}",
            "", "min", "mean", "[+/-sd]", "median", "max"
        )?;
        for (name, spread) in [
            ("Connect:", &tally.connect),
            ("Processing:", &tally.processing),
            ("Waiting:", &tally.waiting),
            ("Total:", latency),
        ] {
            if let Some(times) = spread.times() {
                let [min, mean, sd, median, max] = [times.min, times.mean, times.sd, times.p50, times.max].map(ms);
                writeln!(f, "{name:<14}{min:>9} {mean:>9} {sd:>9} {median:>9} {max:>9}")?;
            }
        }
        match self.plan {
            Plan::Closed { .. } => writeln!(f, "\nPercentage of the requests served within a certain time (ms)")?,
            Plan::Open { .. } => {
                writeln!(f, "\nPercentage of the requests answered within a time from when they were due (ms)")?
            }
        }
        percentiles(f, latency)
    }
}

fn percentiles(f: &mut fmt::Formatter<'_>, latency: &Spread) -> fmt::Result {
    for percent in PERCENTS {
        let longest = if percent == 100.0 { " (longest request)" } else { "" };
        writeln!(f, " {percent:>3}% {:>9}{longest}", ms(latency.percentile(percent)))?;
    }
    Ok(())
}

/// `3 (504: 2, refused: 1)`.
fn with_parts(count: u64, by: &BTreeMap<String, u64>) -> String {
    if by.is_empty() { count.to_string() } else { format!("{count}\n   ({})", parts(by)) }
}

fn parts(by: &BTreeMap<String, u64>) -> String {
    by.iter().map(|(name, count)| format!("{name}: {count}")).collect::<Vec<_>>().join(", ")
}

/// Three digits: ab's whole milliseconds say nothing on a loopback.
pub(super) fn ms(value: f64) -> String {
    match value {
        ..10.0 => format!("{value:.3}"),
        ..100.0 => format!("{value:.2}"),
        ..1000.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}
