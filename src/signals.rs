//! The signals that ask a process to stop. Receives them; what follows is its caller's.

use anyhow::{Context, Result};
use nix::sys::signal::{SigSet, Signal as Number};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// What asks to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    Terminate,
    Interrupt,
    /// The terminal was closed.
    Hangup,
}

impl Stop {
    /// As a shell reports a process that this signal ended.
    pub fn code(self) -> u8 {
        match self {
            Stop::Terminate => 143,
            Stop::Interrupt => 130,
            Stop::Hangup => 129,
        }
    }
}

impl std::fmt::Display for Stop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Stop::Terminate => "SIGTERM",
            Stop::Interrupt => "SIGINT",
            Stop::Hangup => "SIGHUP",
        })
    }
}

#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Option<Signal>,
}

impl Signals {
    /// SIGTERM and SIGINT; from now on they no longer end the process by themselves.
    ///
    /// # Errors
    /// If the system allows no handler.
    pub fn listen() -> Result<Signals> {
        // Held back meanwhile: between the handler's installation and its registration, a signal would be lost.
        let held = SigSet::from_iter([Number::SIGTERM, Number::SIGINT]);
        held.thread_block().context("signals cannot be held back")?;
        let (terminate, interrupt) = (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?);
        held.thread_unblock().context("signals cannot be let through again")?;
        Ok(Signals { terminate, interrupt, hangup: None })
    }

    /// SIGHUP too, unless the process was started to survive it (`nohup`).
    ///
    /// # Errors
    /// If the system allows no handler.
    pub fn listen_with_hangup() -> Result<Signals> {
        let hangup = if hangup_is_ignored() { None } else { Some(listen(SignalKind::hangup())?) };
        Ok(Signals { hangup, ..Signals::listen()? })
    }

    /// Waits for the next one.
    pub async fn next(&mut self) -> Stop {
        let hangup = async {
            match &mut self.hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.terminate.recv() => Stop::Terminate,
            _ = self.interrupt.recv() => Stop::Interrupt,
            _ = hangup => Stop::Hangup,
        }
    }
}

fn listen(kind: SignalKind) -> Result<Signal> {
    signal(kind).context("signals cannot be received")
}

fn hangup_is_ignored() -> bool {
    let ignored = procfs::process::Process::myself().and_then(|process| process.status()).map(|status| status.sigign);
    // Signal 1 is the lowest bit.
    ignored.is_ok_and(|ignored| ignored & 1 == 1)
}

/// Has the kernel end this process when its parent ends, however that happens.
///
/// # Errors
/// If the parent has ended already, or the kernel does not allow it.
pub fn end_with(parent: i32) -> Result<()> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
        .context("the end of the parent cannot be followed")?;
    // It may have ended before we asked.
    let now = rustix::process::getppid().map(rustix::process::Pid::as_raw_pid);
    anyhow::ensure!(now == Some(parent), "the parent {parent} has ended");
    Ok(())
}
