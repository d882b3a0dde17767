//! The bar that a person watches while a load runs. Only where stderr is a terminal.

use std::io::IsTerminal as _;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::settings::describe;
use crate::load::{Aim, Plan, Progress};

pub(super) struct Bar {
    bar: ProgressBar,
    /// Of an open loop in milliseconds, of a closed one in requests.
    by_time: bool,
}

impl Bar {
    pub(super) fn new(plan: &Plan, aim: &Aim) -> Bar {
        let by_time = plan.length().is_some();
        let length = plan.length().map_or(plan.total(), |length| length.as_millis() as u64);
        let target = match std::io::stderr().is_terminal() {
            true => ProgressDrawTarget::stderr(),
            false => ProgressDrawTarget::hidden(),
        };
        let bar = ProgressBar::with_draw_target(Some(length), target);
        let style = ProgressStyle::with_template("{prefix}\n{wide_bar} {percent:>3}%  {msg}").expect("a template");
        bar.set_style(style);
        bar.set_prefix(format!("{aim}: {}", describe(plan)));
        Bar { bar, by_time }
    }

    pub(super) fn show(&self, progress: &Progress) {
        let Progress { elapsed, ok, partial, ko, in_flight, .. } = *progress;
        let ended = ok + partial + ko;
        self.bar.set_position(if self.by_time { elapsed.as_millis() as u64 } else { ended });
        let rate = ended as f64 / elapsed.as_secs_f64().max(0.001);
        let waiting = format!("{in_flight} unanswered");
        self.bar.set_message(format!("{rate:.0}/s  {ok} complete, {partial} partial, {ko} failed, {waiting}"));
    }

    pub(super) fn clear(&self) {
        self.bar.finish_and_clear();
    }
}
