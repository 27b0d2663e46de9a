//! How clients reach the nodes of a cluster, and these each other: in the clear, or by TLS with one certificate for all, made
//! for the experiment.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rcgen::CertifiedKey;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint};

/// The names in the certificate.
const NAMES: [&str; 2] = ["localhost", "127.0.0.1"];

/// The transport of a cluster.
#[derive(Clone, Debug, Default)]
pub struct Transport(Option<Tls>);

#[derive(Clone, Debug)]
struct Tls {
    certificate: PathBuf,
    key: PathBuf,
    clients: ClientTlsConfig,
}

impl Transport {
    /// TLS; the certificate and its key are written to a folder.
    ///
    /// # Errors
    /// When they cannot be made or written.
    pub fn tls(folder: &Path) -> Result<Self> {
        let CertifiedKey { cert, signing_key } = rcgen::generate_simple_self_signed(NAMES.map(String::from))?;
        let (certificate, key) = (folder.join("node.crt"), folder.join("node.key"));
        for (path, text) in [(&certificate, cert.pem()), (&key, signing_key.serialize_pem())] {
            std::fs::write(path, text).with_context(|| path.display().to_string())?;
        }
        let clients = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(cert.pem())).domain_name(NAMES[0]);
        Ok(Self(Some(Tls { certificate, key, clients })))
    }

    /// Whether it is TLS.
    pub fn is_tls(&self) -> bool {
        self.0.is_some()
    }

    /// The URL of a host and port.
    pub fn url(&self, address: &str) -> String {
        format!("{}://{address}", if self.is_tls() { "https" } else { "http" })
    }

    /// What a client connects with to a host and port.
    ///
    /// # Errors
    /// When the address is none.
    pub fn endpoint(&self, address: &str) -> Result<Endpoint> {
        let endpoint = Endpoint::from_shared(self.url(address))?.tcp_nodelay(true);
        Ok(match &self.0 {
            Some(tls) => endpoint.tls_config(tls.clients.clone())?,
            None => endpoint,
        })
    }

    /// The flags of a node, the same for eddy and etcd. Peers show each other the certificate; clients show none.
    pub fn flags(&self) -> Vec<(&'static str, PathBuf)> {
        let Some(Tls { certificate, key, .. }) = &self.0 else { return vec![] };
        vec![
            ("--cert-file", certificate.clone()),
            ("--key-file", key.clone()),
            ("--peer-cert-file", certificate.clone()),
            ("--peer-key-file", key.clone()),
            ("--peer-trusted-ca-file", certificate.clone()),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tls_has_certificates() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let clear = Transport::default();
        assert_eq!((clear.url("a:1"), clear.flags().len()), ("http://a:1".to_owned(), 0));
        let tls = Transport::tls(folder.path())?;
        assert_eq!(tls.url("a:1"), "https://a:1");
        assert!(tls.flags().iter().all(|(_, file)| file.is_file()) && tls.flags().len() == 5);
        tls.endpoint("127.0.0.1:1")?;
        Ok(())
    }
}
