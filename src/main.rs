//! Parse, match, run.

use std::io::Write as _;
use std::process::ExitCode;

use rest_cascade::cli::{self, Command};
use rest_cascade::settings::Environment;
use rest_cascade::{health, lab, load, serve, stub, up};

/// The system's allocator costs a sixth of a forwarded request, and musl's far more.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let environment = Environment::new(std::env::vars_os().filter_map(|(name, value)| {
        // A variable that is not UTF-8 cannot be one of ours.
        Some((name.into_string().ok()?, value.into_string().ok()?))
    }));
    let args: Vec<_> = std::env::args_os().collect();
    let (command, warnings) = match cli::parse(&args, &environment) {
        Ok(parsed) => parsed,
        Err(refusal) if refusal.code == 0 => {
            // Whoever reads it may have seen enough.
            let _ = std::io::stdout().write_all(refusal.text.as_bytes());
            return ExitCode::SUCCESS;
        }
        Err(refusal) => {
            let _ = std::io::stderr().write_all(refusal.text.as_bytes());
            return ExitCode::from(refusal.code);
        }
    };
    match command {
        Command::Serve(settings) => serve::run(settings, &warnings),
        Command::Up(settings) => up::run(settings, &warnings),
        Command::Stress(settings) => load::stress::run(&settings, &warnings),
        Command::Stub(settings) => stub::run(*settings, &warnings),
        Command::Lab(settings) => lab::run(&settings, &warnings),
        Command::Healthcheck(settings) => health::ask::run(&settings),
    }
}
