//! An HTTP dependency: up while it answers 2xx. A node's `/ready` is one.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use url::Url;

use super::super::verdict::Failure;
use super::{dial, innermost};
use crate::tls::{unused, verifying};

/// An answer is read this far, so that its connection can be used again; of a longer one the status is enough.
const READ: usize = 64 * 1024;

/// Where to ask: up while one of the URLs is.
#[derive(Clone)]
pub(in super::super) struct Target {
    urls: Vec<Url>,
    ca: Option<PathBuf>,
}

impl Target {
    pub(super) fn new(urls: Vec<Url>, ca: Option<PathBuf>) -> Target {
        Target { urls, ca }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, url) in self.urls.iter().enumerate() {
            let comma = if place == 0 { "" } else { "," };
            let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
            write!(f, "{comma}{}://{}{port}{}", url.scheme(), url.host_str().unwrap_or_default(), url.path())?;
        }
        Ok(())
    }
}

#[derive(Clone)]
pub(in super::super) struct Http {
    urls: Vec<Url>,
    client: reqwest::Client,
}

impl Http {
    pub(super) fn new(target: Target) -> Result<Http, String> {
        let secure = target.urls.iter().any(|url| url.scheme() == "https");
        let tls = if secure { verifying(target.ca.as_deref()) } else { unused() };
        let tls = tls.map_err(|error| error.to_string())?;
        Ok(Http { urls: target.urls, client: client(tls, None)? })
    }

    pub(super) async fn get(&self) -> Result<(), Failure> {
        let mut last = Err(Failure::said("there is no URL to ask"));
        for url in &self.urls {
            last = self.get_one(url).await;
            if last.is_ok() {
                break;
            }
        }
        last
    }

    async fn get_one(&self, url: &Url) -> Result<(), Failure> {
        let failed = |error: reqwest::Error| Failure::said(innermost(&error.without_url()));
        let mut answer = self.client.get(url.clone()).send().await.map_err(failed)?;
        if !answer.status().is_success() {
            return Err(Failure::said(format!("status {}", answer.status().as_u16())));
        }
        let mut read = 0;
        while let Some(chunk) = answer.chunk().await.map_err(failed)? {
            read += chunk.len();
            if read > READ {
                break;
            }
        }
        Ok(())
    }
}

/// A client that goes straight to its target: no proxy, no redirect, a name looked up anew for each connection.
///
/// # Errors
/// One sentence, if there can be none.
pub(in super::super) fn client(tls: rustls::ClientConfig, limit: Option<Duration>) -> Result<reqwest::Client, String> {
    let builder = reqwest::Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .tls_backend_preconfigured(tls)
        .dns_resolver(Lookup)
        .user_agent(concat!("rest-cascade/", env!("CARGO_PKG_VERSION")));
    let builder = match limit {
        Some(limit) => builder.timeout(limit),
        None => builder,
    };
    builder.build().map_err(|error| format!("there can be no HTTP client: {error}"))
}

struct Lookup;

impl Resolve for Lookup {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let found = dial::lookup(name.as_str()).await?;
            let addresses: Addrs = Box::new(found.into_iter().map(|ip| SocketAddr::new(ip, 0)));
            Ok(addresses)
        })
    }
}
