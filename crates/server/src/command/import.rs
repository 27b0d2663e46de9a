//! `eddy import`: a data dir that follows a running etcd.

use std::process::ExitCode;

use anyhow::bail;
use eddy_crdt::Genesis;

use super::access::Access;
use super::founding::Founding;
use super::output::say;
use super::stopping;
use crate::moving::import::Import;

#[derive(clap::Args, Debug)]
pub(super) struct ImportArgs {
    #[command(flatten)]
    source: Access,
    #[command(flatten)]
    founding: Founding,
    /// Drop users and roles: everybody may do everything then.
    #[arg(long)]
    without_users: bool,
}

/// Imports until it is told to stop.
pub(super) async fn run(args: &ImportArgs) -> anyhow::Result<ExitCode> {
    let (config, founded) = args.founding.founded()?;
    if founded.founders.len() > 1 {
        bail!("one member is founded: give --initial-cluster this member alone, and add the others to it later");
    }
    let import = Import {
        source: args.source.remote()?,
        data_dir: config.data_dir.clone(),
        identity: founded.identity,
        genesis: Genesis { founders: founded.founders.clone(), rules: config.rules(), engine: config.merge_engine },
        engine: config.merge_engine,
        without_users: args.without_users,
    };
    let stop = stopping::on_signals()?;
    let ended = import.run(&stop, &mut stopping::tell).await?;
    say(&format!(
        "{} keys and {} leases at revision {}: start eddy with --data-dir {} and the same --name and peer URLs; it goes \
         on there, and watches from there on go on\n",
        ended.keys,
        ended.leases,
        ended.revision,
        config.data_dir.display(),
    ))?;
    Ok(ExitCode::SUCCESS)
}
