//! The server side of TLS, for clients and for peers.

use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;
use rustls::crypto::ring;
use rustls::server::NoServerSessionStorage;

use super::certs::ReloadingCert;
use super::error::TlsError;
use super::rules::{Side, suites, versions};
use super::{client_auth, self_signed};
use crate::config::url::Url;
use crate::config::{Config, TlsFiles};

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
            // As in etcd, a generated certificate drops --client-cert-auth. Unlike in etcd, client certificates are still
            // required where the operator gave a CA for them.
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
