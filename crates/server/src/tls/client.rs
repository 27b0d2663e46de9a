//! This process as a TLS client of its peers: the certificate it shows, and the certificates it trusts.

use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ResolvesClientCert, WebPkiServerVerifier};
use rustls::crypto::ring;
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

use super::certs::{ReloadingCert, read_certs};
use super::error::TlsError;
use super::rules::{Side, suites, versions};
use super::self_signed;
use crate::config::{Config, TlsFiles};

/// The client side towards peers. Shows the certificate of `--peer-client-cert-file` or else `--peer-cert-file`, and trusts
/// `--peer-trusted-ca-file`. With a generated certificate (`--peer-auto-tls`) it trusts any certificate, as etcd does: TLS
/// encrypts then, and does not authenticate.
///
/// # Errors
/// Files that are missing, unreadable, damaged or do not fit together.
pub fn peer_client_config(config: &Config) -> Result<Arc<ClientConfig>, TlsError> {
    let files = &config.peer_tls;
    let provider =
        Arc::new(CryptoProvider { cipher_suites: suites(&config.cipher_suites)?, ..ring::default_provider() });
    let builder = ClientConfig::builder_with_provider(provider.clone()).with_protocol_versions(&versions(config)?)?;
    let generated = files.is_empty() && files.auto_tls;
    let builder = if generated {
        builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyCertificate(provider.clone())))
    } else {
        let path = &files.trusted_ca_file;
        let invalid = |reason: String| TlsError::Parse { path: path.clone(), reason };
        let mut roots = RootCertStore::empty();
        if path.as_os_str().is_empty() {
            // No certificate is trusted then, and each dial says so.
            return Ok(Arc::new(builder.with_root_certificates(roots).with_no_client_auth()));
        }
        for cert in read_certs(path)? {
            roots.add(cert).map_err(|err| invalid(err.to_string()))?;
        }
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone())
            .build()
            .map_err(|err| invalid(err.to_string()))?;
        builder.with_webpki_verifier(verifier)
    };
    let mut client = match pair(config, files, generated)? {
        Some((cert, key)) => {
            builder.with_client_cert_resolver(Arc::new(Shown(ReloadingCert::load(&cert, &key, &provider)?)))
        }
        None => builder.with_no_client_auth(),
    };
    client.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Arc::new(client))
}

type Pair = (std::path::PathBuf, std::path::PathBuf);

/// The certificate and key to show, if there are any.
fn pair(config: &Config, files: &TlsFiles, generated: bool) -> Result<Option<Pair>, TlsError> {
    let given = |path: &Path| !path.as_os_str().is_empty();
    if given(&files.client_cert_file) && given(&files.client_key_file) {
        return Ok(Some((files.client_cert_file.clone(), files.client_key_file.clone())));
    }
    if generated {
        let hosts: Vec<&str> = config.listen_peer_urls.iter().map(|url| url.host()).collect();
        let dir = Config::fixtures_dir(&config.data_dir, Side::Peer.name());
        return self_signed::ensure(&dir, &hosts, config.self_signed_cert_validity).map(Some);
    }
    Ok((!files.is_empty()).then(|| (files.cert_file.clone(), files.key_file.clone())))
}

/// Shows its certificate whichever authorities the server names.
#[derive(Debug)]
struct Shown(ReloadingCert);

impl ResolvesClientCert for Shown {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.0.current())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// Trusts any certificate, if the server has its key.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
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
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
