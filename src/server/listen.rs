//! Opens the listening sockets: dual-stack, IPv4 where there is no IPv6, one for each worker.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs};

use socket2::{Domain, Protocol, Socket, Type};
use thiserror::Error;

use super::Settings;

/// Connections that may wait to be accepted.
pub(super) const BACKLOG: i32 = 1024;

#[derive(Debug, Error)]
pub enum BindError {
    #[error("{flag} {text}: not an address such as 127.0.0.1:8080, [::1]:8080 or localhost:8080: {error}")]
    Address { flag: &'static str, text: String, error: io::Error },
    #[error("cannot listen on port {} ({address}{place}): {error}", address.port())]
    Bind { address: SocketAddr, place: &'static str, error: io::Error },
}

/// The listening sockets of a node.
#[derive(Debug)]
pub struct Listeners {
    /// One for each worker, all on the same address.
    pub workers: Vec<TcpListener>,
    /// Where control has an address of its own.
    pub control: Option<TcpListener>,
}

/// Opens all listening sockets, or none.
///
/// # Errors
/// If an address makes no sense or is taken.
pub fn bind(settings: &Settings) -> Result<Listeners, BindError> {
    // Both are looked up before a port opens: nonsense in one is not to be seen from outside by the other.
    let control = settings.control_listen.as_deref().map(|text| looked_up("--control-listen", text)).transpose()?;
    let addresses = match &settings.listen {
        Some(text) => looked_up("--listen", text)?,
        None => vec![
            SocketAddr::from((Ipv6Addr::UNSPECIFIED, settings.port)),
            SocketAddr::from((Ipv4Addr::UNSPECIFIED, settings.port)),
        ],
    };
    let workers = first_of(addresses, "", settings.worker_count())?;
    let control = control.map(|addresses| first_of(addresses, " of --control-listen", 1)).transpose()?;
    Ok(Listeners { workers, control: control.and_then(|mut sockets| sockets.pop()) })
}

fn looked_up(flag: &'static str, text: &str) -> Result<Vec<SocketAddr>, BindError> {
    let wrong = |error| BindError::Address { flag, text: text.to_owned(), error };
    let addresses: Vec<SocketAddr> = text.to_socket_addrs().map_err(wrong)?.collect();
    if addresses.is_empty() { Err(wrong(io::ErrorKind::AddrNotAvailable.into())) } else { Ok(addresses) }
}

fn first_of(addresses: Vec<SocketAddr>, place: &'static str, workers: usize) -> Result<Vec<TcpListener>, BindError> {
    let mut addresses = addresses.into_iter().peekable();
    loop {
        let address = addresses.next().expect("looked_up gives at least one");
        match group(address, workers) {
            Ok(sockets) => return Ok(sockets),
            // Only the lack of the address family leads on to the next address; a taken port is an answer.
            Err(error) if error.kind() == io::ErrorKind::AddrInUse || addresses.peek().is_none() => {
                return Err(BindError::Bind { address, place, error });
            }
            Err(_) => {}
        }
    }
}

fn group(address: SocketAddr, workers: usize) -> io::Result<Vec<TcpListener>> {
    // The first socket is bound alone: with SO_REUSEPORT from the start, a second process of ours could take the
    // same port unnoticed. After that, the port is open to the sockets of the other workers.
    let first = socket(address)?;
    first.bind(&address.into())?;
    let bound = first.local_addr()?;
    let mut sockets = vec![first];
    if workers > 1 {
        sockets[0].set_reuse_port(true)?;
        for _ in 1..workers {
            let next = socket(address)?;
            next.set_reuse_port(true)?;
            next.bind(&bound)?;
            sockets.push(next);
        }
    }
    for socket in &sockets {
        socket.listen(BACKLOG)?;
    }
    Ok(sockets.into_iter().map(TcpListener::from).collect())
}

fn socket(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        // Both families on one socket, whatever the system's default.
        socket.set_only_v6(!address.ip().is_unspecified())?;
    }
    // A restarted node gets its port back while old connections are in TIME_WAIT.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
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

    fn settings(flags: &[&str]) -> Settings {
        Flags::parse_from(std::iter::once(&"x").chain(flags)).settings
    }

    #[test]
    fn workers_share_a_port_that_nobody_else_gets() {
        let ours = bind(&settings(&["--port", "0", "--workers", "3"])).expect("a free port").workers;
        let port = ours[0].local_addr().expect("bound").port();
        assert!(ours.iter().all(|socket| socket.local_addr().expect("bound").port() == port));
        for workers in ["1", "3"] {
            let error = bind(&settings(&["--port", &port.to_string(), "--workers", workers])).expect_err("taken");
            assert!(matches!(error, BindError::Bind { .. }), "{error}");
            assert!(error.to_string().contains(&port.to_string()), "{error}");
        }
    }

    #[test]
    fn an_address_that_makes_no_sense_is_named() {
        let error = bind(&settings(&["--listen", "nowhere"])).expect_err("refused");
        assert!(error.to_string().starts_with("--listen nowhere: not an address"), "{error}");
        let error = bind(&settings(&["--port", "0", "--control-listen", "nowhere"])).expect_err("refused");
        assert!(error.to_string().starts_with("--control-listen nowhere: not an address"), "{error}");
    }
}
