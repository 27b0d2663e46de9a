//! Where the replicas are that a command asks, and how to reach them.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, bail};
use clap::Args;
use eddy_proto::admin::admin_client::AdminClient;
use eddy_proto::etcdserverpb::AuthenticateRequest;
use eddy_proto::etcdserverpb::auth_client::AuthClient;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use tonic::metadata::AsciiMetadataValue;
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;
use tonic::{Request, Status};

use crate::config::url::Url;
use crate::moving::{Remote, User};
use crate::peer::Dialer;

/// Which replicas to ask, and how to reach them.
#[derive(Args, Debug)]
pub(super) struct Access {
    /// Client URLs, separated by commas; a plain host:port is http.
    #[arg(long, default_value = "http://127.0.0.1:2379", value_delimiter = ',')]
    endpoints: Vec<String>,
    #[command(flatten)]
    files: Files,
    #[command(flatten)]
    asker: Asker,
}

/// Certificates and a key.
#[derive(Args, Debug)]
pub(super) struct Files {
    /// PEM bundle that the servers' certificates must chain to.
    #[arg(long)]
    pub(super) cacert: Option<PathBuf>,
    /// PEM certificate to show.
    #[arg(long, requires = "key")]
    pub(super) cert: Option<PathBuf>,
    /// PEM key of --cert.
    #[arg(long, requires = "cert")]
    pub(super) key: Option<PathBuf>,
}

/// Who asks.
#[derive(Args, Debug)]
pub(super) struct Asker {
    /// User where authentication is enabled, as name or name:password; it needs the role root.
    #[arg(long, env = "EDDY_USER", hide_env_values = true)]
    pub(super) user: Option<String>,
    /// Password of --user.
    #[arg(long, env = "EDDY_PASSWORD", hide_env_values = true)]
    pub(super) password: Option<String>,
}

impl Asker {
    /// The user, if one was named.
    fn user(&self) -> anyhow::Result<Option<User>> {
        let Some(named) = self.user.as_deref() else { return Ok(None) };
        let (name, password) = match (named.split_once(':'), self.password.as_deref()) {
            (Some((name, password)), _) => (name, password),
            (None, Some(password)) => (named, password),
            (None, None) => bail!("no password for {named}: give name:password, or the password"),
        };
        Ok(Some(User { name: name.to_owned(), password: password.to_owned() }))
    }
}

/// Shows the user's token with each call.
#[derive(Clone)]
pub(super) struct ShowsToken(Option<AsciiMetadataValue>);

impl Interceptor for ShowsToken {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(token) = &self.0 {
            request.metadata_mut().insert("token", token.clone());
        }
        Ok(request)
    }
}

/// What asks the admin service.
pub(super) type Admin = AdminClient<InterceptedService<Channel, ShowsToken>>;

impl Access {
    /// Others than the flags name.
    pub(super) fn of(endpoints: Vec<String>, files: Files, asker: Asker) -> Self {
        Self { endpoints, files, asker }
    }

    /// All of it, for a source or a target that is copied.
    pub(super) fn remote(&self) -> anyhow::Result<Remote> {
        Ok(Remote { urls: self.urls()?, dialer: self.dialer()?, user: self.asker.user()? })
    }

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
        if let Some(path) = &self.files.cacert {
            for cert in CertificateDer::pem_file_iter(path).with_context(|| path.display().to_string())? {
                roots.add(cert.with_context(|| path.display().to_string())?)?;
            }
        }
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots);
        let mut tls = match (&self.files.cert, &self.files.key) {
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

impl Access {
    /// A connection to the admin service of one replica, as the user that is named.
    pub(super) async fn admin(&self, dialer: &Dialer, url: &Url) -> anyhow::Result<Admin> {
        let channel = dialer.connect(url).await.map_err(anyhow::Error::msg).with_context(|| url.to_string())?;
        let token = match self.asker.user()? {
            None => None,
            Some(User { name, password }) => {
                let request = AuthenticateRequest { name, password };
                let answer = AuthClient::new(channel.clone()).authenticate(request).await;
                let answer = answer.map_err(|status| anyhow::anyhow!("{url}: {}", status.message()))?;
                Some(answer.into_inner().token.parse().context("a token that no metadata holds")?)
            }
        };
        Ok(AdminClient::with_interceptor(channel, ShowsToken(token)))
    }

    /// The first endpoint that answers, and its admin service.
    ///
    /// # Errors
    /// Why the last one did not, when none does.
    pub(super) async fn any_admin(&self) -> anyhow::Result<(Url, Admin)> {
        let dialer = self.dialer()?;
        let mut last = None;
        for url in self.urls()? {
            match self.admin(&dialer, &url).await {
                Ok(admin) => return Ok((url, admin)),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| anyhow::anyhow!("no endpoint was given")))
    }
}
