//! Where a load goes and what is sent there: parses a URL into the bytes of a request. Opens no connection.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http::{HeaderName, HeaderValue, header};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use thiserror::Error;
use url::{Host, Url};

/// Headers that say how a message is framed: another value than ours would be a lie.
const OURS: [HeaderName; 5] =
    [header::CONTENT_LENGTH, header::TRANSFER_ENCODING, header::CONNECTION, header::UPGRADE, header::EXPECT];

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "UPPER")]
pub enum Method {
    #[default]
    Get,
    Head,
}

/// The target of a load. Its `Display` leaves user and password out. Clones are the same target.
#[derive(Clone, Debug)]
pub struct Aim(Arc<Parts>);

struct Parts {
    url: Url,
    method: Method,
    authority: String,
    headers: Vec<(HeaderName, HeaderValue)>,
    addresses: Vec<SocketAddr>,
    /// The address that took the last connection.
    good: AtomicUsize,
    tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
}

#[derive(Debug, Error)]
pub enum AimError {
    #[error("scheme {0} is not supported, only http and https are; is http:// missing in front?")]
    Scheme(String),
    #[error("a #fragment is never sent to a server, remove it")]
    Fragment,
    #[error("it names no host")]
    NoHost,
    #[error("header {0} is set by the load itself, as it says how a request is framed")]
    Framing(HeaderName),
    #[error("dns: {host} has no address ({error})")]
    Dns { host: String, error: io::Error },
    #[error("tls: {0} cannot be the name in a certificate")]
    Name(String),
}

impl AimError {
    /// Another day it may be found.
    pub fn is_of_the_network(&self) -> bool {
        matches!(self, AimError::Dns { .. })
    }
}

impl Aim {
    /// Checks what was asked for, without looking the name up.
    ///
    /// # Errors
    /// If the URL is none of a server that this can talk to.
    pub fn check(url: &Url) -> Result<(), AimError> {
        match url.scheme() {
            "http" | "https" => {}
            other => return Err(AimError::Scheme(other.to_owned())),
        }
        if url.fragment().is_some() {
            return Err(AimError::Fragment);
        }
        url.host().map(|_| ()).ok_or(AimError::NoHost)
    }

    /// # Errors
    /// If the header is not the caller's to set.
    pub fn check_header(name: &HeaderName) -> Result<(), AimError> {
        if OURS.contains(name) { Err(AimError::Framing(name.clone())) } else { Ok(()) }
    }

    /// Looks the name up, once for the whole load. `tls` is used where the URL asks for it.
    ///
    /// # Errors
    /// If the URL is none that can be used, a header is not the caller's to set, or the name has no address.
    pub async fn find(
        url: &Url,
        method: Method,
        headers: &[(HeaderName, HeaderValue)],
        tls: Option<Arc<ClientConfig>>,
    ) -> Result<Aim, AimError> {
        Aim::check(url)?;
        headers.iter().try_for_each(|(name, _)| Aim::check_header(name))?;
        let port = url.port_or_known_default().unwrap_or(80);
        let addresses = match url.host() {
            Some(Host::Ipv4(address)) => vec![SocketAddr::from((address, port))],
            Some(Host::Ipv6(address)) => vec![SocketAddr::from((address, port))],
            Some(Host::Domain(name)) => {
                let failed = |error| AimError::Dns { host: name.to_owned(), error };
                let found: Vec<SocketAddr> = tokio::net::lookup_host((name, port)).await.map_err(failed)?.collect();
                if found.is_empty() {
                    return Err(failed(io::ErrorKind::NotFound.into()));
                }
                found
            }
            None => return Err(AimError::NoHost),
        };
        let tls = match tls.filter(|_| url.scheme() == "https") {
            Some(config) => {
                let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']).to_owned();
                let name = ServerName::try_from(host.clone()).map_err(|_| AimError::Name(host))?;
                Some((config, name))
            }
            None => None,
        };
        let host = url.host_str().unwrap_or_default();
        let authority = url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"));
        let headers = headers.to_vec();
        let good = AtomicUsize::new(0);
        Ok(Aim(Arc::new(Parts { url: url.clone(), method, authority, headers, addresses, good, tls })))
    }

    /// A request as it is sent.
    pub(super) fn request(&self, keep_alive: bool) -> Vec<u8> {
        let Parts { url, method, authority, headers, .. } = &*self.0;
        let given = |name: HeaderName| headers.iter().any(|(own, _)| *own == name);
        let method = if *method == Method::Head { "HEAD" } else { "GET" };
        let connection = if keep_alive { "keep-alive" } else { "close" };
        let mut request = format!("{method} {} HTTP/1.1\r\nconnection: {connection}\r\n", self.path()).into_bytes();
        let mut line = |name: &str, value: &[u8]| {
            for part in [name.as_bytes(), b": ", value, b"\r\n"] {
                request.extend_from_slice(part);
            }
        };
        if !given(header::HOST) {
            line("host", authority.as_bytes());
        }
        if !given(header::USER_AGENT) {
            line("user-agent", concat!("rest-cascade/", env!("CARGO_PKG_VERSION")).as_bytes());
        }
        if !given(header::ACCEPT) {
            line("accept", b"*/*");
        }
        if let Some(value) = authorization(url).filter(|_| !given(header::AUTHORIZATION)) {
            line("authorization", value.as_bytes());
        }
        headers.iter().for_each(|(name, value)| line(name.as_str(), value.as_bytes()));
        request.extend_from_slice(b"\r\n");
        request
    }

    pub(super) fn is_head(&self) -> bool {
        self.0.method == Method::Head
    }

    /// The addresses in the order in which they are tried: first the one that was good last.
    pub(super) fn addresses(&self) -> impl Iterator<Item = (usize, SocketAddr)> {
        let (addresses, first) = (&self.0.addresses, self.0.good.load(Relaxed));
        (0..addresses.len()).map(move |place| (first + place) % addresses.len()).map(|place| (place, addresses[place]))
    }

    pub(super) fn was_good(&self, place: usize) {
        if self.0.good.load(Relaxed) != place {
            self.0.good.store(place, Relaxed);
        }
    }

    pub(super) fn tls(&self) -> Option<(Arc<ClientConfig>, ServerName<'static>)> {
        self.0.tls.clone()
    }

    pub fn host(&self) -> &str {
        self.0.url.host_str().unwrap_or_default()
    }

    pub fn port(&self) -> u16 {
        self.0.url.port_or_known_default().unwrap_or(80)
    }

    /// Path and query.
    pub fn path(&self) -> String {
        let url = &self.0.url;
        url.query().map_or_else(|| url.path().to_owned(), |query| format!("{}?{query}", url.path()))
    }
}

impl fmt::Display for Aim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}{}", self.0.url.scheme(), self.0.authority, self.path())
    }
}

impl fmt::Debug for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Headers may hold secrets, and so may the URL.
        f.debug_struct("Parts").field("authority", &self.authority).field("addresses", &self.addresses).finish()
    }
}

fn authorization(url: &Url) -> Option<String> {
    if url.username().is_empty() && url.password().is_none() {
        return None;
    }
    let decoded = |text: &str| percent_encoding::percent_decode_str(text).collect::<Vec<u8>>();
    let pair = [decoded(url.username()), vec![b':'], decoded(url.password().unwrap_or_default())].concat();
    Some(format!("Basic {}", BASE64_STANDARD.encode(pair)))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn aim(url: &str, headers: &[(&str, &str)]) -> Result<Aim, AimError> {
        let headers: Vec<_> = headers
            .iter()
            .map(|(name, value)| (name.parse().expect("a name"), value.parse().expect("a value")))
            .collect();
        Aim::find(&url.parse().expect("a URL"), Method::Get, &headers, None).await
    }

    async fn request(url: &str, headers: &[(&str, &str)]) -> String {
        String::from_utf8(aim(url, headers).await.expect(url).request(true)).expect("ASCII")
    }

    #[tokio::test]
    async fn a_request_is_plain_http_with_the_path_as_it_is() {
        let text = request("http://127.0.0.1:81/a?b=c%20d", &[]).await;
        assert!(
            text.starts_with("GET /a?b=c%20d HTTP/1.1\r\nconnection: keep-alive\r\nhost: 127.0.0.1:81\r\n"),
            "{text}"
        );
        assert!(text.ends_with("\r\n\r\n"), "{text}");
    }

    #[tokio::test]
    async fn user_and_password_are_sent_and_not_shown() {
        let aim = aim("http://u:p%40w@127.0.0.1/x", &[]).await.expect("an aim");
        let sent = String::from_utf8(aim.request(false)).expect("ASCII");
        assert!(sent.contains(&format!("authorization: Basic {}\r\n", BASE64_STANDARD.encode("u:p@w"))), "{sent}");
        assert_eq!(aim.to_string(), "http://127.0.0.1/x");
        assert!(!format!("{aim:?}").contains("p%40w"), "{aim:?}");
    }

    #[tokio::test]
    async fn a_header_replaces_ours_and_is_sent_once() {
        let text = request("http://127.0.0.1/", &[("Host", "a.example"), ("X-A", "1"), ("x-a", "2")]).await;
        assert_eq!(text.matches("host: ").count(), 1, "{text}");
        assert!(text.contains("host: a.example\r\n") && text.contains("x-a: 1\r\nx-a: 2\r\n"), "{text}");
    }

    #[tokio::test]
    async fn what_cannot_be_a_target_is_refused() {
        for (url, part) in
            [("ftp://h/", "scheme ftp"), ("localhost:80", "http:// missing"), ("http://h/#x", "#fragment")]
        {
            let error = aim(url, &[]).await.expect_err(url).to_string();
            assert!(error.contains(part), "{url}: {error}");
        }
        let error = aim("http://127.0.0.1/", &[("connection", "close")]).await.expect_err("ours").to_string();
        assert!(error.contains("connection"), "{error}");
    }
}
