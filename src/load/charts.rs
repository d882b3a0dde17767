//! A load as charts: the answers of each second by what they were, and how long they took. Draws nothing itself.

use super::run::Results;
use super::summary::{PerSecond, Summary};
use crate::chart::{Bar, Bars, Color, Line, Timeline};

/// Ranges of the distribution.
const RANGES: u32 = 24;
/// Beyond this a few outliers would squeeze all others into one range; they share the last one.
const MOST_SHOWN: f64 = 99.5;

/// A line for complete, one for partial, and one for each way to fail.
pub fn per_second(summary: &Summary) -> Timeline {
    let line = |name: &str, color, count: &dyn Fn(&PerSecond) -> u64| Line {
        name: name.to_owned(),
        color,
        points: summary.per_second.iter().map(|second| (second.t as f64, count(second) as f64)).collect(),
    };
    let mut lines = vec![line("complete", Color::Blue, &|second| second.ok)];
    if summary.partial > 0 {
        lines.push(line("partial", Color::Green, &|second| second.partial));
    }
    for (cause, color) in summary.errors.keys().zip(Color::OTHERS.into_iter().cycle()) {
        let count = |second: &PerSecond| second.errors.get(cause).copied().unwrap_or_default();
        lines.push(line(cause, color, &count));
    }
    Timeline { counts: "responses a second".to_owned(), lines, bands: Vec::new() }
}

/// Complete ones and the others, by how long they took.
pub fn distribution(results: &Results) -> Bars {
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
        of: format!("latency in ms, in ranges of {}; the last one has all above", short(width)),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_have_round_widths() {
        for (width, round) in
            [(0.9, 1.0), (1.0, 1.0), (1.1, 2.0), (3.0, 5.0), (5.1, 10.0), (417.0, 500.0), (0.03, 0.05)]
        {
            assert!((nice(width) - round).abs() < round * 1e-9, "{width}: {}", nice(width));
        }
        assert_eq!((short(0.1 + 0.2), short(150.0)), ("0.3".to_owned(), "150".to_owned()));
    }
}
