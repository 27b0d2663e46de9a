//! Why TLS cannot be served.

use std::path::PathBuf;

/// Why TLS can't be served as asked; the texts are etcd's where etcd has one.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the messages say it
pub enum TlsError {
    #[error("unexpected TLS version {0:?} (must be one of: TLS1.2, TLS1.3)")]
    Version(String),
    #[error("min version ({min}) is greater than max version ({max})")]
    VersionOrder { min: String, max: String },
    #[error("cipher suites cannot be configured when only TLS1.3 is enabled")]
    SuitesWithTls13,
    #[error("unexpected TLS cipher suite {0:?}")]
    UnknownSuite(String),
    #[error(
        "TLS cipher suite {0:?} is not supported by eddy: of TLS 1.2 it has only suites with forward secrecy and authenticated encryption (TLS_ECDHE_* with GCM or CHACHA20_POLY1305)"
    )]
    UnsupportedSuite(String),
    #[error("KeyFile and CertFile must both be present[key: {key}, cert: {cert}]")]
    HalfPair { key: String, cert: String },
    #[error("AllowedCNs and AllowedHostnames are mutually exclusive (cns={cns:?}, hostnames={hostnames:?})")]
    CnsAndHostnames { cns: Vec<String>, hostnames: Vec<String> },
    #[error("client certificates are required, but there is no CA to check them with: give --{0}trusted-ca-file")]
    NoCa(&'static str),
    #[error("{path}: {source}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{path}: {reason}")]
    Parse { path: PathBuf, reason: String },
    #[error("certificate and key do not fit together ({cert}): {source}")]
    Pair { cert: PathBuf, source: rustls::Error },
    #[error("TLS: {0}")]
    Rustls(#[from] rustls::Error),
    #[error("generate a self-signed certificate: {0}")]
    Generate(String),
}
