//! The report as one page: for each step its charts, its table and what it teaches.

use maud::{Markup, PreEscaped, html};

use super::experiment::Outcome;
use super::report::{HEAD, Report, StepReport};
use super::scenario::Step;
use crate::chart::{self, Band, Color, Line, Timeline};
use crate::load::charts;

/// The end of the article's load.
const END_S: f64 = 130.0;

/// One step's part of the page, made when it has ended.
pub(super) fn step(step: &Step, report: &StepReport, outcome: &Outcome) -> Markup {
    let mut answers = charts::per_second(&report.summary);
    answers.bands = outcome
        .ejections
        .iter()
        .zip([Color::Orange, Color::Purple].into_iter().cycle())
        .filter(|(ejection, _)| ejection.from_s < END_S)
        .map(|(ejection, color)| Band {
            name: format!("{} ejected", ejection.endpoint),
            color,
            from: ejection.from_s,
            to: ejection.until_s.unwrap_or(END_S).min(END_S),
        })
        .collect();
    let line = |name: &str, color, column: usize| Line {
        name: name.to_owned(),
        color,
        points: outcome.workers.iter().map(|seen| (seen[0], seen[column])).collect(),
    };
    let workers = Timeline {
        counts: "requests at the stub".to_owned(),
        lines: vec![line("a worker has", Color::Blue, 1), line("waiting", Color::Vermilion, 2)],
        bands: Vec::new(),
    };
    html! {
        h2 { (report.summary.name) " – " (step.title) }
        p { (step.lesson) }
        p class=[(!report.within).then_some("warning")] {
            @if report.within { "✓ Within" } @else { "✗ Outside" }
            " what counts as the same: OK " (report.accept["ok"][0]) " to " (report.accept["ok"][1])
            ", 504 " (report.accept["504"][0]) " to " (report.accept["504"][1]) "."
            @if let Some(answered) = report.recovery_s {
                " A request sent to the stub at 140 s, ten seconds after the load, was answered at "
                (format!("{answered:.1}")) " s."
            }
        }
        (PreEscaped(answers.svg()))
        div class="scroll" { (table(report)) }
        details open { summary { "How long answers took" } (PreEscaped(charts::distribution(&outcome.results).svg())) }
        details open { summary { "The stub's workers and queue" } (PreEscaped(workers.svg())) }
    }
}

fn table(report: &StepReport) -> Markup {
    html! {
        table {
            tr { @for name in HEAD { th { (name) } } }
            @for row in report.rows() { tr { @for cell in row { td { (cell) } } } }
        }
    }
}

pub(super) fn whole(report: &Report, steps: &[Markup]) -> String {
    let seconds = |seconds: f64| format!("{:.1} s", seconds / report.speed);
    chart::page(
        &format!("rest-cascade lab {}", report.lab),
        &html! {
            p {
                "The load is the article's: 50 requests a second after a ramp of 10 s, for 2 minutes, a connection \
                 each, 6275 requests. Real processes on this machine: the stub with 200 threads, of which 197 work, a \
                 gateway node whose calls follow the policy, and the load."
            }
            p {
                "Time ran " (report.speed) " times as fast: the rate, every delay, time-out, interval and ejection are \
                 scaled, and all times here are the article's. What does not scale is what this machine needs itself: \
                 a connection of 0.2 ms counts as " (format!("{:.1} ms", report.speed * 0.2)) " here, and a timer of \
                 1 ms as " (format!("{:.0} ms", report.speed)) ". The load took " (seconds(END_S)) " a step. Limits \
                 and counts are the article's."
            }
            @for warning in &report.warnings { p class="warning" { (warning) } }
            @for step in steps { (step) }
            p {
                "Rows: here; the article's table; a model of discrete events; a real Envoy 1.40 with one worker \
                 before the same kind of stub."
            }
        },
    )
}
