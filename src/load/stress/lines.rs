//! A load as a line for each second, for a spreadsheet.

use std::collections::BTreeSet;

use crate::load::Summary;

/// `t`, the three counts, and a column for each way to fail. Words of ours and numbers: nothing needs quotes.
pub(super) fn csv(summary: &Summary) -> String {
    let causes: BTreeSet<&str> = summary.errors.keys().map(String::as_str).collect();
    let head = ["t", "ok", "partial", "ko"].into_iter().chain(causes.iter().copied());
    let mut text = head.collect::<Vec<_>>().join(",") + "\n";
    for second in &summary.per_second {
        let counts = [second.t, second.ok, second.partial, second.ko].into_iter();
        let by_cause = causes.iter().map(|cause| second.errors.get(*cause).copied().unwrap_or_default());
        text += &counts.chain(by_cause).map(|count| count.to_string()).collect::<Vec<_>>().join(",");
        text.push('\n');
    }
    text
}
