//! Where the replicas are that a command asks, and how to reach them.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, bail};
use clap::Args;
use eddy_proto::admin::admin_client::AdminClient;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use tonic::transport::Channel;

use crate::config::url::Url;
use crate::peer::Dialer;

/// Which replicas to ask, and how to reach them.
#[derive(Args, Debug)]
pub(super) struct Access {
    /// Client URLs, separated by commas; a plain host:port is http.
    #[arg(long, default_value = "http://127.0.0.1:2379", value_delimiter = ',')]
    endpoints: Vec<String>,
    /// PEM bundle that the servers' certificates must chain to.
    #[arg(long)]
    cacert: Option<PathBuf>,
    /// PEM certificate to show.
    #[arg(long, requires = "key")]
    cert: Option<PathBuf>,
    /// PEM key of --cert.
    #[arg(long, requires = "cert")]
    key: Option<PathBuf>,
}

impl Access {
    /// The endpoints.
    pub(super) fn urls(&self) -> anyhow::Result<Vec<Url>> {
        let urls: Vec<Url> = self
            .endpoints
            .iter()
            .map(|text| {
                let url = if text.contains("://") { text.clone() } else { format!("http://{text}") };
                Url::parse(&url).with_context(|| format!("endpoint {text:?}"))
            })
            .collect::<Result<_, _>>()?;
        if urls.is_empty() {
            bail!("no endpoint");
        }
        Ok(urls)
    }

    /// What connects to them, with the certificates that were given.
    pub(super) fn dialer(&self) -> anyhow::Result<Dialer> {
        let mut roots = RootCertStore::empty();
        if let Some(path) = &self.cacert {
            for cert in CertificateDer::pem_file_iter(path).with_context(|| path.display().to_string())? {
                roots.add(cert.with_context(|| path.display().to_string())?)?;
            }
        }
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots);
        let mut tls = match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => {
                let chain = CertificateDer::pem_file_iter(cert)
                    .and_then(Iterator::collect::<Result<Vec<_>, _>>)
                    .with_context(|| cert.display().to_string())?;
                let key = PrivateKeyDer::from_pem_file(key).with_context(|| key.display().to_string())?;
                builder.with_client_auth_cert(chain, key)?
            }
            _ => builder.with_no_client_auth(),
        };
        tls.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Dialer::new(Arc::new(tls)))
    }
}

/// A connection to the admin service of one replica.
pub(super) async fn admin(dialer: &Dialer, url: &Url) -> anyhow::Result<AdminClient<Channel>> {
    let channel = dialer.connect(url).await.map_err(anyhow::Error::msg);
    Ok(AdminClient::new(channel.with_context(|| url.to_string())?))
}
