//! What `stress` can be told, and what of it does not go together.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use http::{HeaderName, HeaderValue};
use url::Url;

use crate::load::aim::{Aim, Method};
use crate::load::{Options, Plan};
use crate::units::{Span, count, span};

const DEFAULT_REQUESTS: usize = 10_000;
const DEFAULT_CONNECTIONS: usize = 4;
const DEFAULT_IN_FLIGHT: usize = 4096;
const DEFAULT_DURATION: Span = Span::secs(10);
/// More connections to one address than this have no port left on this side.
const MOST_CONNECTIONS: usize = 28_000;
const RATES: std::ops::RangeInclusive<f64> = 0.001..=1_000_000.0;

#[derive(Args, Clone, Debug)]
pub struct Settings {
    /// What to load, such as http://localhost:8080/
    #[arg(value_name = "URL", value_parser = target)]
    pub url: Url,
    /// Closed loop, as ab: how many requests in all [default: 10000]
    #[arg(short = 'n', long, value_name = "N", allow_negative_numbers = true, value_parser = count(1, 1_000_000_000))]
    pub requests: Option<usize>,
    /// Closed loop: how many at a time, each sent when the last one is answered [default: 4]
    #[arg(short = 'c', long, value_name = "N", allow_negative_numbers = true, value_parser = count(1, MOST_CONNECTIONS))]
    pub connections: Option<usize>,
    /// Use connections again, also in an open loop; else each request has its own
    #[arg(short = 'k', long)]
    pub keep_alive: bool,
    /// Open loop, as Gatling: requests a second, sent when they are due, whatever is still unanswered
    #[arg(long, value_name = "PER_SECOND", allow_negative_numbers = true, value_parser = rate)]
    pub rate: Option<f64>,
    /// Open loop: how long to go up to the full rate first, in steps of a second, at least ten [default: 0]
    #[arg(long, value_name = "DURATION", value_parser = span(Span::secs(0), Span::secs(3600)))]
    pub ramp: Option<Span>,
    /// Open loop: how long to hold the full rate after that [default: 10s]
    #[arg(long, value_name = "DURATION", value_parser = span(Span::millis(1), Span::secs(24 * 3600)))]
    pub duration: Option<Span>,
    /// Open loop: leave out the requests that have no answer when the duration is over, as Gatling does
    #[arg(long)]
    pub cut_off: bool,
    /// Open loop: how many requests may be unanswered at a time; further ones wait, which is told [default: 4096, or what
    /// the limit of open files allows]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = count(1, MOST_CONNECTIONS))]
    pub max_in_flight: Option<usize>,
    /// A request that takes longer has failed
    #[arg(long, default_value_t = Span::secs(30), value_name = "DURATION", value_parser = span(Span::millis(1), Span::secs(3600)))]
    pub timeout: Span,
    /// A header of each request; can be given several times
    #[arg(short = 'H', long, value_name = "NAME: VALUE")]
    pub header: Vec<Header>,
    /// Ask with HEAD instead of GET
    #[arg(short = 'i', long)]
    pub head: bool,
    /// For an https URL: trust the authorities in this file, instead of the system's
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// Threads that send; one does about 200,000 requests a second
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = count(1, 64))]
    pub threads: usize,
    /// Print one JSON object instead of the table
    #[arg(long)]
    pub json: bool,
    /// Write a line for each second
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Write a page with charts
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Exit 1 if more than this share of the requests failed; partial answers are no failures
    #[arg(long, default_value = "0%", value_name = "PERCENT", allow_hyphen_values = true)]
    pub fail_over: Share,
}

/// A header as people write it: `name: value`.
#[derive(Clone, Debug, PartialEq)]
pub struct Header(pub HeaderName, pub HeaderValue);

/// A share of all requests, from 0 to 1; written as `1%`.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Share(pub f64);

impl Settings {
    /// # Errors
    /// If closed and open loop are mixed.
    pub(super) fn plan(&self) -> Result<Plan, String> {
        let Some(rate) = self.rate else {
            let open = [("--ramp", self.ramp.is_some()), ("--duration", self.duration.is_some())];
            if let Some((flag, _)) = open.iter().chain(&[("--cut-off", self.cut_off)]).find(|(_, given)| *given) {
                return Err(format!("{flag} is of an open loop, which needs --rate"));
            }
            let requests = self.requests.unwrap_or(DEFAULT_REQUESTS) as u64;
            // As many as there are requests are enough, unless somebody asked for more.
            let few = DEFAULT_CONNECTIONS.min(requests as usize);
            let connections = self.connections.unwrap_or(few);
            if connections as u64 > requests {
                return Err(format!("-c {connections}: must be from 1 to the number of requests (-n {requests})"));
            }
            return Ok(Plan::Closed { requests, connections });
        };
        let closed = [("-n", self.requests.is_some()), ("-c", self.connections.is_some())];
        if let Some((flag, _)) = closed.iter().find(|(_, given)| *given) {
            return Err(format!("{flag} is of a closed loop and does not go with --rate"));
        }
        let hold = *self.duration.unwrap_or(DEFAULT_DURATION);
        Ok(Plan::Open { rate, ramp: *self.ramp.unwrap_or_default(), hold })
    }

    /// `most`: connections that this process may have.
    pub(super) fn options(&self, most: usize) -> Options {
        Options {
            keep_alive: self.keep_alive,
            time_out: *self.timeout,
            speed: 1.0,
            cut_off: self.cut_off,
            max_in_flight: self.max_in_flight.unwrap_or(DEFAULT_IN_FLIGHT.min(most)),
            threads: self.threads,
            samples: false,
        }
    }

    pub(super) fn method(&self) -> Method {
        if self.head { Method::Head } else { Method::Get }
    }

    pub(super) fn headers(&self) -> Vec<(HeaderName, HeaderValue)> {
        self.header.iter().map(|Header(name, value)| (name.clone(), value.clone())).collect()
    }

    /// The flag that asks for connections, and how many.
    pub(super) fn asked_connections(&self, plan: &Plan) -> (&'static str, usize) {
        match *plan {
            Plan::Closed { connections, .. } => ("-c", connections),
            Plan::Open { .. } => ("--max-in-flight", self.max_in_flight.unwrap_or(1)),
        }
    }
}

fn target(text: &str) -> Result<Url, String> {
    let url = Url::parse(text).map_err(|error| format!("not a URL such as http://localhost:8080/ ({error})"))?;
    Aim::check(&url).map_err(|error| error.to_string())?;
    Ok(url)
}

fn rate(text: &str) -> Result<f64, String> {
    let refused = || format!("must be a number from {} to {} a second", RATES.start(), RATES.end());
    text.parse().ok().filter(|rate| RATES.contains(rate)).ok_or_else(refused)
}

impl FromStr for Header {
    type Err = String;

    fn from_str(text: &str) -> Result<Header, String> {
        let (name, value) = text.split_once(':').ok_or("a header is written \"name: value\"")?;
        let name: HeaderName = name.trim().parse().map_err(|_| "its name cannot be one of a header")?;
        let value = value.trim().parse().map_err(|_| "its value has letters that no header can have")?;
        Aim::check_header(&name).map_err(|error| error.to_string())?;
        Ok(Header(name, value))
    }
}

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Share, String> {
        let refused = || "must be from 0% to 100%, such as 1% or 0.5%".to_owned();
        let percent: f64 = text.strip_suffix('%').and_then(|number| number.trim().parse().ok()).ok_or_else(refused)?;
        if (0.0..=100.0).contains(&percent) { Ok(Share(percent / 100.0)) } else { Err(refused()) }
    }
}

impl std::fmt::Display for Share {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}%", self.0 * 100.0)
    }
}

/// The rate after the ramp and the time of both, as a sentence has it.
pub(super) fn describe(plan: &Plan) -> String {
    let shown = |time: Duration| Span(time).to_string();
    match *plan {
        Plan::Closed { requests, connections } => format!("{requests} requests, {connections} at a time"),
        Plan::Open { rate, ramp, hold } if ramp.is_zero() => format!("{rate} requests a second for {}", shown(hold)),
        Plan::Open { rate, ramp, hold } => {
            format!("up to {rate} requests a second in {}, then held for {}", shown(ramp), shown(hold))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Flags {
        #[command(flatten)]
        settings: Settings,
    }

    fn parsed(flags: &str) -> Result<Settings, String> {
        let flags = ["stress", "http://h/"].into_iter().chain(flags.split_whitespace());
        Flags::try_parse_from(flags).map(|flags| flags.settings).map_err(|error| error.to_string())
    }

    fn plan(flags: &str) -> Result<Plan, String> {
        parsed(flags)?.plan()
    }

    #[test]
    fn a_rate_makes_it_an_open_loop() {
        assert_eq!(plan(""), Ok(Plan::Closed { requests: 10_000, connections: 4 }));
        assert_eq!(plan("-n 2"), Ok(Plan::Closed { requests: 2, connections: 2 }));
        let (ramp, hold) = (Duration::from_secs(10), Duration::from_secs(120));
        assert_eq!(plan("--rate 50 --ramp 10s --duration 2m"), Ok(Plan::Open { rate: 50.0, ramp, hold }));
        let (ramp, hold) = (Duration::ZERO, Duration::from_secs(10));
        assert_eq!(plan("--rate 0.5"), Ok(Plan::Open { rate: 0.5, ramp, hold }));
    }

    #[test]
    fn what_does_not_go_together_or_is_out_of_its_range_is_refused_by_name() {
        for (flags, parts) in [
            ("-n 5 --rate 5", &["-n", "--rate"][..]),
            ("-c 5 --rate 5", &["-c", "--rate"]),
            ("--ramp 5s", &["--ramp", "--rate"]),
            ("--duration 5s", &["--duration", "--rate"]),
            ("--cut-off", &["--cut-off", "--rate"]),
            ("-n 3 -c 4", &["-c 4", "-n 3"]),
            ("-n -1", &["'-1'", "from 1 to"]),
            ("-n 0", &["'0'", "from 1 to"]),
            ("-c 0", &["'0'", "from 1 to"]),
            ("--rate 0", &["'0'", "from 0.001 to"]),
            ("--rate -5", &["'-5'", "from 0.001 to"]),
            ("--rate NaN", &["'NaN'", "from 0.001 to"]),
            ("--rate inf", &["'inf'", "from 0.001 to"]),
            ("--duration 0 --rate 1", &["'0'", "from 1ms to"]),
            ("--timeout 0", &["'0'", "from 1ms to"]),
            ("--max-in-flight 0", &["'0'", "from 1 to"]),
            ("--fail-over 1", &["'1'", "1%"]),
            ("--fail-over 101%", &["'101%'", "100%"]),
            ("--fail-over NaN%", &["'NaN%'", "100%"]),
            ("-H novalue", &["name: value"]),
            ("-H connection:close", &["connection", "framed"]),
        ] {
            let error = plan(flags).expect_err(flags);
            assert!(parts.iter().all(|part| error.contains(part)), "{flags}: {error}");
        }
    }

    #[test]
    fn a_share_and_a_header_read_as_they_are_written() {
        assert_eq!("0.5%".parse(), Ok(Share(0.005)));
        let header = "X-A:  b: c ".parse::<Header>().expect("a header");
        assert_eq!(header, Header("x-a".parse().expect("a name"), "b: c".parse().expect("a value")));
    }
}
