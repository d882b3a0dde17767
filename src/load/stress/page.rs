//! A load as one page: its figures, the answers of each second by what they were, and how long they took.

use maud::{PreEscaped, html};

use super::settings::describe;
use super::table::{Told, ms};
use crate::chart;
use crate::load::{Results, charts};

/// The whole page.
pub(super) fn html(told: &Told<'_>) -> String {
    let Results { summary, latency, .. } = told.results;
    let content = html! {
        p { (describe(told.plan)) }
        @for warning in &summary.warnings {
            p.warning { (warning) }
        }
        h2 { "Responses a second" }
        (PreEscaped(charts::per_second(summary).svg()))
        h2 { "How long they took" }
        (PreEscaped(charts::distribution(told.results).svg()))
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
