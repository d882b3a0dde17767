//! What a node depends on: `NAME=URL[;optional]`, and a way to ask each kind of it. Decides nothing about when.

mod dial;
mod http;
mod postgres;
mod redis;
mod sim;
mod tls;

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use thiserror::Error;
use url::Url;

pub(super) use self::http::client;
pub use self::sim::Mode;
pub(super) use self::sim::Sim;

use super::verdict::Failure;
use crate::secret::redacted;

/// One dependency as configured. What it shows of itself has no secret in it.
#[derive(Clone)]
pub struct Spec {
    pub name: String,
    pub critical: bool,
    pub(super) kind: Kind,
}

/// What is asked, and where.
#[derive(Clone)]
pub(super) enum Kind {
    /// A database that does what it is told.
    Sim(Mode),
    Postgres(Box<postgres::Target>),
    Redis(redis::Target),
    Http(http::Target),
    Tcp(dial::Target),
}

/// Why a dependency cannot be watched as configured.
#[derive(Debug, Error)]
pub enum SpecError {
    #[error("must be NAME=URL, such as db=postgres://user@host/name or cache=redis://host;optional")]
    Form,
    #[error("the name {0:?} must be of 1 to 32 letters, digits and hyphens")]
    Name(String),
    #[error("after ';' only optional may follow, not {0:?}")]
    Suffix(String),
    #[error("not a URL: {0}")]
    Url(#[from] url::ParseError),
    #[error("scheme {0:?} is not supported: sim, postgres, redis, http, https and tcp are")]
    Scheme(String),
    #[error("{0}")]
    Part(String),
}

impl FromStr for Spec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Spec, SpecError> {
        let (name, rest) = text.split_once('=').ok_or(SpecError::Form)?;
        let fits = (1..=32).contains(&name.len());
        if !fits || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
            return Err(SpecError::Name(name.to_owned()));
        }
        let (url, critical) = match rest.split_once(';') {
            None => (rest, true),
            Some((url, "optional")) => (url, false),
            Some((_, suffix)) => return Err(SpecError::Suffix(suffix.to_owned())),
        };
        Ok(Spec { name: name.to_owned(), critical, kind: url.parse()? })
    }
}

impl FromStr for Kind {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Kind, SpecError> {
        if let Some(mode) = text.strip_prefix("sim:") {
            return mode.parse().map(Kind::Sim).map_err(SpecError::Part);
        }
        let url = Url::parse(text)?;
        match url.scheme() {
            "postgres" | "postgresql" => postgres::Target::new(&url).map(|target| Kind::Postgres(Box::new(target))),
            "redis" => redis::Target::new(&url).map(Kind::Redis),
            "http" | "https" => Ok(Kind::Http(http::Target::new(vec![url], None))),
            "tcp" => dial::Target::alone(&url).map(Kind::Tcp),
            other => return Err(SpecError::Scheme(other.to_owned())),
        }
        .map_err(SpecError::Part)
    }
}

impl Spec {
    /// The next node: up while one of its replicas' `urls` answers 2xx. `ca`: the authorities to trust, instead of
    /// the system's.
    pub fn downstream(urls: Vec<Url>, ca: Option<PathBuf>) -> Spec {
        let kind = Kind::Http(http::Target::new(urls, ca));
        Spec { name: super::DOWNSTREAM.to_owned(), critical: true, kind }
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.name, self.kind)?;
        f.write_str(if self.critical { "" } else { ";optional" })
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Sim(mode) => write!(f, "sim:{mode}"),
            Kind::Postgres(target) => target.fmt(f),
            Kind::Redis(target) => target.fmt(f),
            Kind::Http(target) => target.fmt(f),
            Kind::Tcp(target) => write!(f, "tcp://{target}"),
        }
    }
}

impl fmt::Debug for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Spec {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A dependency that can be asked; clones ask the same one, each with connections of its own.
#[derive(Clone)]
pub(super) enum Backend {
    Sim(Sim),
    Postgres(Arc<postgres::Postgres>),
    Redis(redis::Target),
    Http(http::Http),
    Tcp(dial::Target),
}

impl Backend {
    /// Does all that can fail because of the configuration alone; connects to nothing.
    ///
    /// # Errors
    /// One sentence, if TLS cannot be set up as asked for.
    pub(super) fn new(kind: &Kind) -> Result<Backend, String> {
        Ok(match kind {
            Kind::Sim(mode) => Backend::Sim(Sim::new(*mode)),
            Kind::Postgres(target) => Backend::Postgres(Arc::new(postgres::Postgres::new(target)?)),
            Kind::Redis(target) => Backend::Redis(target.clone()),
            Kind::Http(target) => Backend::Http(http::Http::new(target.clone())?),
            Kind::Tcp(target) => Backend::Tcp(target.clone()),
        })
    }

    pub(super) async fn open(&self) -> Result<Connection, Failure> {
        Ok(match self {
            Backend::Sim(sim) => Connection::Sim(sim.clone()),
            Backend::Postgres(postgres) => Connection::Postgres(Arc::clone(postgres).open().await?),
            Backend::Redis(target) => Connection::Redis(target.open().await?),
            Backend::Http(http) => Connection::Http(http.clone()),
            Backend::Tcp(target) => Connection::Tcp(target.dial().await?),
        })
    }
}

/// An open way to a dependency. Closes when it drops.
pub(super) enum Connection {
    Sim(Sim),
    Postgres(postgres::Connection),
    Redis(redis::Connection),
    Http(http::Http),
    Tcp(#[expect(dead_code, reason = "held so that it stays open")] tokio::net::TcpStream),
}

impl Connection {
    /// The smallest real question. Whoever asks sets the time-out.
    pub(super) async fn ask(&mut self) -> Result<(), Failure> {
        match self {
            Connection::Sim(sim) => sim.query().await,
            Connection::Postgres(connection) => connection.ask().await,
            Connection::Redis(connection) => connection.ping().await,
            Connection::Http(http) => http.get().await,
            // That it could be opened is all there is to know.
            Connection::Tcp(_) => Ok(()),
        }
    }

    /// A question that keeps the connection busy for `time`.
    pub(super) async fn work(&mut self, time: Duration) -> Result<(), Failure> {
        if let Connection::Postgres(connection) = self {
            return connection.work(time).await;
        }
        self.ask().await?;
        tokio::time::sleep(time).await;
        Ok(())
    }

    /// Whether a second question over it says as much as the first.
    pub(super) fn lasts(&self) -> bool {
        matches!(self, Connection::Postgres(_) | Connection::Redis(_))
    }
}

/// The innermost reason, which says what happened; the outer ones say during what.
fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    let mut last = error;
    while let Some(source) = last.source() {
        last = source;
    }
    match last.downcast_ref::<io::Error>() {
        Some(error) if error.kind() == io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        // The libraries keep their secrets, but the texts of servers and of URL parsers are strangers'.
        _ => redacted(&last.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spec_reads_what_it_shows() {
        for text in [
            "db=sim:up",
            "db=sim:down;optional",
            "db=sim:slow?ms=300",
            "cache=redis://host:6380/2;optional",
            "up-stream=http://a:8080/ready",
            "mq=tcp://host:5672",
            "v6=tcp://[::1]:5672",
            "db=postgres://host:5433/name",
        ] {
            assert_eq!(text.parse::<Spec>().expect(text).to_string(), text);
        }
        assert_eq!("db=sim:".parse::<Spec>().expect("a spec").to_string(), "db=sim:up");
    }

    #[test]
    fn what_is_no_spec_is_refused_with_the_reason() {
        for (text, part) in [
            ("", "NAME=URL"),
            ("db", "NAME=URL"),
            ("=sim:", "the name \"\""),
            ("a b=sim:", "the name \"a b\""),
            ("abcdefghijklmnopqrstuvwxyz-0123456=sim:", "1 to 32"),
            ("db=sim:;optionl", "\"optionl\""),
            ("db=sim:dwn", "dwn"),
            ("db=sim:slow?ms=99999999", "from 0 to 60000"),
            ("db=mysql://h/d", "\"mysql\""),
            ("db=host:5432", "scheme"),
            ("db=/x", "not a URL"),
            ("db=tcp://host", "port"),
            ("db=tcp://host:1/path", "path"),
            ("db=postgres:///name", "host"),
            ("db=postgres://h/d?sslmode=verify-ca", "verify-full"),
            ("db=postgres://h/d?sslmod=disable", "sslmod"),
            ("db=redis://", "host"),
            ("db=redis://h/x", "0 to"),
            ("db=rediss://h", "\"rediss\""),
        ] {
            let error = text.parse::<Spec>().expect_err(text).to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn no_secret_is_shown_in_any_form() {
        for text in [
            "db=postgres://user:s3cret@host/name",
            "db=postgres://user@host/name?password=s3cret",
            "cache=redis://:s3cret@host",
            "cache=redis://user:s3cret@host/1",
            "x=http://user:s3cret@host/ready?token=s3cret",
        ] {
            let spec: Spec = text.parse().expect(text);
            let json = serde_json::to_string(&spec).expect("JSON");
            for shown in [spec.to_string(), format!("{spec:?}"), json] {
                assert!(!shown.contains("s3cret"), "{shown}");
            }
        }
        let error = "db=postgres://user:s3cret@host:port/".parse::<Spec>().expect_err("a bad port");
        assert!(!error.to_string().contains("s3cret"));
    }
}
