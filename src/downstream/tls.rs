//! TLS to the target: which authorities are trusted.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use thiserror::Error;

use super::target::TargetHost;

#[derive(Debug, Error)]
pub enum TlsError {
    #[error("--target-ca {0}: {1}")]
    File(PathBuf, rustls::pki_types::pem::Error),
    #[error("--target-ca {0}: no certificate in it that can be used")]
    Empty(PathBuf),
    #[error(
        "no trusted authorities for an https target: no system certificates were found ({0}); give --target-ca FILE"
    )]
    NoSystemCertificates(String),
    #[error("TLS cannot be set up: {0}")]
    Setup(#[from] rustls::Error),
}

/// A client configuration that trusts the authorities in `ca` alone, or the system's where there is none.
///
/// # Errors
/// If the file cannot be read or holds no certificate, or the system has none.
pub(super) fn config(ca: Option<&Path>) -> Result<Arc<ClientConfig>, TlsError> {
    let mut roots = RootCertStore::empty();
    match ca {
        Some(file) => {
            let at = |error| TlsError::File(file.to_owned(), error);
            for certificate in CertificateDer::pem_file_iter(file).map_err(at)? {
                let unusable = roots.add(certificate.map_err(at)?).is_err();
                if unusable {
                    return Err(TlsError::Empty(file.to_owned()));
                }
            }
            if roots.is_empty() {
                return Err(TlsError::Empty(file.to_owned()));
            }
        }
        None => {
            let found = rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(found.certs);
            if roots.is_empty() {
                let why = found.errors.first().map(ToString::to_string).unwrap_or_default();
                return Err(TlsError::NoSystemCertificates(why));
            }
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(Arc::new(config.with_root_certificates(roots).with_no_client_auth()))
}

/// The name that the target's certificate must carry.
pub(super) fn server_name(host: &TargetHost) -> Result<ServerName<'static>, String> {
    match host {
        TargetHost::Address(address) => Ok(ServerName::IpAddress((*address).into())),
        TargetHost::Name(name) => ServerName::try_from(name.clone()).map_err(|error| error.to_string()),
    }
}
