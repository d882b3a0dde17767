//! Where the next node is: parses target URIs, and keeps what is secret in them out of sight.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http::HeaderValue;
use http::uri::{InvalidUri, PathAndQuery};
use serde::Serialize;
use thiserror::Error;
use url::{Host, Url};

/// The next node's replicas, from a list such as `http://a:8080,http://b:8080`; none at the end of a cascade.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Targets(pub Vec<Target>);

/// One target URI. Its `Display` leaves user and password out.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    pub secure: bool,
    pub host: TargetHost,
    pub port: u16,
    /// Path and query as the URI has them, at least `/`.
    pub path_and_query: PathAndQuery,
    /// Value of the Host header.
    pub authority: HeaderValue,
    /// From user and password in the URI.
    pub authorization: Option<HeaderValue>,
    shown: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetHost {
    Address(IpAddr),
    Name(String),
}

#[derive(Debug, Error)]
pub enum TargetError {
    #[error("not a URL such as http://service-2:8080 ({0})")]
    Url(#[from] url::ParseError),
    #[error("scheme {0} is not supported, only http and https are; is http:// missing in front?")]
    Scheme(String),
    #[error("a #fragment is never sent to a server, remove it")]
    Fragment,
    #[error("its path cannot be sent: {0}")]
    Path(InvalidUri),
    #[error("more than {MAX_TARGETS} targets in one list")]
    Many,
}

/// The longest list of replicas.
const MAX_TARGETS: usize = 64;

impl FromStr for Targets {
    type Err = TargetError;

    fn from_str(list: &str) -> Result<Targets, TargetError> {
        let targets: Vec<Target> =
            list.split(',').map(str::trim).filter(|uri| !uri.is_empty()).map(str::parse).collect::<Result<_, _>>()?;
        if targets.len() > MAX_TARGETS {
            return Err(TargetError::Many);
        }
        Ok(Targets(targets))
    }
}

impl Targets {
    /// Where each of them says whether it is ready, if it is a node.
    pub fn ready(&self) -> Vec<Url> {
        let urls = self.0.iter().filter_map(|target| {
            let scheme = if target.secure { "https" } else { "http" };
            Url::parse(&format!("{scheme}://{}/ready", target.authority.to_str().ok()?)).ok()
        });
        urls.collect()
    }
}

impl FromStr for Target {
    type Err = TargetError;

    fn from_str(uri: &str) -> Result<Target, TargetError> {
        let url = Url::parse(uri)?;
        let secure = match url.scheme() {
            "http" => false,
            "https" => true,
            other => return Err(TargetError::Scheme(other.to_owned())),
        };
        if url.fragment().is_some() {
            return Err(TargetError::Fragment);
        }
        let host = match url.host() {
            Some(Host::Ipv4(address)) => TargetHost::Address(address.into()),
            Some(Host::Ipv6(address)) => TargetHost::Address(address.into()),
            Some(Host::Domain(name)) => TargetHost::Name(name.to_owned()),
            None => return Err(url::ParseError::EmptyHost.into()),
        };
        let authority = match url.port() {
            Some(port) => format!("{}:{port}", url.host_str().unwrap_or_default()),
            None => url.host_str().unwrap_or_default().to_owned(),
        };
        let scheme = url.scheme();
        let shown = match url.path() {
            // As people write it: without the slash that every URL has.
            "/" if url.query().is_none() => format!("{scheme}://{authority}"),
            path => format!("{scheme}://{authority}{path}"),
        };
        Ok(Target {
            secure,
            host,
            port: url.port_or_known_default().unwrap_or(80),
            path_and_query: own_path(&url)?,
            authority: HeaderValue::from_str(&authority).map_err(|_| url::ParseError::InvalidDomainCharacter)?,
            authorization: authorization(&url),
            shown,
        })
    }
}

fn own_path(url: &Url) -> Result<PathAndQuery, TargetError> {
    let text = match url.query().filter(|query| !query.is_empty()) {
        Some(query) => format!("{}?{query}", url.path()),
        None => url.path().to_owned(),
    };
    PathAndQuery::try_from(text).map_err(TargetError::Path)
}

fn authorization(url: &Url) -> Option<HeaderValue> {
    if url.username().is_empty() && url.password().is_none() {
        return None;
    }
    let decoded = |text: &str| percent_encoding::percent_decode_str(text).collect::<Vec<u8>>();
    let mut pair = decoded(url.username());
    pair.push(b':');
    pair.extend(decoded(url.password().unwrap_or_default()));
    let mut value = HeaderValue::from_str(&format!("Basic {}", BASE64_STANDARD.encode(pair))).ok()?;
    value.set_sensitive(true);
    Some(value)
}

impl Target {
    /// Path and query of a call: the target's own path, its own query, then the caller's.
    ///
    /// # Errors
    /// If both together are too long for a URI (65,534 bytes).
    pub fn path_and_query(&self, query: Option<&str>) -> Result<PathAndQuery, InvalidUri> {
        let own = &self.path_and_query;
        match query.filter(|query| !query.is_empty()) {
            None => Ok(own.clone()),
            Some(query) => {
                let joint = if own.query().is_some() { '&' } else { '?' };
                PathAndQuery::try_from(format!("{own}{joint}{query}"))
            }
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl fmt::Display for Targets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown: Vec<String> = self.0.iter().map(Target::to_string).collect();
        f.write_str(&shown.join(","))
    }
}

impl Serialize for Targets {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(uri: &str) -> Target {
        uri.parse().expect(uri)
    }

    #[test]
    fn the_path_is_the_targets_own() {
        for (uri, path) in [("http://u", "/"), ("http://u/", "/"), ("http://u/a", "/a"), ("http://u/a/", "/a/")] {
            assert_eq!(target(uri).path_and_query(None).expect("short"), path);
        }
    }

    #[test]
    fn the_callers_query_follows_the_targets_own() {
        assert_eq!(target("http://u").path_and_query(Some("a=1%2F2&b=")).expect("short"), "/?a=1%2F2&b=");
        assert_eq!(target("http://u/x?k=v").path_and_query(Some("a=1")).expect("short"), "/x?k=v&a=1");
        assert_eq!(target("http://u/x?k=v").path_and_query(Some("")).expect("short"), "/x?k=v");
    }

    #[test]
    fn an_empty_list_is_the_end_of_the_cascade() {
        for list in ["", " ", ",", " , "] {
            assert_eq!(list.parse::<Targets>().expect(list), Targets::default());
        }
        assert_eq!("http://a:1, http://b:2,".parse::<Targets>().expect("two").0.len(), 2);
    }

    #[test]
    fn a_target_is_ready_at_its_root_and_without_its_secrets() {
        let targets: Targets = "http://u:p@a:81/x?k=v,https://b".parse().expect("two");
        let ready: Vec<String> = targets.ready().into_iter().map(String::from).collect();
        assert_eq!(ready, ["http://a:81/ready", "https://b/ready"]);
    }

    #[test]
    fn what_is_no_target_is_refused() {
        for (uri, part) in [
            ("http://a b", "not a URL"),
            ("service-2:8080", "scheme service-2"),
            ("/relative", "not a URL"),
            ("ftp://u", "scheme ftp"),
            ("http://", "not a URL"),
            ("http://u:70000", "not a URL"),
            ("http://u/#x", "#fragment"),
        ] {
            let error = uri.parse::<Targets>().expect_err(uri).to_string();
            assert!(error.contains(part), "{uri}: {error}");
        }
    }

    #[test]
    fn user_and_password_are_used_and_never_shown() {
        let target = target("http://us%65r:p%40w@u:81/a");
        let header = target.authorization.clone().expect("from the URI");
        assert_eq!(header, format!("Basic {}", BASE64_STANDARD.encode("user:p@w")));
        assert_eq!(target.to_string(), "http://u:81/a");
        assert!(!format!("{target:?}").contains(&BASE64_STANDARD.encode("user:p@w")));
    }

    #[test]
    fn an_ipv6_target_keeps_its_brackets_where_they_belong() {
        let target = target("http://[::1]:8080/");
        assert_eq!(target.host, TargetHost::Address("::1".parse().expect("an address")));
        assert_eq!(target.authority, "[::1]:8080");
    }
}
