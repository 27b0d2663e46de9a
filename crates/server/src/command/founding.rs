//! The flags of a server that say what is founded, for commands that make a data dir.

use anyhow::bail;

use crate::cli::{self, Action};
use crate::config::Config;
use crate::node::identity::Founded;
use crate::peer::join;

#[derive(clap::Args, Debug)]
pub(super) struct Founding {
    /// Where to make the data dir; nothing may be there.
    #[arg(long)]
    data_dir: Option<String>,
    /// Name of this member.
    #[arg(long)]
    name: Option<String>,
    /// All members of the cluster that is founded, as name=url,...
    #[arg(long)]
    initial_cluster: Option<String>,
    /// Tells clusters with equal members apart.
    #[arg(long)]
    initial_cluster_token: Option<String>,
    /// This member's peer URLs, as the others see them.
    #[arg(long)]
    initial_advertise_peer_urls: Option<String>,
    /// Where Kubernetes keeps its objects.
    #[arg(long)]
    kubernetes_prefix: Option<String>,
    /// Integers of Kubernetes objects that add up.
    #[arg(long)]
    counters: Option<String>,
    /// A file that names counters and fields that merge as one value, instead of --counters.
    #[arg(long, value_name = "FILE")]
    merge_policy: Option<String>,
}

impl Founding {
    /// The configuration that the server would have with the same flags, and the cluster that it would found.
    pub(super) fn founded(&self) -> anyhow::Result<(Config, Founded)> {
        let mut args = vec![];
        for (flag, value) in [
            ("data-dir", &self.data_dir),
            ("name", &self.name),
            ("initial-cluster", &self.initial_cluster),
            ("initial-cluster-token", &self.initial_cluster_token),
            ("initial-advertise-peer-urls", &self.initial_advertise_peer_urls),
            ("kubernetes-prefix", &self.kubernetes_prefix),
            ("counters", &self.counters),
            ("merge-policy", &self.merge_policy),
        ] {
            args.extend(value.as_ref().map(|value| format!("--{flag}={value}")));
        }
        let config = match cli::parse(args, std::iter::empty())? {
            Action::Serve(invocation) => invocation.config,
            Action::Print(_) => bail!("these flags are none of a server"),
        };
        config.check_bootstrap()?;
        let founded = join::founded(&config)?;
        Ok((config, founded))
    }
}
