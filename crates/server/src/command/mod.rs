//! The commands besides serving: `eddy status`, `eddy leap`, `eddy rescue`. As in etcd, arguments that begin with a dash
//! are flags of the server, so these words never collide with them.

mod leap;
mod rescue;
mod status;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, bail};
use clap::{Args, Parser, Subcommand};
use eddy_proto::admin::admin_client::AdminClient;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use tonic::transport::Channel;

use crate::config::url::Url;
use crate::peer::Dialer;

/// The words that are commands.
const NAMES: &[&str] = &["status", "leap", "rescue"];

#[derive(Parser, Debug)]
#[command(name = "eddy", disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Show how replicas and their peers stand.
    Status(status::StatusArgs),
    /// Move a replica's revisions above all that any member has used; its clients list again.
    Leap(leap::LeapArgs),
    /// Export what a stopped replica wrote and has never sent to a peer, as JSON lines.
    Rescue(rescue::RescueArgs),
}

/// Which replicas to ask, and how to reach them.
#[derive(Args, Debug)]
struct Access {
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

/// Runs a command, if the arguments (without the program's name) are one.
pub fn run(args: &[String]) -> Option<ExitCode> {
    if !args.first().is_some_and(|word| NAMES.contains(&word.as_str())) {
        return None;
    }
    let cli = match Cli::try_parse_from(std::iter::once("eddy").chain(args.iter().map(String::as_str))) {
        Ok(cli) => cli,
        Err(error) => {
            let code = if error.use_stderr() { 2 } else { 0 };
            // A closed pipe is no error of ours.
            let _closed = error.print();
            return Some(ExitCode::from(code));
        }
    };
    Some(match dispatch(cli.command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    })
}

fn dispatch(command: Command) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("start the runtime")?;
    match command {
        Command::Status(args) => runtime.block_on(status::run(&args)),
        Command::Leap(args) => runtime.block_on(leap::run(&args)),
        Command::Rescue(args) => rescue::run(&args),
    }
}

impl Access {
    fn urls(&self) -> anyhow::Result<Vec<Url>> {
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

    fn dialer(&self) -> anyhow::Result<Dialer> {
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

async fn admin(dialer: &Dialer, url: &Url) -> anyhow::Result<AdminClient<Channel>> {
    let channel = dialer.connect(url).await.map_err(anyhow::Error::msg);
    Ok(AdminClient::new(channel.with_context(|| url.to_string())?))
}
