//! TLS to a dependency: checked against authorities, or only encrypted where that is what was asked for.

use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// A configuration that trusts the authorities in `ca` alone, or the system's where there is none.
///
/// # Errors
/// One sentence, if there are no authorities.
pub(in super::super) fn verifying(ca: Option<&Path>) -> Result<ClientConfig, String> {
    let mut roots = RootCertStore::empty();
    match ca {
        Some(file) => {
            let at = |error: &dyn std::fmt::Display| format!("{}: {error}", file.display());
            for certificate in CertificateDer::pem_file_iter(file).map_err(|error| at(&error))? {
                roots.add(certificate.map_err(|error| at(&error))?).map_err(|error| at(&error))?;
            }
            if roots.is_empty() {
                return Err(at(&"no certificate in it"));
            }
        }
        None => {
            let found = rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(found.certs);
            if roots.is_empty() {
                return Err("no certificates of trusted authorities were found on this system".to_owned());
            }
        }
    }
    builder(|builder| builder.with_root_certificates(roots).with_no_client_auth())
}

/// A configuration for a way without TLS: it trusts nobody.
pub(in super::super) fn unused() -> Result<ClientConfig, String> {
    builder(|builder| builder.with_root_certificates(RootCertStore::empty()).with_no_client_auth())
}

/// Encrypts and asks for no name, as PostgreSQL's own clients do for `sslmode=require`.
pub(super) fn unverified() -> Result<ClientConfig, String> {
    builder(|builder| {
        builder.dangerous().with_custom_certificate_verifier(Arc::new(Anybody(provider()))).with_no_client_auth()
    })
}

fn builder(
    finish: impl FnOnce(rustls::ConfigBuilder<ClientConfig, rustls::WantsVerifier>) -> ClientConfig,
) -> Result<ClientConfig, String> {
    ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map(finish)
        .map_err(|error| format!("TLS cannot be set up: {error}"))
}

/// Takes any certificate; that its owner holds the key is still checked.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
