//! Asks a node's `/ready` every second, as a kubelet would, and says when that is news. Does nothing about it.

use std::error::Error as _;
use std::time::Duration;

use anyhow::{Context as _, Result};
use reqwest::{Client, StatusCode};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::task::AbortOnDropHandle;

use super::What;
use crate::tls;

const PERIOD: Duration = Duration::from_secs(1);
const TIMEOUT: Duration = Duration::from_secs(1);

/// Ready, or why not.
pub(super) type Seen = Result<(), String>;

/// A process that has just started may be unready for this many answers: it is loading, and that is no news.
const LOADING: u32 = 3;

/// What was told of one process's readiness.
#[derive(Debug, Default)]
pub(super) struct Readiness {
    was_ready: bool,
    refusals: u32,
    told_unready: bool,
}

impl Readiness {
    /// What is to be told after this answer, if anything.
    pub(super) fn after(&mut self, seen: Seen) -> Option<What> {
        match seen {
            Ok(()) => {
                self.was_ready = true;
                self.refusals = 0;
                std::mem::take(&mut self.told_unready).then_some(What::ReadyAgain)
            }
            Err(why) => {
                self.refusals += 1;
                let news = !self.told_unready && (self.was_ready || self.refusals > LOADING);
                self.told_unready |= news;
                news.then_some(What::Unready(why))
            }
        }
    }
}

/// The answers of one node, as long as it is held.
#[derive(Debug)]
pub(super) struct Watch {
    answers: mpsc::Receiver<Seen>,
    _task: AbortOnDropHandle<()>,
}

impl Watch {
    pub(super) fn start(client: Client, url: String) -> Watch {
        let (sender, answers) = mpsc::channel(1);
        let task = tokio::spawn(async move {
            let mut ticks = interval(PERIOD);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                if sender.send(ask(&client, &url).await).await.is_err() {
                    return;
                }
            }
        });
        Watch { answers, _task: AbortOnDropHandle::new(task) }
    }

    pub(super) async fn next(&mut self) -> Seen {
        match self.answers.recv().await {
            Some(seen) => seen,
            // The task ends only with its receiver; should it panic, there is no more to see.
            None => std::future::pending().await,
        }
    }
}

/// A client that goes straight to a node: no proxy, no redirect, a connection of its own for each question, as an idle
/// one would be among those that the node counts and drains.
pub(super) fn client() -> Result<Client> {
    Client::builder()
        .tls_backend_preconfigured(tls::unused()?)
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .pool_max_idle_per_host(0)
        .timeout(TIMEOUT)
        .build()
        .context("the HTTP client cannot be made")
}

async fn ask(client: &Client, url: &str) -> Seen {
    match client.get(url).send().await {
        Ok(answer) if answer.status() == StatusCode::OK => Ok(()),
        Ok(answer) => Err(format!("/ready answers {}", answer.status())),
        Err(error) if error.is_timeout() => Err(format!("/ready has not answered within {TIMEOUT:?}")),
        Err(error) => Err(format!("/ready cannot be asked: {}", cause(&error))),
    }
}

/// The innermost cause: the ones around it only repeat the URL.
fn cause(error: &reqwest::Error) -> String {
    let mut last = error.source();
    while let Some(next) = last.and_then(std::error::Error::source) {
        last = Some(next);
    }
    last.map_or_else(|| error.to_string(), ToString::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `+` is an answer of 200, `-` is any other; below each, what is told: `r` ready again, `u` unready.
    fn told(answers: &str) -> String {
        let mut readiness = Readiness::default();
        let tell = |answer| match readiness.after(if answer == '+' { Ok(()) } else { Err("503".to_owned()) }) {
            None => ' ',
            Some(What::ReadyAgain) => 'r',
            Some(What::Unready(_)) => 'u',
            Some(other) => panic!("{other:?}"),
        };
        answers.chars().map(tell).collect()
    }

    #[test]
    fn only_changes_are_told() {
        assert_eq!(told("++--++-+"), "  u r ur");
    }

    #[test]
    fn a_process_that_loads_is_no_news_until_it_takes_long() {
        assert_eq!(told("---++"), "     ");
        assert_eq!(told("-----+"), "   u r");
    }
}
