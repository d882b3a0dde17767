//! TLS as a client: which authorities are trusted. Opens no connection.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, ConfigBuilder, RootCertStore, WantsVerifier};
use thiserror::Error;

/// Why there is nobody to trust.
#[derive(Debug, Error)]
pub enum TrustError {
    #[error("{0}: {1}")]
    File(PathBuf, rustls::pki_types::pem::Error),
    #[error("{0}: no certificate in it that can be used")]
    Empty(PathBuf),
    #[error("no certificates of trusted authorities were found on this system ({0})")]
    NoSystemCertificates(String),
    #[error("TLS cannot be set up: {0}")]
    Setup(#[from] rustls::Error),
}

/// The cryptography that all of this program uses.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// The begin of a configuration, for a caller with a verifier of its own.
///
/// # Errors
/// If the provider knows none of the protocol's versions.
pub fn builder() -> Result<ConfigBuilder<ClientConfig, WantsVerifier>, TrustError> {
    Ok(ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?)
}

/// A configuration that trusts the authorities in `ca` alone, or the system's where there is none.
///
/// # Errors
/// If the file cannot be read or holds a certificate that cannot be used, or there is no authority at all.
pub fn verifying(ca: Option<&Path>) -> Result<ClientConfig, TrustError> {
    let mut roots = RootCertStore::empty();
    match ca {
        Some(file) => {
            let at = |error| TrustError::File(file.to_owned(), error);
            for certificate in CertificateDer::pem_file_iter(file).map_err(at)? {
                roots.add(certificate.map_err(at)?).map_err(|_| TrustError::Empty(file.to_owned()))?;
            }
            if roots.is_empty() {
                return Err(TrustError::Empty(file.to_owned()));
            }
        }
        None => {
            let found = rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(found.certs);
            if roots.is_empty() {
                let why = found.errors.first().map(ToString::to_string).unwrap_or_default();
                return Err(TrustError::NoSystemCertificates(why));
            }
        }
    }
    Ok(builder()?.with_root_certificates(roots).with_no_client_auth())
}

/// A configuration for a client that goes without TLS: it trusts nobody. reqwest wants one all the same, or else a
/// provider that is installed for the whole process.
///
/// # Errors
/// As for [`builder`].
pub fn unused() -> Result<ClientConfig, TrustError> {
    Ok(builder()?.with_root_certificates(RootCertStore::empty()).with_no_client_auth())
}
