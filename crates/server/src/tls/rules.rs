//! The flags of TLS: versions, cipher suites, and what the flags of one side demand of each other.

use std::path::PathBuf;

use rustls::crypto::ring::{self, cipher_suite};
use rustls::{SupportedCipherSuite, SupportedProtocolVersion, version};

use super::error::TlsError;
use crate::config::Config;

/// Which side a listener faces; names its flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// `--cert-file` ...
    Client,
    /// `--peer-cert-file` ...
    Peer,
}

impl Side {
    pub(super) fn prefix(self) -> &'static str {
        match self {
            Side::Client => "",
            Side::Peer => "peer-",
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Side::Client => "client",
            Side::Peer => "peer",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Version {
    V12,
    V13,
}

fn parse_version(text: &str) -> Result<Option<Version>, TlsError> {
    match text {
        "" => Ok(None),
        "TLS1.2" => Ok(Some(Version::V12)),
        "TLS1.3" => Ok(Some(Version::V13)),
        other => Err(TlsError::Version(other.to_owned())),
    }
}

/// Checks the flags of TLS against each other, without reading a file.
///
/// # Errors
/// The first that is broken.
pub fn check_rules(config: &Config) -> Result<(), TlsError> {
    let min = parse_version(&config.tls_min_version)?;
    let max = parse_version(&config.tls_max_version)?;
    if let (Some(low), Some(high)) = (min, max)
        && low > high
    {
        return Err(TlsError::VersionOrder {
            min: config.tls_min_version.clone(),
            max: config.tls_max_version.clone(),
        });
    }
    if min == Some(Version::V13) && !config.cipher_suites.is_empty() {
        return Err(TlsError::SuitesWithTls13);
    }
    for (files, side) in [(&config.client_tls, Side::Client), (&config.peer_tls, Side::Peer)] {
        let text = |path: &PathBuf| path.display().to_string();
        if files.cert_file.as_os_str().is_empty() != files.key_file.as_os_str().is_empty() {
            return Err(TlsError::HalfPair { key: text(&files.key_file), cert: text(&files.cert_file) });
        }
        if !files.allowed_cns.is_empty() && !files.allowed_hostnames.is_empty() {
            return Err(TlsError::CnsAndHostnames {
                cns: files.allowed_cns.clone(),
                hostnames: files.allowed_hostnames.clone(),
            });
        }
        if !files.is_empty() && files.client_cert_auth && files.trusted_ca_file.as_os_str().is_empty() {
            return Err(TlsError::NoCa(side.prefix()));
        }
    }
    suites(&config.cipher_suites).map(drop)
}

/// Names that Go's crypto/tls knows and rustls, by design, does not.
const ONLY_IN_GO: &[&str] = &[
    "TLS_RSA_WITH_RC4_128_SHA",
    "TLS_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA",
    "TLS_RSA_WITH_AES_256_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_ECDSA_WITH_RC4_128_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_RC4_128_SHA",
    "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256",
];

/// Suites by their Go names. As in Go, the list restricts TLS 1.2 only; TLS 1.3 keeps all of its own.
pub(super) fn suites(names: &[String]) -> Result<Vec<SupportedCipherSuite>, TlsError> {
    if names.is_empty() {
        return Ok(ring::DEFAULT_CIPHER_SUITES.to_vec());
    }
    let mut suites = vec![
        cipher_suite::TLS13_AES_128_GCM_SHA256,
        cipher_suite::TLS13_AES_256_GCM_SHA384,
        cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
    ];
    for name in names {
        suites.push(match name.as_str() {
            "TLS_AES_128_GCM_SHA256" | "TLS_AES_256_GCM_SHA384" | "TLS_CHACHA20_POLY1305_SHA256" => continue,
            "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256" => cipher_suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
            "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384" => cipher_suite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
            "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256" => cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
            "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384" => cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
            "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305" | "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256" => {
                cipher_suite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256
            }
            "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305" | "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256" => {
                cipher_suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256
            }
            known if ONLY_IN_GO.contains(&known) => return Err(TlsError::UnsupportedSuite(known.to_owned())),
            other => return Err(TlsError::UnknownSuite(other.to_owned())),
        });
    }
    Ok(suites)
}

pub(super) fn versions(config: &Config) -> Result<Vec<&'static SupportedProtocolVersion>, TlsError> {
    let min = parse_version(&config.tls_min_version)?.unwrap_or(Version::V12);
    let max = parse_version(&config.tls_max_version)?.unwrap_or(Version::V13);
    Ok([(Version::V13, &version::TLS13), (Version::V12, &version::TLS12)]
        .into_iter()
        .filter(|(at, _)| (min..=max).contains(at))
        .map(|(_, version)| version)
        .collect())
}
