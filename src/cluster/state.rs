//! What a node may be, and what may be done to it then. No process, no clock.

use std::fmt;
use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;

use serde::Serialize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    Running,
    /// Held by SIGSTOP: its connections stay open, and nothing answers.
    Paused,
    /// Ended after it was asked to stop.
    Stopped,
    /// Ended in any other way.
    Exited,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// SIGKILL: gone at once, nothing is answered any more.
    Kill,
    /// SIGSTOP.
    Pause,
    /// SIGCONT.
    Resume,
    /// SIGTERM: the node drains and ends.
    Stop,
    /// A new process on the same port, after the old one has stopped in order.
    Restart,
}

/// A node at this moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    pub state: State,
    /// `None` once the process has ended.
    pub pid: Option<u32>,
    /// The last answer of `/ready`; `None` where none was asked for yet.
    pub ready: Option<bool>,
    pub restarts: u32,
}

/// How a process ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    Code(i32),
    Signal(i32),
    /// The system does not say.
    Unknown(String),
}

impl State {
    pub fn is_alive(self) -> bool {
        matches!(self, State::Running | State::Paused)
    }

    pub fn allows(self, action: Action) -> bool {
        match action {
            Action::Kill | Action::Stop => self.is_alive(),
            Action::Pause => self == State::Running,
            Action::Resume => self == State::Paused,
            Action::Restart => true,
        }
    }

    pub const fn as_str(self) -> &'static str {
        match self {
            State::Running => "running",
            State::Paused => "paused",
            State::Stopped => "stopped",
            State::Exited => "exited",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Action {
    pub const ALL: [Action; 5] = [Action::Kill, Action::Pause, Action::Resume, Action::Stop, Action::Restart];

    pub const fn as_str(self) -> &'static str {
        match self {
            Action::Kill => "kill",
            Action::Pause => "pause",
            Action::Resume => "resume",
            Action::Stop => "stop",
            Action::Restart => "restart",
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl From<io::Result<ExitStatus>> for Ending {
    fn from(status: io::Result<ExitStatus>) -> Ending {
        match status.map(|status| (status.code(), status.signal())) {
            Ok((Some(code), _)) => Ending::Code(code),
            Ok((None, Some(signal))) => Ending::Signal(signal),
            Ok((None, None)) => Ending::Unknown("neither code nor signal".to_owned()),
            Err(error) => Ending::Unknown(error.to_string()),
        }
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ending::Code(code) => write!(f, "code {code}"),
            // The standard library knows the names: `signal: 9 (SIGKILL)`.
            Ending::Signal(signal) => {
                f.write_str(&ExitStatus::from_raw(*signal).to_string().replacen("signal: ", "signal ", 1))
            }
            Ending::Unknown(why) => write!(f, "unknown how: {why}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_state_allows_what_makes_sense_in_it() {
        use Action::{Kill, Pause, Restart, Resume, Stop};
        for (state, allowed) in [
            (State::Running, &[Kill, Pause, Stop, Restart][..]),
            (State::Paused, &[Kill, Resume, Stop, Restart]),
            (State::Stopped, &[Restart]),
            (State::Exited, &[Restart]),
        ] {
            for action in Action::ALL {
                assert_eq!(state.allows(action), allowed.contains(&action), "{action} of a {state} node");
            }
        }
    }

    #[test]
    fn an_ending_names_its_code_or_its_signal() {
        assert_eq!(Ending::from(Ok(ExitStatus::from_raw(9))).to_string(), "signal 9 (SIGKILL)");
        assert_eq!(Ending::from(Ok(ExitStatus::from_raw(2 << 8))).to_string(), "code 2");
    }
}
