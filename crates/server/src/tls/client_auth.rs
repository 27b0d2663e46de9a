//! Checks of client certificates: signed by the trusted CA, not revoked, of an allowed name.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::verify_server_name;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, RootCertStore, SignatureScheme,
};
use x509_parser::prelude::{CertificateRevocationList, FromDer, X509Certificate};

use super::certs::{read, read_certs};
use super::error::TlsError;
use crate::config::TlsFiles;

/// The usual check against a CA, followed by etcd's checks.
#[derive(Debug)]
pub(super) struct Verifier {
    webpki: Arc<dyn ClientCertVerifier>,
    roots: Vec<CertificateDer<'static>>,
    crl_file: Option<PathBuf>,
    allowed_cns: Vec<String>,
    allowed_hostnames: Vec<String>,
}

impl Verifier {
    pub(super) fn load(
        files: &TlsFiles,
        provider: Arc<CryptoProvider>,
    ) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
        let path = &files.trusted_ca_file;
        let invalid = |reason: String| TlsError::Parse { path: path.clone(), reason };
        let mut roots = RootCertStore::empty();
        let certs = read_certs(path)?;
        for cert in certs.clone() {
            roots.add(cert).map_err(|err| invalid(err.to_string()))?;
        }
        let webpki = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
            .build()
            .map_err(|err| invalid(err.to_string()))?;
        let crl_file = Some(files.crl_file.clone()).filter(|path| !path.as_os_str().is_empty());
        Ok(Arc::new(Verifier {
            webpki,
            roots: certs,
            crl_file,
            allowed_cns: files.allowed_cns.clone(),
            allowed_hostnames: files.allowed_hostnames.clone(),
        }))
    }

    fn name_is_allowed(&self, cert: &CertificateDer<'_>) -> Result<bool, Error> {
        if !self.allowed_cns.is_empty() {
            let cert = parse(cert)?;
            let allowed = cert
                .subject()
                .iter_common_name()
                .filter_map(|name| name.as_str().ok())
                .any(|name| self.allowed_cns.iter().any(|allowed| allowed == name));
            return Ok(allowed);
        }
        if self.allowed_hostnames.is_empty() {
            return Ok(true);
        }
        let cert = ParsedCertificate::try_from(cert)?;
        Ok(self
            .allowed_hostnames
            .iter()
            .any(|name| ServerName::try_from(name.as_str()).is_ok_and(|name| verify_server_name(&cert, &name).is_ok())))
    }
}

impl ClientCertVerifier for Verifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.webpki.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = match self.webpki.verify_client_cert(end_entity, intermediates, now) {
            // As in Go, who has the key of a trusted root needs no other certificate.
            Err(Error::InvalidCertificate(_)) if self.roots.iter().any(|root| root == end_entity) => {
                is_valid_root(&parse(end_entity)?, now)?;
                ClientCertVerified::assertion()
            }
            verified => verified?,
        };
        if !self.name_is_allowed(end_entity)? {
            return Err(other("client certificate authentication failed"));
        }
        if let Some(path) = &self.crl_file {
            // Read for every handshake, as in etcd. A list that can't be read refuses all clients.
            let revoked = revoked_serials(path).map_err(|err| other(err.to_string()))?;
            for cert in std::iter::once(end_entity).chain(intermediates) {
                if revoked.contains(&parse(cert)?.serial.to_bytes_be()) {
                    return Err(Error::InvalidCertificate(CertificateError::Revoked));
                }
            }
        }
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, Error> {
        self.webpki.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, Error> {
        self.webpki.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.webpki.supported_verify_schemes()
    }
}

/// Checks that a root which is shown as a client's certificate is good now, and for clients.
fn is_valid_root(cert: &X509Certificate<'_>, now: UnixTime) -> Result<(), Error> {
    let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    let invalid = |error| Err(Error::InvalidCertificate(error));
    if now < cert.validity().not_before.timestamp() {
        return invalid(CertificateError::NotValidYet);
    }
    if now > cert.validity().not_after.timestamp() {
        return invalid(CertificateError::Expired);
    }
    match cert.extended_key_usage() {
        Ok(Some(usage)) if !usage.value.client_auth && !usage.value.any => invalid(CertificateError::InvalidPurpose),
        Ok(_) => Ok(()),
        Err(_) => invalid(CertificateError::BadEncoding),
    }
}

fn parse<'a>(cert: &'a CertificateDer<'_>) -> Result<X509Certificate<'a>, Error> {
    match X509Certificate::from_der(cert) {
        Ok((_, cert)) => Ok(cert),
        Err(_) => Err(Error::InvalidCertificate(CertificateError::BadEncoding)),
    }
}

/// The serial numbers in a revocation list. As in etcd, the number alone counts. etcd takes DER only; PEM is an extra.
fn revoked_serials(path: &Path) -> Result<Vec<Vec<u8>>, TlsError> {
    let invalid = |reason: String| TlsError::Parse { path: path.to_owned(), reason };
    let bytes = read(path)?;
    let der = match bytes.starts_with(b"-----BEGIN") {
        true => CertificateRevocationListDer::from_pem_slice(&bytes).map_err(|err| invalid(err.to_string()))?,
        false => CertificateRevocationListDer::from(bytes),
    };
    let (_, list) = CertificateRevocationList::from_der(&der).map_err(|err| invalid(err.to_string()))?;
    Ok(list.iter_revoked_certificates().map(|entry| entry.user_certificate.to_bytes_be()).collect())
}

/// An error of ours inside a handshake; it reaches the log by its text.
fn other(text: impl Into<String>) -> Error {
    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    struct Refused(String);
    Error::Other(OtherError(Arc::new(Refused(text.into()))))
}
