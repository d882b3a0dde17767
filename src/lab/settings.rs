//! What `lab` can be told.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

/// Faster than this, a second of the article is less than 33 ms, and what the machine costs is seen in the figures.
const FASTEST: f64 = 30.0;

#[derive(Args, Clone, Debug)]
#[group(skip)]
pub struct Settings {
    #[command(subcommand)]
    pub lab: Lab,
}

#[derive(Clone, Debug, Subcommand)]
pub enum Lab {
    /// Overload: a server with 197 workers without limits, then behind a connection pool of 190 (four steps)
    Bulkhead(Bulkhead),
    /// Two replicas, one or both too slow: without a circuit breaker and with one (three steps)
    Breaker(Common),
}

#[derive(Args, Clone, Debug)]
pub struct Bulkhead {
    #[command(flatten)]
    pub common: Common,
    /// How the stub takes requests: first come first served (WireMock 2.24), or as a current WireMock does behind
    /// connections that are kept
    #[arg(long, default_value = "fifo", value_name = "ORDER")]
    pub queue: Queue,
    /// When a closed connection is replaced: modern, or envoy-1.13 as in the article, which strands who waits
    #[arg(long, default_value = "modern", value_name = "RULE")]
    pub pool_rule: Rule,
}

#[derive(Args, Clone, Debug)]
pub struct Common {
    /// Which steps, separated by commas; all if not given
    #[arg(long, value_name = "N", value_delimiter = ',')]
    pub step: Vec<usize>,
    /// How many seconds of the article go by in one on the clock, from 1 to 30
    #[arg(long, default_value_t = 10.0, value_name = "FACTOR", value_parser = speed)]
    pub speed: f64,
    /// Recorded in the report; nothing in these experiments is drawn by lot but ids
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,
    /// Where report.html, report.json and the scaled policies go; lab-NAME in the current directory if not given
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Queue {
    Fifo,
    KeepAliveFirst,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Rule {
    Modern,
    #[value(name = "envoy-1.13")]
    Envoy113,
}

fn speed(text: &str) -> Result<f64, String> {
    let range = || format!("must be a number from 1 to {FASTEST}");
    let speed: f64 = text.parse().map_err(|_| range())?;
    if (1.0..=FASTEST).contains(&speed) { Ok(speed) } else { Err(range()) }
}

impl Common {
    /// The steps that are meant, of `all` there are.
    ///
    /// # Errors
    /// If one of them is none.
    pub fn steps(&self, all: usize) -> Result<Vec<usize>, String> {
        if let Some(wrong) = self.step.iter().find(|step| !(1..=all).contains(*step)) {
            return Err(format!("--step {wrong}: must be from 1 to {all}"));
        }
        let mut steps = if self.step.is_empty() { (1..=all).collect() } else { self.step.clone() };
        steps.sort_unstable();
        steps.dedup();
        Ok(steps)
    }
}
