//! TCP to a dependency: looks its name up and connects, without leaving a lookup behind when it is dropped.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{LookupIpStrategy, ResolveHosts};
use tokio::net::TcpStream;
use url::Url;

use super::super::verdict::Failure;
use super::innermost;

/// A host and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct Target {
    /// Without the brackets of an IPv6 address.
    pub(super) host: String,
    pub(super) port: u16,
}

impl Target {
    /// Of a URL that may have a default port.
    pub(super) fn of(url: &Url, port: Option<u16>) -> Result<Target, String> {
        let host = url.host_str().unwrap_or_default();
        if host.is_empty() {
            return Err(format!("a {} URL needs a host", url.scheme()));
        }
        let port = url.port().or(port).ok_or_else(|| format!("a {} URL needs a port", url.scheme()))?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        Ok(Target { host, port })
    }

    /// Of a URL that has nothing but a host and a port.
    pub(super) fn alone(url: &Url) -> Result<Target, String> {
        let target = Target::of(url, None)?;
        let rest = !matches!(url.path(), "" | "/") || url.query().is_some() || url.fragment().is_some();
        if rest || !url.username().is_empty() || url.password().is_some() {
            return Err(format!("a {} URL has no user, path or query, only tcp://host:port", url.scheme()));
        }
        Ok(target)
    }

    pub(super) async fn dial(&self) -> Result<TcpStream, Failure> {
        let addresses: Vec<_> =
            lookup(&self.host).await?.into_iter().map(|ip| SocketAddr::new(ip, self.port)).collect();
        let stream = TcpStream::connect(&addresses[..]).await.map_err(|error| Failure::said(innermost(&error)))?;
        // Questions are small: waiting for more to send would only delay them.
        stream.set_nodelay(true).map_err(|error| Failure::said(error.to_string()))?;
        Ok(stream)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// The system's own lookup would block a thread for as long as it likes; this one ends when it is dropped.
pub(super) async fn lookup(host: &str) -> Result<Vec<IpAddr>, Failure> {
    if let Ok(address) = host.parse() {
        return Ok(vec![address]);
    }
    let unknown = |error: hickory_resolver::net::NetError| Failure::said(format!("{host} has no address: {error}"));
    // A new one each time: it reads the hosts file and resolv.conf when it is made, and both may change.
    let mut builder = TokioResolver::builder_tokio().map_err(unknown)?;
    let options = builder.options_mut();
    options.cache_size = 0;
    options.use_hosts_file = ResolveHosts::Always;
    options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
    let found = builder.build().map_err(unknown)?.lookup_ip(host).await.map_err(unknown)?;
    Ok(found.iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_open_port_is_reached_by_address_and_by_name_and_a_closed_one_refuses() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("bound").port();
        for host in ["127.0.0.1", "localhost"] {
            let target = Target { host: host.to_owned(), port };
            assert!(target.dial().await.is_ok(), "{host}");
        }
        drop(listener);
        let target = Target { host: "127.0.0.1".to_owned(), port };
        assert_eq!(target.dial().await.map(drop), Err(Failure::said("connection refused")));
    }
}
