//! From a configuration to a node with its services: opens the journal, starts the node, mounts the API.

use std::sync::Arc;

use anyhow::Context;
use eddy_crdt::key::{Key, KeyRange};
use eddy_crdt::op::{AlarmKind, RangeOp};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::api::cluster::MemberInfo;
use crate::api::{self, limits::Limits};
use crate::config::Config;
use crate::config::url::Url;
use crate::http::health::{Answer, Health};
use crate::metrics::Metrics;
use crate::node::{self, Handle, NodeState, Options, autocompact, identity, observe};
use crate::run::Parts;
use crate::storage::{self, SledJournal};

/// Opens the data dir and starts the node on it. Blocks while the journal is read.
///
/// # Errors
/// When the data dir is in use, damaged or of a newer format.
pub fn start_node(config: &Config, metrics: &Arc<Metrics>) -> anyhow::Result<Handle> {
    let members = config.initial_members()?;
    if members.len() > 1 {
        // Refusing would be safer, but a cut-off replica of three serves too, and that is what it will be later.
        tracing::error!(
            members = members.len(),
            "replication between eddies is not built yet: what is written here stays here, and the other members of \
             --initial-cluster have data of their own"
        );
    }
    let place = config.data_dir.join("eddy");
    let identity = identity::derive(&config.name, &config.initial_cluster, &config.initial_cluster_token)
        .context("derive the member id")?;
    let journal = SledJournal::open(&config.data_dir, storage::Options { fsync: !config.unsafe_no_fsync })?;
    let options = Options {
        quota: config.quota_bytes(),
        progress_interval: match config.watch_progress_notify_interval {
            interval if interval.is_zero() => node::PROGRESS_INTERVAL_DEFAULT,
            interval => interval,
        },
        observer: metrics.clone(),
        ..Options::new(identity, place)
    };
    let node = node::start(Box::new(journal), options)?;
    let id = node.identity();
    metrics.server_id.with_label_values(&[&id.replica.to_string()]).set(1);
    tracing::info!(
        "cluster-id" = %id.cluster,
        "member-id" = %id.replica,
        birth = %id.birth,
        revision = node.revision().get(),
        "opened the journal"
    );
    Ok(node)
}

/// The services on a node, and what runs beside them until `stop`.
///
/// # Errors
/// When the rules of auto compaction do not parse.
pub fn parts(config: &Config, node: &Handle, stop: &CancellationToken, tasks: &TaskTracker) -> anyhow::Result<Parts> {
    let texts = |urls: &[Url]| urls.iter().map(ToString::to_string).collect();
    let member = MemberInfo {
        name: config.name.clone(),
        peer_urls: texts(&config.initial_advertise_peer_urls),
        client_urls: texts(&config.advertise_client_urls),
    };
    let limits = Limits {
        max_request_bytes: usize::try_from(config.max_request_bytes).unwrap_or(usize::MAX),
        max_txn_ops: usize::try_from(config.max_txn_ops).unwrap_or(usize::MAX),
    };
    tasks.spawn(autocompact::run(node.clone(), config.auto_compaction()?, stop.clone()));
    Ok(Parts {
        routes: api::routes(node, limits, member),
        kv: Some(api::kv(node, limits)),
        health: Arc::new(NodeHealth(node.clone())),
    })
}

/// What the health endpoints see of a node.
struct NodeHealth(Handle);

impl Health for NodeHealth {
    fn alarms(&self) -> Vec<AlarmKind> {
        self.0.alarms().into_iter().map(|alarm| alarm.kind).collect()
    }

    fn read(&self, _serializable: bool) -> Answer<'_> {
        let op = RangeOp { limit: 1, ..RangeOp::all(KeyRange::Key(Key::from_static(b"health"))) };
        let answer = self.0.range(&op).map(|_| ()).map_err(|error| error.to_string());
        Box::pin(std::future::ready(answer))
    }

    fn write_failure(&self) -> Option<String> {
        match self.0.state() {
            NodeState::Running => None,
            NodeState::WritesStopped { reason } | NodeState::WritesPaused { reason } => Some(reason.to_string()),
        }
    }

    fn refresh(&self, metrics: &Metrics) {
        observe::refresh(metrics, &self.0);
    }
}
