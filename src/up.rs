//! The local cascade.

use std::process::ExitCode;

use clap::Args;

#[derive(Args, Clone, Debug)]
pub struct Settings {}

pub fn run(_settings: Settings, _warnings: &[String]) -> ExitCode {
    ExitCode::FAILURE
}
