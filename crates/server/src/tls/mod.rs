//! TLS with etcd's flags and file formats, over rustls: which versions and suites ([`check_rules`]), certificates that
//! are read again when their files change ([`server_config`]), client certificates ([`client_auth`]).

mod certs;
mod client;
mod client_auth;
pub(crate) mod san;
mod self_signed;

use std::path::PathBuf;
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::{self, cipher_suite};
use rustls::server::NoServerSessionStorage;
use rustls::{ServerConfig, SupportedCipherSuite, SupportedProtocolVersion, version};

use crate::config::url::Url;
use crate::config::{Config, TlsFiles};

pub use certs::ReloadingCert;
pub use client::peer_client_config;

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

/// Which side a listener faces; names its flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// `--cert-file` ...
    Client,
    /// `--peer-cert-file` ...
    Peer,
}

impl Side {
    fn prefix(self) -> &'static str {
        match self {
            Side::Client => "",
            Side::Peer => "peer-",
        }
    }

    fn name(self) -> &'static str {
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

/// The rules about versions and suites, without reading a file.
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
fn suites(names: &[String]) -> Result<Vec<SupportedCipherSuite>, TlsError> {
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

fn versions(config: &Config) -> Result<Vec<&'static SupportedProtocolVersion>, TlsError> {
    let min = parse_version(&config.tls_min_version)?.unwrap_or(Version::V12);
    let max = parse_version(&config.tls_max_version)?.unwrap_or(Version::V13);
    Ok([(Version::V13, &version::TLS13), (Version::V12, &version::TLS12)]
        .into_iter()
        .filter(|(at, _)| (min..=max).contains(at))
        .map(|(_, version)| version)
        .collect())
}

/// The server side of one side's listeners, or `None` if it has no certificate. Generates one for `--auto-tls`, under
/// `fixtures` in the data dir, where a restart finds it again.
///
/// # Errors
/// Files that are missing, unreadable, damaged or do not fit together.
pub fn server_config(config: &Config, side: Side) -> Result<Option<Arc<ServerConfig>>, TlsError> {
    let (files, urls): (&TlsFiles, Vec<&Url>) = match side {
        Side::Client => {
            (&config.client_tls, config.listen_client_urls.iter().chain(&config.listen_client_http_urls).collect())
        }
        Side::Peer => (&config.peer_tls, config.listen_peer_urls.iter().collect()),
    };
    let generated;
    let files = match (files.is_empty(), files.auto_tls) {
        (true, false) => return Ok(None),
        (true, true) => {
            let hosts: Vec<&str> = urls.iter().map(|url| url.host()).collect();
            let dir = Config::fixtures_dir(&config.data_dir, side.name());
            let (cert_file, key_file) = self_signed::ensure(&dir, &hosts, config.self_signed_cert_validity)?;
            // etcd takes only the certificate from the generated set-up, and drops --client-cert-auth. So do we, but
            // where there is a CA the operator did ask for client certificates, and gets them.
            generated = TlsFiles { cert_file, key_file, ..files.clone() };
            if generated.client_cert_auth && generated.trusted_ca_file.as_os_str().is_empty() {
                tracing::warn!(
                    side = side.name(),
                    "ignoring client cert auth: the certificate is generated and there is no trusted CA file"
                );
            }
            &generated
        }
        (false, auto) => {
            if auto {
                tracing::warn!(side = side.name(), "ignoring auto TLS since certs given");
            }
            files
        }
    };
    let provider =
        Arc::new(CryptoProvider { cipher_suites: suites(&config.cipher_suites)?, ..ring::default_provider() });
    let cert = Arc::new(ReloadingCert::load(&files.cert_file, &files.key_file, &provider)?);
    let builder = ServerConfig::builder_with_provider(provider.clone()).with_protocol_versions(&versions(config)?)?;
    let builder = if files.trusted_ca_file.as_os_str().is_empty() {
        builder.with_no_client_auth()
    } else {
        builder.with_client_cert_verifier(client_auth::Verifier::load(files, provider)?)
    };
    let mut server = builder.with_cert_resolver(cert);
    server.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    // A resumed session would skip the check of the client's certificate, and with it the revocation list.
    server.session_storage = Arc::new(NoServerSessionStorage {});
    server.send_tls13_tickets = 0;
    Ok(Some(Arc::new(server)))
}
