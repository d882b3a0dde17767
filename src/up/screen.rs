//! What `up` prints: the table and events on stdout, the nodes' own lines on stderr. Never waits for a reader.

use std::io::Write as _;
use std::net::SocketAddr;
use std::time::SystemTime;

use tracing_appender::non_blocking::{NonBlocking, NonBlockingBuilder, WorkerGuard};

use crate::cluster::{Cascade, Event, Node, What};

/// Both streams; clones write to the same. Lines that nobody reads are dropped once many are waiting.
#[derive(Clone, Debug)]
pub(super) struct Screen {
    out: NonBlocking,
    err: NonBlocking,
    /// Lines of nodes that repeat one of these sentences are left out: it was told once.
    told: Vec<String>,
}

impl Screen {
    /// The guards write what is waiting when they are dropped.
    pub(super) fn start(told: &[String]) -> (Screen, [WorkerGuard; 2]) {
        let (out, guard) = NonBlockingBuilder::default().lossy(true).finish(std::io::stdout());
        let (err, other) = NonBlockingBuilder::default().lossy(true).finish(std::io::stderr());
        (Screen { out, err, told: told.to_vec() }, [guard, other])
    }

    pub(super) fn cascade(&self, cascade: &Cascade, control: Option<SocketAddr>) {
        let rows: Vec<[String; 5]> = cascade.nodes().iter().zip(1..).map(|(node, number)| row(node, number)).collect();
        self.print(&table(&rows));
        let head = cascade.nodes().first().map(Node::url).unwrap_or_default();
        let mut lines = format!("\ntry it:   curl {head}/\n");
        if let Some(control) = control {
            let count = rows.len();
            lines.push_str(&format!(
                "control:  curl http://{control}/api/nodes\n          \
                 curl -X POST http://{control}/api/nodes/{count}/pause   (or kill, resume, stop, restart)\n"
            ));
        }
        self.print(&format!("{lines}stop all: Ctrl-C\n\n"));
    }

    pub(super) fn event(&self, event: &Event) {
        match sentence(&event.what) {
            Line::Event(sentence) => self.note(&format!("{} {sentence}", event.node)),
            Line::OfNode(line) if self.told.iter().any(|told| line.contains(told)) => {}
            Line::OfNode(line) => self.complain(&format!("{} | {line}", event.node)),
        }
    }

    /// One line on stdout, with the time.
    pub(super) fn note(&self, sentence: &str) {
        self.print(&format!("{}  {sentence}\n", humantime::format_rfc3339_seconds(SystemTime::now())));
    }

    /// One line on stderr.
    pub(super) fn complain(&self, line: &str) {
        // A stream that is closed is no reason to stop the nodes.
        let _ = self.err.clone().write_all(format!("{line}\n").as_bytes());
    }

    fn print(&self, text: &str) {
        let _ = self.out.clone().write_all(text.as_bytes());
    }
}

enum Line {
    Event(String),
    OfNode(String),
}

fn sentence(what: &What) -> Line {
    Line::Event(match what {
        What::Stopping => "is asked to stop".to_owned(),
        What::Stopped(ending) => format!("stopped: {ending}"),
        What::Exited(ending) => format!("exited: {ending}"),
        What::Paused => "paused".to_owned(),
        What::Resumed => "resumed".to_owned(),
        What::Restarted(pid) => format!("restarted: PID {pid}"),
        What::NotRestarted(error) => format!("not restarted: {error}"),
        What::Unready(why) => format!("unready: {why}"),
        What::ReadyAgain => "ready again".to_owned(),
        What::Said(line) => return Line::OfNode(line.clone()),
    })
}

fn row(node: &Node, number: usize) -> [String; 5] {
    let pid = node.status().pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string());
    let target = node.target().unwrap_or("-").to_owned();
    [number.to_string(), node.name().to_owned(), node.url().to_owned(), pid, target]
}

fn table(rows: &[[String; 5]]) -> String {
    let head = ["NODE", "NAME", "URL", "PID", "TARGET"].map(str::to_owned);
    let width = |column: usize| rows.iter().chain([&head]).map(|row| row[column].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let line = |row: &[String; 5]| {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        cells.join("  ").trim_end().to_owned() + "\n"
    };
    [&head].into_iter().chain(rows).map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_columns_are_as_wide_as_their_widest_cell() {
        let row = |cells: [&str; 5]| cells.map(str::to_owned);
        let rows = [
            row(["1", "service-1", "http://127.0.0.1:8080", "7", "http://127.0.0.1:8081"]),
            row(["2", "service-2", "http://127.0.0.1:8081", "12345", "-"]),
        ];
        insta::assert_snapshot!(table(&rows), @r"
        NODE  NAME       URL                    PID    TARGET
        1     service-1  http://127.0.0.1:8080  7      http://127.0.0.1:8081
        2     service-2  http://127.0.0.1:8081  12345  -
        ");
    }
}
