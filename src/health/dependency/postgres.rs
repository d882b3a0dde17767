//! A PostgreSQL dependency: up while it answers SELECT 1.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio_postgres::config::SslMode;
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{CancelToken, Client, Config, Error, NoTls};
use tokio_postgres_rustls::MakeRustlsConnect;
use tokio_util::task::AbortOnDropHandle;
use url::Url;

use super::super::verdict::Failure;
use super::{dial, innermost, tls};
use crate::tls::verifying;

/// SQLSTATE class of a refused user or password.
const INVALID_AUTHORIZATION: &str = "28";

/// How long a cancellation may take.
const CANCEL: Duration = Duration::from_secs(1);

type RustlsConnect = <MakeRustlsConnect as MakeTlsConnect<TcpStream>>::TlsConnect;

/// Where it is, who asks, and whether the way is encrypted.
#[derive(Clone)]
pub(in super::super) struct Target {
    at: dial::Target,
    config: Config,
    tls: Tls,
    shown: String,
}

/// `sslmode`, with the meaning that PostgreSQL's own clients give it.
#[derive(Clone)]
enum Tls {
    Disable,
    /// If the server has it.
    Prefer,
    /// Whoever the server is.
    Require,
    /// And its certificate is for this host and of an authority that is trusted: `sslrootcert`, or the system's.
    VerifyFull(Option<PathBuf>),
}

impl Target {
    pub(super) fn new(url: &Url) -> Result<Target, String> {
        let at = dial::Target::of(url, Some(5432))?;
        let (mut tls, mut ca) = (Tls::Prefer, None);
        let mut plain = url.clone();
        plain.query_pairs_mut().clear();
        for (key, value) in url.query_pairs() {
            match (&*key, &*value) {
                ("sslmode", "disable") => tls = Tls::Disable,
                ("sslmode", "prefer") => tls = Tls::Prefer,
                ("sslmode", "require") => tls = Tls::Require,
                ("sslmode", "verify-full") => tls = Tls::VerifyFull(None),
                ("sslmode", other) => {
                    return Err(format!("sslmode={other}: must be disable, prefer, require or verify-full"));
                }
                ("sslrootcert", file) => ca = Some(PathBuf::from(file)),
                ("host" | "hostaddr" | "port", _) => {
                    return Err(format!("{key}= is not supported: the URL names one host and its port"));
                }
                (key, value) => drop(plain.query_pairs_mut().append_pair(key, value)),
            }
        }
        tls = match (tls, ca) {
            (Tls::VerifyFull(_), ca) => Tls::VerifyFull(ca),
            (tls, None) => tls,
            (_, Some(_)) => return Err("sslrootcert needs sslmode=verify-full".to_owned()),
        };
        if plain.query() == Some("") {
            plain.set_query(None);
        }
        let mut config: Config = plain.as_str().parse().map_err(|error: Error| innermost(&error))?;
        config.ssl_mode(match tls {
            Tls::Disable => SslMode::Disable,
            Tls::Prefer => SslMode::Prefer,
            Tls::Require | Tls::VerifyFull(_) => SslMode::Require,
        });
        if config.get_user().is_none() {
            config.user("postgres");
        }
        if config.get_application_name().is_none() {
            config.application_name("rest-cascade");
        }
        let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
        let shown = format!("postgres://{}{port}{}", url.host_str().unwrap_or_default(), url.path());
        Ok(Target { at, config, tls, shown })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

#[derive(Clone)]
pub(in super::super) struct Postgres {
    at: dial::Target,
    config: Config,
    tls: Option<MakeRustlsConnect>,
}

impl Postgres {
    pub(super) fn new(target: &Target) -> Result<Postgres, String> {
        let tls = match &target.tls {
            Tls::Disable => None,
            Tls::Prefer | Tls::Require => Some(tls::unverified().map_err(|error| error.to_string())?),
            Tls::VerifyFull(ca) => Some(verifying(ca.as_deref()).map_err(|error| error.to_string())?),
        };
        let Target { at, config, .. } = target.clone();
        Ok(Postgres { at, config, tls: tls.map(MakeRustlsConnect::new) })
    }

    pub(super) async fn open(self: Arc<Postgres>) -> Result<Connection, Failure> {
        let stream = self.at.dial().await?;
        let (client, driver) = match self.tls()? {
            None => {
                let (client, driver) = self.config.connect_raw(stream, NoTls).await.map_err(|error| said(&error))?;
                (client, tokio::spawn(run(driver)))
            }
            Some(tls) => {
                let (client, driver) = self.config.connect_raw(stream, tls).await.map_err(|error| said(&error))?;
                (client, tokio::spawn(run(driver)))
            }
        };
        Ok(Connection { client, _driver: AbortOnDropHandle::new(driver), server: self })
    }

    fn tls(&self) -> Result<Option<RustlsConnect>, Failure> {
        let Some(mut tls) = self.tls.clone() else { return Ok(None) };
        let made = MakeTlsConnect::<TcpStream>::make_tls_connect(&mut tls, &self.at.host);
        made.map(Some).map_err(|error| Failure::said(error.to_string()))
    }

    /// Tells the server, over a connection of its own, that nobody waits for the query any more.
    async fn cancel(self: Arc<Postgres>, token: CancelToken) -> Result<(), Failure> {
        let stream = self.at.dial().await?;
        let cancelled = match self.tls()? {
            None => token.cancel_query_raw(stream, NoTls).await,
            Some(tls) => token.cancel_query_raw(stream, tls).await,
        };
        cancelled.map_err(|error| said(&error))
    }
}

/// Moves the bytes until either side closes. Whoever waits for an answer gets the error; here it is nobody's.
async fn run(driver: impl Future<Output = Result<(), Error>>) {
    let _ = driver.await;
}

pub(in super::super) struct Connection {
    client: Client,
    /// Aborted on drop: else a server that does not answer would keep it, and the connection, for ever.
    _driver: AbortOnDropHandle<()>,
    server: Arc<Postgres>,
}

impl Connection {
    pub(super) async fn ask(&mut self) -> Result<(), Failure> {
        self.client.simple_query("SELECT 1").await.map(drop).map_err(|error| said(&error))
    }

    pub(super) async fn work(&mut self, time: Duration) -> Result<(), Failure> {
        let sleep = format!("SELECT pg_sleep({})", time.as_secs_f64());
        let mut abandoned = Abandoned(Some((Arc::clone(&self.server), self.client.cancel_token())));
        let result = self.client.simple_query(&sleep).await;
        abandoned.0 = None;
        result.map(drop).map_err(|error| said(&error))
    }
}

/// A query that runs. The server does not see its client go, so it is told.
struct Abandoned(Option<(Arc<Postgres>, CancelToken)>);

impl Drop for Abandoned {
    fn drop(&mut self) {
        if let Some((server, token)) = self.0.take() {
            // If the server cannot be reached either, there is nobody left to tell.
            tokio::spawn(tokio::time::timeout(CANCEL, server.cancel(token)));
        }
    }
}

fn said(error: &Error) -> Failure {
    match error.as_db_error() {
        // The server's text would name the user.
        Some(db) if db.code().code().starts_with(INVALID_AUTHORIZATION) => {
            Failure::said(format!("authentication failed ({})", db.code().code()))
        }
        Some(db) => Failure::said(format!("{} ({})", db.message(), db.code().code())),
        None => Failure::said(innermost(error)),
    }
}
