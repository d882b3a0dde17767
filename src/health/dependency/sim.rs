//! The simulated database: it does what it is told, and can be told otherwise at any time.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::sync::watch;
use tokio::time::sleep;
use utoipa::ToSchema;

use super::super::verdict::Failure;

/// The slowest that it can be told to be.
const SLOWEST_MS: u64 = 60_000;

/// How the simulated database behaves. As text: `up`, `down`, `hang`, `slow?ms=300`, `flaky?p=0.3`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, ToSchema)]
#[serde(tag = "mode", rename_all = "lowercase")]
pub enum Mode {
    #[default]
    Up,
    /// Refuses at once.
    Down,
    /// Takes the question and never answers.
    Hang,
    Slow {
        #[schema(maximum = 60_000)]
        ms: u64,
    },
    /// Refuses with the probability `p`.
    Flaky {
        #[schema(minimum = 0, maximum = 1)]
        p: f64,
    },
}

impl Mode {
    /// From pairs such as `mode=slow`, `ms=300`, or `up=false` (`csdl=false`).
    ///
    /// # Errors
    /// One sentence that names the value and its limit.
    pub fn from_pairs<'a>(pairs: impl IntoIterator<Item = (Cow<'a, str>, Cow<'a, str>)>) -> Result<Mode, String> {
        let (mut up, mut mode, mut ms, mut p) = (None, None, None, None);
        for (key, value) in pairs {
            let seen = match &*key {
                "up" | "csdl" => up.replace(value),
                "mode" => mode.replace(value),
                "ms" => ms.replace(value),
                "p" => p.replace(value),
                _ => return Err(format!("{key:?} is not known: up, mode, ms and p are")),
            };
            if seen.is_some() {
                return Err(format!("{key} is given twice"));
            }
        }
        match (up.as_deref(), mode.as_deref(), ms, p) {
            (Some("true"), None, None, None) => Ok(Mode::Up),
            (Some("false"), None, None, None) => Ok(Mode::Down),
            (Some(other), None, None, None) => Err(format!("up={other}: must be true or false")),
            (Some(_), ..) => Err("up stands alone: mode says more than it".to_owned()),
            (None, Some("up"), None, None) => Ok(Mode::Up),
            (None, Some("down"), None, None) => Ok(Mode::Down),
            (None, Some("hang"), None, None) => Ok(Mode::Hang),
            (None, Some("slow"), Some(ms), None) => slow(&ms),
            (None, Some("slow"), None, None) => Err(format!("mode=slow needs ms, from 0 to {SLOWEST_MS}")),
            (None, Some("flaky"), None, Some(p)) => flaky(&p),
            (None, Some("flaky"), None, None) => Err("mode=flaky needs p, from 0 to 1".to_owned()),
            (None, Some("up" | "down" | "hang" | "slow" | "flaky"), ..) => {
                Err("ms belongs to mode=slow alone, p to mode=flaky alone".to_owned())
            }
            (None, Some(other), ..) => Err(format!("mode={other}: must be up, down, hang, slow or flaky")),
            (None, None, ..) => Err("up or mode is missing".to_owned()),
        }
    }
}

fn slow(ms: &str) -> Result<Mode, String> {
    match ms.parse() {
        Ok(ms) if ms <= SLOWEST_MS => Ok(Mode::Slow { ms }),
        _ => Err(format!("ms={ms}: must be a whole number from 0 to {SLOWEST_MS}")),
    }
}

fn flaky(p: &str) -> Result<Mode, String> {
    match p.parse() {
        Ok(p) if (0.0..=1.0).contains(&p) => Ok(Mode::Flaky { p }),
        _ => Err(format!("p={p}: must be a number from 0 to 1")),
    }
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Mode, String> {
        if text.is_empty() {
            return Ok(Mode::Up);
        }
        let (mode, query) = text.split_once('?').unwrap_or((text, ""));
        let first = (Cow::Borrowed("mode"), Cow::Borrowed(mode));
        Mode::from_pairs(std::iter::once(first).chain(url::form_urlencoded::parse(query.as_bytes())))
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mode::Up => f.write_str("up"),
            Mode::Down => f.write_str("down"),
            Mode::Hang => f.write_str("hang"),
            Mode::Slow { ms } => write!(f, "slow?ms={ms}"),
            Mode::Flaky { p } => write!(f, "flaky?p={p}"),
        }
    }
}

/// Handle to one simulated database; clones are the same.
#[derive(Clone, Debug)]
pub(in super::super) struct Sim(Arc<watch::Sender<Mode>>);

impl Sim {
    pub(in super::super) fn new(mode: Mode) -> Sim {
        Sim(Arc::new(watch::Sender::new(mode)))
    }

    pub(in super::super) fn mode(&self) -> Mode {
        *self.0.borrow()
    }

    pub(in super::super) fn set(&self, mode: Mode) {
        self.0.send_replace(mode);
    }

    /// A question is answered as the database is when the answer is due: one that hangs gets its answer when the
    /// database comes back, as after a pause.
    pub(super) async fn query(&self) -> Result<(), Failure> {
        let mut told = self.0.subscribe();
        loop {
            let mode = *told.borrow_and_update();
            let due = async {
                match mode {
                    Mode::Hang => std::future::pending().await,
                    Mode::Slow { ms } => sleep(Duration::from_millis(ms)).await,
                    Mode::Up | Mode::Down | Mode::Flaky { .. } => {}
                }
            };
            tokio::select! {
                biased;
                () = due => return answer(mode, rand::random()),
                _ = told.changed() => {}
            }
        }
    }
}

fn answer(mode: Mode, roll: f64) -> Result<(), Failure> {
    match mode {
        Mode::Down => Err(Failure::said("connection refused (simulated)")),
        Mode::Flaky { p } if roll < p => Err(Failure::said("connection reset (simulated, flaky)")),
        Mode::Up | Mode::Hang | Mode::Slow { .. } | Mode::Flaky { .. } => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::Instant;

    fn from_query(query: &str) -> Result<Mode, String> {
        Mode::from_pairs(url::form_urlencoded::parse(query.as_bytes()))
    }

    #[test]
    fn every_mode_has_its_words() {
        for (query, mode) in [
            ("up=true", Mode::Up),
            ("csdl=false", Mode::Down),
            ("mode=hang", Mode::Hang),
            ("mode=slow&ms=0", Mode::Slow { ms: 0 }),
            ("ms=60000&mode=slow", Mode::Slow { ms: 60_000 }),
            ("mode=flaky&p=1", Mode::Flaky { p: 1.0 }),
        ] {
            assert_eq!(from_query(query), Ok(mode), "{query}");
            assert_eq!(mode.to_string().parse(), Ok(mode));
        }
    }

    #[test]
    fn wrong_words_are_refused_with_value_and_limit() {
        for (query, part) in [
            ("", "missing"),
            ("up=1", "up=1: must be true or false"),
            ("up=", "must be true or false"),
            ("up=true&up=false", "twice"),
            ("up=true&csdl=true", "twice"),
            ("up=true&mode=up", "alone"),
            ("upp=true", "\"upp\""),
            ("mode=slow", "needs ms, from 0 to 60000"),
            ("mode=slow&ms=-1", "ms=-1: must be a whole number from 0 to 60000"),
            ("mode=slow&ms=60001", "from 0 to 60000"),
            ("mode=slow&ms=1e3", "ms=1e3"),
            ("mode=flaky", "from 0 to 1"),
            ("mode=flaky&p=1.1", "p=1.1: must be a number from 0 to 1"),
            ("mode=flaky&p=NaN", "p=NaN"),
            ("mode=up&ms=3", "belongs"),
            ("mode=hang&p=0.5", "belongs"),
            ("ms=5", "missing"),
            ("mode=dead", "mode=dead: must be up, down, hang, slow or flaky"),
        ] {
            let error = from_query(query).expect_err(query);
            assert!(error.contains(part), "{query}: {error}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_question_that_hangs_is_answered_when_the_database_comes_back() {
        for (back, expected) in [(Mode::Up, true), (Mode::Down, false)] {
            let sim = Sim::new(Mode::Hang);
            let asked = tokio::spawn({
                let sim = sim.clone();
                async move { sim.query().await }
            });
            sleep(Duration::from_secs(3600)).await;
            assert!(!asked.is_finished());
            sim.set(back);
            assert_eq!(asked.await.expect("no panic").is_ok(), expected);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_database_takes_its_time() {
        let start = Instant::now();
        assert_eq!(Sim::new(Mode::Slow { ms: 300 }).query().await, Ok(()));
        assert_eq!(start.elapsed(), Duration::from_millis(300));
    }

    #[test]
    fn a_flaky_database_fails_as_often_as_it_is_told() {
        for (p, roll, up) in [(0.0, 0.0, true), (0.3, 0.29, false), (0.3, 0.3, true), (1.0, 0.999, false)] {
            assert_eq!(answer(Mode::Flaky { p }, roll).is_ok(), up, "{p} {roll}");
        }
    }
}
