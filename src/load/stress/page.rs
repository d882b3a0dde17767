//! A load as one page: its figures, the answers of each second by what they were, and how long they took.

use maud::{PreEscaped, html};

use super::settings::describe;
use super::table::{Told, ms};
use crate::chart::{self, Bar, Bars, Color, Line, Timeline};
use crate::load::{Results, Summary};

/// Ranges of the distribution.
const RANGES: u32 = 24;
/// Beyond this a few outliers would squeeze all others into one range; they share the last one.
const MOST_SHOWN: f64 = 99.5;

/// The whole page.
pub(super) fn html(told: &Told<'_>) -> String {
    let Results { summary, latency, .. } = told.results;
    let content = html! {
        p { (describe(told.plan)) }
        @for warning in &summary.warnings {
            p.warning { (warning) }
        }
        h2 { "Responses a second" }
        (PreEscaped(per_second(summary).svg()))
        h2 { "How long they took" }
        (PreEscaped(distribution(told.results).svg()))
        @if latency.count() > 0 {
            div.scroll {
                table {
                    tr { @for percent in PERCENTS { th { (percent) "%" } } }
                    tr { @for percent in PERCENTS { td { (ms(latency.percentile(percent))) " ms" } } }
                }
            }
        }
        h2 { "Figures" }
        table {
            @for (name, value) in told.lines() {
                tr { td { (name) } td { (value) } }
            }
        }
    };
    chart::page(&format!("Load on {}", told.aim), &content)
}

const PERCENTS: [f64; 6] = [50.0, 75.0, 90.0, 95.0, 99.0, 100.0];

/// A line for complete, one for partial, and one for each way to fail.
pub(crate) fn per_second(summary: &Summary) -> Timeline {
    let line = |name: &str, color, count: &dyn Fn(&crate::load::PerSecond) -> u64| Line {
        name: name.to_owned(),
        color,
        points: summary.per_second.iter().map(|second| (second.t as f64, count(second) as f64)).collect(),
    };
    let mut lines = vec![line("complete", Color::Blue, &|second| second.ok)];
    if summary.partial > 0 {
        lines.push(line("partial", Color::Green, &|second| second.partial));
    }
    for (cause, color) in summary.errors.keys().zip(Color::OTHERS.into_iter().cycle()) {
        let count = |second: &crate::load::PerSecond| second.errors.get(cause).copied().unwrap_or_default();
        lines.push(line(cause, color, &count));
    }
    Timeline { counts: "responses a second".to_owned(), lines, bands: Vec::new() }
}

/// Complete ones and the others, by how long they took.
pub(crate) fn distribution(results: &Results) -> Bars {
    let Results { latency, latency_ok, .. } = results;
    let end = if latency.count() == 0 { 1.0 } else { latency.percentile(MOST_SHOWN) };
    let width = nice(end / f64::from(RANGES));
    let ranges = (end / width).ceil().max(1.0) as u32;
    let bars = (0..=ranges).map(|range| {
        let from = f64::from(range) * width;
        let (to, label) = match range == ranges {
            true => (f64::MAX, format!("≥ {}", short(from))),
            false => (from + width, short(from)),
        };
        let (all, ok) = (latency.count_between(from, to), latency_ok.count_between(from, to));
        Bar { label, counts: vec![ok as f64, all.saturating_sub(ok) as f64] }
    });
    Bars {
        of: format!("latency in ms, ranges of {}", short(width)),
        counts: "answers".to_owned(),
        layers: vec![("complete".to_owned(), Color::Blue), ("partial or failed".to_owned(), Color::Vermilion)],
        bars: bars.collect(),
    }
}

/// The next of 1, 2, 5, 10, 20, …
fn nice(width: f64) -> f64 {
    let power = 10f64.powf(width.max(1e-3).log10().floor());
    let step = [1.0, 2.0, 5.0].into_iter().find(|step| step * power >= width * 0.999);
    power * step.unwrap_or(10.0)
}

/// Without the noise of binary fractions.
fn short(value: f64) -> String {
    ((value * 1e4).round() / 1e4).to_string()
}
