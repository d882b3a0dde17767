//! A Redis dependency: up while it answers PING. No TLS.

use std::fmt;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ErrorKind, IntoConnectionInfo, RedisConnectionInfo, RedisError};
use tokio_util::task::AbortOnDropHandle;
use url::Url;

use super::super::verdict::Failure;
use super::{dial, innermost};

/// Where it is, and who asks.
#[derive(Clone)]
pub(in super::super) struct Target {
    at: dial::Target,
    settings: RedisConnectionInfo,
    path: String,
}

impl Target {
    pub(super) fn new(url: &Url) -> Result<Target, String> {
        let at = dial::Target::of(url, Some(6379))?;
        if let Some(database) = url.path().strip_prefix('/').filter(|database| !database.is_empty())
            && !database.parse::<u16>().is_ok_and(|number| number < 16_384)
        {
            return Err(format!("/{database}: the database must be a number from 0 to 16383"));
        }
        let info = url.clone().into_connection_info().map_err(|error| innermost(&error))?;
        // Sending our library's name would only add two commands to each connection.
        let settings = info.redis_settings().clone().set_skip_set_lib_name();
        let path = if url.path() == "/" { String::new() } else { url.path().to_owned() };
        Ok(Target { at, settings, path })
    }

    pub(super) async fn open(&self) -> Result<Connection, Failure> {
        let stream = self.at.dial().await?;
        // Whoever asks sets the time-outs.
        let config = AsyncConnectionConfig::new().set_response_timeout(None).set_connection_timeout(None);
        let greeting = MultiplexedConnection::new_with_config(&self.settings, stream, config);
        let (connection, driver) = greeting.await.map_err(|error| said(&error))?;
        Ok(Connection { connection, _driver: AbortOnDropHandle::new(tokio::spawn(driver)) })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "redis://{}{}", self.at, self.path)
    }
}

pub(in super::super) struct Connection {
    connection: MultiplexedConnection,
    _driver: AbortOnDropHandle<()>,
}

impl Connection {
    pub(super) async fn ping(&mut self) -> Result<(), Failure> {
        redis::cmd("PING").query_async::<String>(&mut self.connection).await.map(drop).map_err(|error| said(&error))
    }
}

fn said(error: &RedisError) -> Failure {
    match error.kind() {
        ErrorKind::AuthenticationFailed => Failure::said("authentication failed"),
        _ => Failure::said(innermost(error)),
    }
}
