//! The server's certificate, read again when its files change.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::Mutex;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use super::error::TlsError;

/// A certificate and its key. etcd reads both files for every handshake. eddy compares their times and sizes, and reads
/// them when one changed. While they can't be read, as in the middle of a rotation, the last good pair stays in use.
#[derive(Debug)]
pub struct ReloadingCert {
    cert_file: PathBuf,
    key_file: PathBuf,
    provider: Arc<CryptoProvider>,
    current: Mutex<Loaded>,
}

#[derive(Debug)]
struct Loaded {
    stamp: [Option<(SystemTime, u64)>; 2],
    key: Arc<CertifiedKey>,
}

impl ReloadingCert {
    /// Reads the pair for the first time.
    ///
    /// # Errors
    /// Files that are missing, damaged, or don't fit together.
    pub fn load(cert_file: &Path, key_file: &Path, provider: &Arc<CryptoProvider>) -> Result<ReloadingCert, TlsError> {
        let stamp = [stamp(cert_file), stamp(key_file)];
        let key = Arc::new(read_pair(cert_file, key_file, provider)?);
        Ok(ReloadingCert {
            cert_file: cert_file.to_owned(),
            key_file: key_file.to_owned(),
            provider: provider.clone(),
            current: Mutex::new(Loaded { stamp, key }),
        })
    }

    pub(super) fn current(&self) -> Arc<CertifiedKey> {
        let seen = [stamp(&self.cert_file), stamp(&self.key_file)];
        let mut current = self.current.lock();
        if seen != current.stamp {
            match read_pair(&self.cert_file, &self.key_file, &self.provider) {
                Ok(key) => {
                    tracing::info!("cert-file" = %self.cert_file.display(), "certificate was read again");
                    *current = Loaded { stamp: seen, key: Arc::new(key) };
                }
                Err(err) => tracing::warn!(error = %err, "failed to create certificate; keeping the last one"),
            }
        }
        current.key.clone()
    }
}

impl ResolvesServerCert for ReloadingCert {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current())
    }
}

fn stamp(path: &Path) -> Option<(SystemTime, u64)> {
    let meta = fs::metadata(path).ok()?;
    Some((meta.modified().ok()?, meta.len()))
}

pub(super) fn read_certs(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let pem = read(path)?;
    let certs = CertificateDer::pem_slice_iter(&pem)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|err| TlsError::Parse { path: path.to_owned(), reason: err.to_string() })?;
    if certs.is_empty() {
        return Err(TlsError::Parse { path: path.to_owned(), reason: "no certificate in PEM format".to_owned() });
    }
    Ok(certs)
}

pub(super) fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    fs::read(path).map_err(|source| TlsError::Read { path: path.to_owned(), source })
}

fn read_pair(cert_file: &Path, key_file: &Path, provider: &CryptoProvider) -> Result<CertifiedKey, TlsError> {
    let certs = read_certs(cert_file)?;
    let key = PrivateKeyDer::from_pem_slice(&read(key_file)?)
        .map_err(|err| TlsError::Parse { path: key_file.to_owned(), reason: err.to_string() })?;
    CertifiedKey::from_der(certs, key, provider).map_err(|source| TlsError::Pair { cert: cert_file.to_owned(), source })
}
