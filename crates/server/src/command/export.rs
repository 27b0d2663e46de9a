//! `eddy export`: a running etcd that follows a running eddy.

use std::path::PathBuf;
use std::process::ExitCode;

use super::access::{Access, Asker, Files};
use super::output::say;
use super::stopping;
use crate::moving::export::Export;

#[derive(clap::Args, Debug)]
pub(super) struct ExportArgs {
    #[command(flatten)]
    source: Access,
    /// Client URLs of the etcd, separated by commas. It is made of a backup of the source, and nobody else writes to it.
    #[arg(long, required = true, value_delimiter = ',')]
    to: Vec<String>,
    /// PEM bundle that the etcd's certificates must chain to.
    #[arg(long)]
    to_cacert: Option<PathBuf>,
    /// PEM certificate to show to the etcd.
    #[arg(long, requires = "to_key")]
    to_cert: Option<PathBuf>,
    /// PEM key of --to-cert.
    #[arg(long, requires = "to_cert")]
    to_key: Option<PathBuf>,
    /// User of the etcd, as name or name:password; it needs the role root.
    #[arg(long, env = "EDDY_TO_USER", hide_env_values = true)]
    to_user: Option<String>,
    /// Password of --to-user.
    #[arg(long, env = "EDDY_TO_PASSWORD", hide_env_values = true)]
    to_password: Option<String>,
}

/// Exports until it is told to stop.
pub(super) async fn run(args: &ExportArgs) -> anyhow::Result<ExitCode> {
    let files = Files { cacert: args.to_cacert.clone(), cert: args.to_cert.clone(), key: args.to_key.clone() };
    let asker = Asker { user: args.to_user.clone(), password: args.to_password.clone() };
    let target = Access::of(args.to.clone(), files, asker);
    let export = Export { source: args.source.remote()?, target: target.remote()? };
    let stop = stopping::on_signals()?;
    let ended = export.run(&stop, &mut stopping::tell).await?;
    say(&format!(
        "{} keys and {} leases at revision {}: {} is equal, and goes on there\n",
        ended.keys,
        ended.leases,
        ended.revision,
        args.to.join(",")
    ))?;
    Ok(ExitCode::SUCCESS)
}
