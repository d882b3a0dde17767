//! The line on stdout by which whoever started a process learns where it is.

use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr};

use anyhow::{Context, Result};
use serde::Serialize;

#[derive(Debug, Serialize)]
struct Announcement<'a> {
    listening: String,
    name: &'a str,
    port: u16,
    pid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    control: Option<String>,
}

/// Tells that the process listens, and where.
///
/// # Errors
/// None that can happen to names and numbers.
pub fn announce(name: &str, address: SocketAddr, control: Option<SocketAddr>) -> Result<()> {
    let announcement = Announcement {
        listening: uri(address),
        name,
        port: address.port(),
        pid: std::process::id(),
        control: control.map(uri),
    };
    let line = serde_json::to_string(&announcement).context("the announcement is not JSON")?;
    // Nobody has to listen: a closed stdout is no reason not to serve.
    let _ = writeln!(std::io::stdout(), "{line}");
    Ok(())
}

/// By which a process of this machine reaches the address.
fn uri(address: SocketAddr) -> String {
    let ip = if address.ip().is_unspecified() { Ipv4Addr::LOCALHOST.into() } else { address.ip() };
    format!("http://{}", SocketAddr::new(ip, address.port()))
}
