//! Checks that a client certificate is for the host that shows it: etcd's check for peers. A certificate that names hosts
//! is good only from one of them. `--peer-skip-client-san-verification` leaves the check out, for peers behind address
//! translation.

use std::net::IpAddr;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Why a certificate is refused from an address.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SanError {
    /// Its names cannot be read.
    #[error("its names cannot be read")]
    Unreadable,
    /// It names other hosts.
    #[error("the certificate is for {names}, not for {address}")]
    Elsewhere {
        /// The hosts, separated by commas.
        names: String,
        /// The address that showed it.
        address: IpAddr,
    },
}

/// The names in a certificate.
#[derive(Debug, Default, PartialEq, Eq)]
struct Hosts {
    addresses: Vec<IpAddr>,
    names: Vec<String>,
}

fn hosts(cert: &CertificateDer<'_>) -> Option<Hosts> {
    let (_, cert) = X509Certificate::from_der(cert).ok()?;
    let mut hosts = Hosts::default();
    let Some(extension) = cert.subject_alternative_name().ok()? else { return Some(hosts) };
    for name in &extension.value.general_names {
        match name {
            GeneralName::DNSName(name) => hosts.names.push((*name).to_owned()),
            GeneralName::IPAddress(bytes) => hosts.addresses.push(match <[u8; 4]>::try_from(*bytes) {
                Ok(v4) => IpAddr::from(v4),
                Err(_) => IpAddr::from(<[u8; 16]>::try_from(*bytes).ok()?),
            }),
            _ => {}
        }
    }
    Some(hosts)
}

/// The common name of a certificate; of several the last one counts, as in Go.
pub(crate) fn common_name(cert: &CertificateDer<'_>) -> Option<Arc<str>> {
    let (_, cert) = X509Certificate::from_der(cert).ok()?;
    cert.subject().iter_common_name().last()?.as_str().ok().map(Arc::from)
}

/// Checks that the certificate may be shown from that address. A certificate that names no hosts, or a wildcard, may be
/// shown from everywhere: a wildcard cannot be looked up.
///
/// # Errors
/// When it names other hosts.
pub(crate) async fn check(cert: &CertificateDer<'_>, address: IpAddr) -> Result<(), SanError> {
    let Hosts { addresses, names } = hosts(cert).ok_or(SanError::Unreadable)?;
    let address = address.to_canonical();
    if addresses.is_empty() && names.is_empty() || addresses.contains(&address) {
        return Ok(());
    }
    for name in &names {
        if name.starts_with("*.") {
            return Ok(());
        }
        if let Ok(mut found) = tokio::net::lookup_host((name.as_str(), 0)).await
            && found.any(|host| host.ip().to_canonical() == address)
        {
            return Ok(());
        }
    }
    let names: Vec<String> = addresses.iter().map(IpAddr::to_string).chain(names).collect();
    Err(SanError::Elsewhere { names: names.join(", "), address })
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair};

    use super::*;

    async fn taken(names: &[&str], from: &str) -> bool {
        let params = CertificateParams::new(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()).unwrap();
        let cert = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        check(cert.der(), from.parse().unwrap()).await.is_ok()
    }

    #[tokio::test]
    async fn a_certificate_is_good_from_the_hosts_it_names() {
        assert!(taken(&["127.0.0.1"], "127.0.0.1").await);
        assert!(taken(&["127.0.0.1"], "::ffff:127.0.0.1").await);
        assert!(taken(&["::1", "10.0.0.1"], "::1").await);
        assert!(taken(&["10.0.0.1", "localhost"], "127.0.0.1").await);
        assert!(!taken(&["10.0.0.1"], "127.0.0.1").await);
        assert!(!taken(&["10.0.0.1", "peer.invalid"], "127.0.0.1").await);
        assert!(!taken(&["localhost"], "10.0.0.1").await);
        assert!(taken(&[], "10.0.0.1").await, "it names no host");
        assert!(taken(&["*.example"], "10.0.0.1").await, "nobody can tell");
    }
}
