//! From a configuration to a node with its services: opens the journal, starts the node and its peers, mounts the API.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use eddy_crdt::{AlarmKind, Genesis, Installed, Key, KeyRange, RangeOp, Replica};
use eddy_proto::admin::admin_server::AdminServer;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::service::Routes;

use crate::admin::Admin;
use crate::api::cluster::MemberInfo;
use crate::api::limits::RequestLimits;
use crate::api::{self, MountedKv};
use crate::auth::{Access, Passwords, Tokens};
use crate::config::Config;
use crate::config::url::Url;
use crate::http::health::{Answer, Health};
use crate::metrics::Metrics;
use crate::node::identity::Founded;
use crate::node::{self, Handle, NodeState, Options, SweepPace, autocompact, observe};
use crate::peer::{self, Dialer, Peers};
use crate::storage::{self, DiskJournal, Doubt, stage};

/// The parts behind the sockets.
pub struct Parts {
    /// The gRPC services.
    pub routes: Routes,
    /// The KV service once more, to be reached without a look-up among the routes.
    pub kv: Option<MountedKv>,
    /// The limits on requests.
    pub limits: RequestLimits,
    /// What the health endpoints ask of the node.
    pub health: Arc<dyn Health>,
    /// The admin API, for the endpoints that tell of the cluster.
    pub admin: Admin,
}

/// Opens the data dir and starts the node on it. `beginning` is the cluster that a new data dir founds. `doubt` is why it
/// may be less than what was acknowledged, if the journal cannot know. Blocks while the journal is read.
///
/// # Errors
/// When the data dir is in use, damaged or of a newer format, or this member was removed from its cluster.
pub fn start_node(
    config: &Config,
    founded: &Founded,
    beginning: Option<Genesis>,
    doubt: Option<Doubt>,
    metrics: &Arc<Metrics>,
) -> anyhow::Result<Handle> {
    let place = config.data_dir.join("eddy");
    let journal = DiskJournal::open(&config.data_dir, storage_options(config))?;
    let options = Options {
        genesis: beginning,
        doubt,
        engine: config.merge_engine,
        quota: config.quota_bytes(),
        progress_interval: match config.watch_progress_notify_interval {
            interval if interval.is_zero() => node::PROGRESS_INTERVAL_DEFAULT,
            interval => interval,
        },
        slow_apply: config.warning_apply_duration,
        sweep: sweep_pace(config),
        ..Options::new(founded.identity, place, metrics.clone())
    };
    let node = node::start(Box::new(journal), options)?;
    let id = node.identity();
    if node.members().iter().any(|member| member.id == id.replica && member.removed) {
        node.shutdown();
        anyhow::bail!("the member has been permanently removed from the cluster");
    }
    metrics.server_id.with_label_values(&[&id.replica.to_string()]).set(1);
    tracing::info!(
        "cluster-id" = %id.cluster,
        "member-id" = %id.replica,
        birth = %id.birth,
        ordinal = id.ordinal,
        members = node.members().len(),
        revision = node.revision().get(),
        "opened the journal"
    );
    node.look(|replica| {
        let cluster = replica.rules().current();
        if let Some(flags) = config.asks_for_other_rules(cluster) {
            tracing::error!(
                %cluster,
                flags = %flags,
                "the cluster has other declarations about merges than the flags give: the flags do not count"
            );
        }
    });
    Ok(node)
}

/// Reads this member's replica before it begins anew.
///
/// # Errors
/// When the data dir is in use, damaged or of a newer format.
pub fn load_replica(config: &Config, founded: &Founded) -> anyhow::Result<Replica> {
    let mut journal = DiskJournal::open(&config.data_dir, storage_options(config))?;
    Ok(node::load(&mut journal, &config.data_dir.join("eddy"), founded.identity, config.merge_engine)?)
}

/// Replaces the store by a snapshot of another member.
///
/// # Errors
/// When the disk refuses.
pub fn install(config: &Config, installed: &Installed) -> anyhow::Result<()> {
    Ok(stage::replace(&config.data_dir, storage_options(config), &installed.records, &installed.head)?)
}

fn sweep_pace(config: &Config) -> SweepPace {
    let default = SweepPace::default();
    SweepPace {
        batch: usize::try_from(config.compaction_batch_limit).ok().filter(|batch| *batch > 0).unwrap_or(default.batch),
        pause: Some(config.compaction_sleep_interval).filter(|pause| !pause.is_zero()).unwrap_or(default.pause),
    }
}

fn storage_options(config: &Config) -> storage::Options {
    let options = storage::Options { fsync: !config.unsafe_no_fsync, ..storage::Options::default() };
    #[cfg(debug_assertions)]
    let options = with_small_log(options);
    options
}

/// A log of so few bytes that checkpoints come all the time, for tests. This is not in release builds.
#[cfg(debug_assertions)]
fn with_small_log(options: storage::Options) -> storage::Options {
    let wanted = std::env::var("EDDY_FAULT_LOG_BYTES").ok().and_then(|bytes| bytes.parse().ok());
    wanted.map_or(options, |bytes| storage::Options { log_bytes: bytes, segment_bytes: bytes / 2, ..options })
}

/// Starts the peers of a node: they are dialled from now on.
pub fn start_peers(
    config: &Config,
    node: &Handle,
    dialer: Dialer,
    metrics: &Arc<Metrics>,
    stop: &CancellationToken,
    tasks: &TaskTracker,
) -> Arc<Peers> {
    let options = peer::Options { sync_interval: config.sync_interval };
    let peers = Peers::new(node.clone(), dialer, options, metrics.clone(), stop.clone(), tasks.clone());
    tasks.spawn(Arc::clone(&peers).run());
    peers
}

/// Tells the cluster the name and client URLs of this member, as etcd does before it says that it is ready.
pub async fn publish(config: &Config, node: &Handle) {
    match node.member_publish(config.name.clone(), texts(&config.advertise_client_urls)).await {
        Ok(_) => tracing::info!("published the name and client URLs of this member"),
        Err(error) => tracing::warn!(%error, "could not publish the name and client URLs of this member"),
    }
}

fn texts(urls: &[Url]) -> Vec<String> {
    urls.iter().map(ToString::to_string).collect()
}

/// Makes the services on a node, and starts the tasks beside them, which run until `stop`.
///
/// # Errors
/// When the rules of auto compaction do not parse.
pub fn parts(
    config: &Config,
    node: &Handle,
    peers: &Arc<Peers>,
    stop: &CancellationToken,
    tasks: &TaskTracker,
) -> anyhow::Result<Parts> {
    let member = MemberInfo {
        name: config.name.clone(),
        peer_urls: texts(&config.initial_advertise_peer_urls),
        client_urls: texts(&config.advertise_client_urls),
        max_learners: usize::try_from(config.max_learners).unwrap_or(0),
    };
    let limits = RequestLimits {
        max_request_bytes: usize::try_from(config.max_request_bytes).unwrap_or(usize::MAX),
        max_txn_ops: usize::try_from(config.max_txn_ops).unwrap_or(usize::MAX),
    };
    tasks.spawn(autocompact::run(node.clone(), config.auto_compaction()?, stop.clone()));
    let tokens = Tokens::new(&config.auth_token, Duration::from_secs(config.auth_token_ttl_s));
    let tokens = tokens.with_context(|| format!("--auth-token={}", config.auth_token))?;
    let passwords = Passwords::new(config.bcrypt_cost);
    let access = Access::new(node.clone(), tokens, passwords, config.client_tls.client_cert_auth);
    let admin = Admin::new(node.clone(), Arc::clone(peers), access.clone());
    Ok(Parts {
        routes: api::routes(node, &access, limits, member, stop).add_service(AdminServer::new(admin.clone())),
        kv: Some(api::kv(node, &access, limits)),
        limits,
        health: Arc::new(NodeHealth(node.clone(), Arc::clone(peers))),
        admin,
    })
}

/// A node as the health endpoints see it.
struct NodeHealth(Handle, Arc<Peers>);

impl Health for NodeHealth {
    fn alarms(&self) -> Vec<AlarmKind> {
        self.0.alarms_that_stop().into_iter().map(|alarm| alarm.kind).collect()
    }

    fn read(&self, _serializable: bool) -> Answer<'_> {
        let op = RangeOp { limit: Some(1), ..RangeOp::all(KeyRange::Key(Key::from_static(b"health"))) };
        Box::pin(async move { self.0.range(&op).await.map(drop).map_err(|error| error.to_string()) })
    }

    fn write_failure(&self) -> Option<String> {
        match self.0.state() {
            NodeState::Running => None,
            NodeState::WritesStopped { reason } | NodeState::WritesPaused { reason } => Some(reason.to_string()),
        }
    }

    fn restart_reason(&self) -> Option<String> {
        match self.0.state() {
            NodeState::WritesStopped { reason } => Some(reason.to_string()),
            NodeState::Running | NodeState::WritesPaused { .. } => None,
        }
    }

    fn refresh(&self, metrics: &Metrics) {
        observe::refresh(metrics, &self.0);
        self.1.refresh(metrics);
    }
}
