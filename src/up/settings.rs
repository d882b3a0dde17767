//! What `up` can be told.

use std::str::FromStr;

use clap::Args;

use crate::units::{Span, count, span};

/// Where the control API listens unless told otherwise.
const CONTROL_PORT: u16 = 8090;

/// Flags of `serve` that make a node the one that it is.
const OWN_FLAGS: [&str; 6] = ["--target", "--port", "--name", "--listen", "--control-listen", "--parent"];

#[derive(Args, Clone, Debug)]
pub struct Settings {
    /// Nodes to start, from 1 to 64
    #[arg(default_value_t = 5, value_name = "N", value_parser = count(1, 64))]
    pub nodes: usize,
    /// Port of the first node, the others follow; 0 takes a free one for each
    #[arg(long, default_value_t = 8080, value_name = "PORT")]
    pub base_port: u16,
    /// Address of the control API, or off; else 127.0.0.1:8090, or the port after the nodes' where 8090 is one of them
    #[arg(long, value_name = "ADDR:PORT")]
    pub control: Option<Control>,
    /// After Ctrl-C, SIGTERM or SIGHUP, nodes that have not stopped in order after this long are killed
    #[arg(long, default_value_t = Span::secs(10), value_name = "DURATION", value_parser = span(Span::secs(0), Span::secs(3600)))]
    pub stop_timeout: Span,
    /// Show what nodes log from info on; else only warnings and errors. -- --log-level sets it exactly
    #[arg(long)]
    pub verbose: bool,
    /// Flags of serve that every node gets, such as -- --timeout 2s
    #[arg(last = true, value_name = "FLAGS")]
    pub node_flags: Vec<String>,
}

/// Where the control API listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Control {
    Off,
    At { host: String, port: u16 },
}

impl FromStr for Control {
    type Err = String;

    fn from_str(text: &str) -> Result<Control, String> {
        if text.is_empty() || text == "off" {
            return Ok(Control::Off);
        }
        text.rsplit_once(':')
            .filter(|(host, _)| !host.is_empty())
            .and_then(|(host, port)| Some(Control::At { host: host.to_owned(), port: port.parse().ok()? }))
            .ok_or_else(|| "must be ADDR:PORT such as 127.0.0.1:8090, or off".to_owned())
    }
}

impl std::fmt::Display for Control {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Control::Off => f.write_str("off"),
            Control::At { host, port } => write!(f, "{host}:{port}"),
        }
    }
}

impl Settings {
    /// Where the control API is to listen, once it is clear that all settings go together.
    ///
    /// # Errors
    /// One sentence that names the value which does not, and its limit.
    pub(super) fn checked_control(&self) -> Result<Control, String> {
        for flag in &self.node_flags {
            let name = flag.split('=').next().unwrap_or_default();
            if OWN_FLAGS.contains(&name) {
                return Err(format!("{name} cannot be set for all nodes: up gives each node its own"));
            }
        }
        let ports = self.ports()?;
        let taken = |port: u16| ports.is_some_and(|(first, last)| (first..=last).contains(&port));
        match (&self.control, ports) {
            (Some(Control::At { port, .. }), Some((first, last))) if taken(*port) => Err(format!(
                "--control {}: port {port} is one of the nodes', {first} to {last}",
                self.control.as_ref().unwrap_or(&Control::Off)
            )),
            (Some(control), _) => Ok(control.clone()),
            (None, Some((_, last))) if taken(CONTROL_PORT) => Ok(Control::local(last + 1)),
            (None, _) => Ok(Control::local(CONTROL_PORT)),
        }
    }

    /// The first and the last node's port; `None` where each takes a free one.
    fn ports(&self) -> Result<Option<(u16, u16)>, String> {
        if self.base_port == 0 {
            return Ok(None);
        }
        let last = usize::from(self.base_port) + self.nodes - 1;
        match u16::try_from(last) {
            Ok(last) => Ok(Some((self.base_port, last))),
            Err(_) => Err(format!(
                "--base-port {}: the last of {} nodes would have port {last}, and 65535 is the highest",
                self.base_port, self.nodes
            )),
        }
    }
}

impl Control {
    fn local(port: u16) -> Control {
        Control::At { host: "127.0.0.1".to_owned(), port }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        settings: Settings,
    }

    fn control(flags: &str) -> Result<String, String> {
        let flags = std::iter::once("up").chain(flags.split_whitespace());
        Flags::parse_from(flags).settings.checked_control().map(|control| control.to_string())
    }

    #[test]
    fn the_control_port_keeps_out_of_the_nodes_way() {
        for (flags, at) in [
            ("", "127.0.0.1:8090"),
            ("10", "127.0.0.1:8090"),
            ("11", "127.0.0.1:8091"),
            ("64", "127.0.0.1:8144"),
            ("--base-port 0 64", "127.0.0.1:8090"),
            ("--base-port 65535 1", "127.0.0.1:8090"),
            ("--control off", "off"),
            ("--control=", "off"),
            ("--control [::1]:0", "[::1]:0"),
        ] {
            assert_eq!(control(flags).as_deref(), Ok(at), "up {flags}");
        }
    }

    #[test]
    fn settings_that_do_not_go_together_are_refused_with_value_and_limit() {
        for (flags, parts) in [
            ("--control 127.0.0.1:8084", ["8084", "8080 to 8084"]),
            ("--base-port 65532", ["65532", "65535"]),
            ("-- --port 1", ["--port", "each node its own"]),
            ("-- --timeout 1s --target=http://u", ["--target", "each node its own"]),
        ] {
            let error = control(flags).expect_err(flags);
            assert!(parts.iter().all(|part| error.contains(part)), "up {flags}: {error}");
        }
    }

    #[test]
    fn a_control_address_has_host_and_port() {
        for text in ["8090", ":8090", "localhost", "localhost:", "localhost:70000", "Off"] {
            assert!(text.parse::<Control>().is_err(), "{text}");
        }
    }
}
