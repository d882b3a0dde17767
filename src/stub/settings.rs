//! What `stub` can be told.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::units::{Span, count, span};
use crate::wire::DeadWork;
use crate::{server, telemetry};

#[derive(Args, Clone, Debug, Serialize)]
#[group(skip)]
pub struct Settings {
    #[command(flatten)]
    #[serde(flatten)]
    pub server: server::Settings,
    #[command(flatten)]
    #[serde(flatten)]
    pub workers: Workers,
    #[command(flatten)]
    #[serde(flatten)]
    pub telemetry: telemetry::Settings,
    /// Stop when the process with this id ends; `lab` sets it, so that no stub outlives it
    #[arg(long, value_name = "PID", hide = true)]
    #[serde(skip)]
    pub parent: Option<i32>,
}

#[derive(Args, Clone, Debug, Serialize)]
#[command(next_help_heading = "Stub")]
#[group(skip)]
pub struct Workers {
    /// The name in its announcement
    #[arg(long, default_value = "stub", value_name = "NAME")]
    pub name: String,
    /// Directory of WireMock's JSON mappings; bodies come from __files beside it. Without it, mappings come over /__admin
    #[arg(long, value_name = "DIR")]
    pub mappings: Option<PathBuf>,
    /// Threads of the container, as WireMock's flag; its acceptors are taken from them, so that 200 work on 197 requests
    #[arg(long, default_value_t = 25, value_name = "N", value_parser = count(1, 100_000))]
    pub container_threads: usize,
    /// How many of the threads accept connections and never work
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = count(0, 1000))]
    pub jetty_acceptor_threads: usize,
    /// Requests that may wait for a worker; without it, any number may
    #[arg(long, value_name = "N", value_parser = count(0, 1_000_000))]
    pub queue: Option<usize>,
    /// What a request gets that finds the queue full
    #[arg(long, default_value = "503", value_name = "WHAT")]
    pub on_queue_full: OnQueueFull,
    /// Who is next: the request that has waited longest, or (as with WireMock 3 and keep-alive) one that comes within
    /// --keep-alive-window on a connection whose answer has just been sent
    #[arg(long, default_value = "fifo", value_name = "ORDER")]
    pub queue_order: QueueOrder,
    /// How long a worker stays with its connection, with --queue-order keep-alive-first
    #[arg(long, default_value_t = Span::millis(20), value_name = "DURATION", value_parser = span(Span::millis(1), Span::secs(60)))]
    pub keep_alive_window: Span,
    /// What a worker does for a client that has gone: work on, skip it in its turn, or cancel at once
    #[arg(long, default_value = "work", value_name = "WHAT", value_parser = dead_work)]
    pub dead_work: DeadWork,
    /// Give the worker free while an answer is delayed: no request ever waits then
    #[arg(long)]
    pub async_response_enabled: bool,
    /// Keep no record of the requests
    #[arg(long)]
    pub no_request_journal: bool,
    /// How many requests the journal keeps; the oldest go first
    #[arg(long, default_value_t = 10_000, value_name = "N", value_parser = count(1, 1_000_000))]
    pub max_request_journal_entries: usize,
    /// Same seed, same delays; a random one if not given
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum OnQueueFull {
    #[value(name = "503")]
    #[serde(rename = "503")]
    Refuse,
    Close,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum QueueOrder {
    Fifo,
    KeepAliveFirst,
}

fn dead_work(text: &str) -> Result<DeadWork, String> {
    match text {
        "work" => Ok(DeadWork::Work),
        "skip" => Ok(DeadWork::Skip),
        "cancel" => Ok(DeadWork::Cancel),
        _ => Err("must be work, skip or cancel".to_owned()),
    }
}
