//! `eddy restore`: a data dir from a backup of eddy or etcd, with the flags of `etcdutl snapshot restore`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use eddy_crdt::Genesis;

use super::founding::Founding;
use super::output::say;
use crate::backup::restore::{Backup, GoesOn, Wanted};
use crate::config::Config;
use crate::node::identity::Founded;
use crate::peer::{Dialer, join};
use crate::storage;
use crate::tls;

#[derive(clap::Args, Debug)]
pub(super) struct RestoreArgs {
    /// The backup: what `etcdctl snapshot save` wrote.
    file: PathBuf,
    #[command(flatten)]
    founding: Founding,
    /// By how much the revision goes up at least. It goes up in any case, by more than clients can have seen.
    #[arg(long, default_value_t = 0)]
    bump_revision: u64,
    /// Mark all revisions of the backup as compacted. They are in any case.
    #[arg(long)]
    mark_compacted: bool,
    /// Take a file without its hash, such as one out of a data dir of etcd.
    #[arg(long)]
    skip_hash_check: bool,
    /// Drop the users and roles of the backup: everybody may do everything then.
    #[arg(long)]
    without_users: bool,
}

/// Restores a backup.
pub(super) async fn run(args: &RestoreArgs) -> anyhow::Result<ExitCode> {
    if (args.bump_revision > 0) != args.mark_compacted {
        bail!("--mark-compacted required if --bump-revision > 0");
    }
    let (config, mut founded) = args.founding.founded()?;
    let named = || args.file.display().to_string();
    let backup = Backup::open(&args.file, args.skip_hash_check).with_context(named)?;
    let listed = founded.identity.cluster;
    founded.identity.cluster = backup.cluster(listed);
    refuse_if_running(&config, &founded, &[listed, founded.identity.cluster]).await?;
    let wanted = Wanted {
        identity: founded.identity,
        genesis: Genesis { founders: founded.founders.clone(), rules: config.rules(), engine: config.merge_engine },
        goes_on: GoesOn::Above(args.bump_revision),
        without_users: args.without_users,
    };
    let restored = backup.restore(&config.data_dir, storage::Options::default(), &wanted).with_context(named)?;
    say(&format!(
        "restored {} keys and {} leases of revision {} to {}\n\
         member {} of cluster {}, which goes on at revision {}: clients list again\n",
        restored.keys,
        restored.leases,
        restored.of,
        config.data_dir.display(),
        founded.identity.replica,
        founded.identity.cluster,
        restored.goes_on_at,
    ))?;
    if restored.without_lease > 0 {
        say(&format!("{} keys hung on leases that are not in it; they stay\n", restored.without_lease))?;
    }
    if founded.founders.len() > 1 {
        say(
            "restore the other members from the same file, or start them empty with --initial-cluster-state existing\n",
        )?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Asks the other members. One of a cluster that runs would begin anew from them, so a backup is of no use to it.
async fn refuse_if_running(
    config: &Config,
    founded: &Founded,
    clusters: &[eddy_crdt::ClusterId],
) -> anyhow::Result<()> {
    let dialer = Dialer::new(tls::peer_client_config(config)?);
    if let Some(name) = join::find_running(&dialer, founded, clusters).await {
        bail!(
            "the cluster is running: its member {name} answers. A member of it begins anew from the others, without a \
             backup: start eddy with an empty data dir. To found a cluster from the backup, stop all members, or give \
             another --initial-cluster-token"
        );
    }
    Ok(())
}
