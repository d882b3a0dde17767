//! TLS to the target: what `--target-ca` says, and the name that its certificate must carry.

use std::path::Path;
use std::sync::Arc;

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use thiserror::Error;

use super::target::TargetHost;
use crate::tls::{self, TrustError};

#[derive(Debug, Error)]
pub enum TlsError {
    #[error("--target-ca {0}")]
    Given(TrustError),
    #[error("nobody to trust for an https target: {0}; give --target-ca FILE")]
    System(TrustError),
}

/// A configuration that trusts the authorities in `ca` alone, or the system's where there is none.
///
/// # Errors
/// If the file cannot be read or holds no certificate, or the system has none.
pub(super) fn config(ca: Option<&Path>) -> Result<Arc<ClientConfig>, TlsError> {
    let told = if ca.is_some() { TlsError::Given } else { TlsError::System };
    tls::verifying(ca).map(Arc::new).map_err(told)
}

/// The name that the target's certificate must carry.
pub(super) fn server_name(host: &TargetHost) -> Result<ServerName<'static>, String> {
    match host {
        TargetHost::Address(address) => Ok(ServerName::IpAddress((*address).into())),
        TargetHost::Name(name) => ServerName::try_from(name.clone()).map_err(|error| error.to_string()),
    }
}
