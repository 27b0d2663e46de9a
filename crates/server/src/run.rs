//! From a configuration to a running process and back: bind, open, serve, drain.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use eddy_crdt::ReplicaId;
use sd_notify::NotifyState;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::assemble::{self, Parts};
use crate::cli::{Invocation, Notice};
use crate::config::Config;
use crate::config::url::join;
use crate::gateway::Gateway;
use crate::grpc::Grpc;
use crate::http::Endpoints;
use crate::limits;
use crate::listen::{ClientServices, ConnLimits, Services, Sockets};
use crate::logging;
use crate::metrics::Metrics;
use crate::node::Handle;
use crate::node::identity::Founded;
use crate::peer::join::{self, Beginning, Removed};
use crate::peer::{self, Dialer, Halt, Peers, Station};
use crate::program;
use crate::storage::{Doubt, moving, stage};
use crate::tls;
use crate::version::ETCD_VERSION;

/// How long requests in flight may take when the process is told to stop. Streams are ended at once, so this is for the
/// slowest write of a full queue.
const GRACE: Duration = Duration::from_secs(5);

/// Linux's number of the signal, which tokio does not name.
const SIGXFSZ: i32 = 25;

/// Runs the process until it is told to stop.
///
/// # Errors
/// Whatever keeps it from starting.
pub fn run(invocation: Invocation) -> anyhow::Result<()> {
    let Invocation { config, notices } = invocation;
    logging::init(&config.log)?;
    limits::raise_open_files();
    announce(&config, &notices);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("start the runtime")?;
    let ended = runtime.block_on(serve(config))?;
    runtime.shutdown_timeout(GRACE);
    match ended {
        Ended::Stopped => Ok(()),
        // A new program, so that nothing keeps the old state.
        Ended::StartAnew(_) => Err(program::again()).context("begin anew"),
    }
}

/// How serving ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ended {
    /// The process was told to stop, or its member was removed.
    Stopped,
    /// The process has to begin anew, in the same data dir, best from what that member has.
    StartAnew(ReplicaId),
}

async fn serve(config: Config) -> anyhow::Result<Ended> {
    let mut signals = Signals::install()?;
    let metrics = Arc::new(Metrics::for_config(&config)?);
    let sockets = Sockets::bind(&config).await?;
    let dialer = Dialer::new(tls::peer_client_config(&config)?);
    let founded = join::founded(&config)?;
    let mut front = Front::new(&config, sockets, &founded, &metrics);
    let begins = Begins::find(&config)?;
    if begins.looks_for_others(&founded) {
        front.serve(&config);
    }
    let beginning = tokio::select! {
        beginning = begin(&config, &founded, &dialer, &front.station, begins) => match beginning {
            // The member ran before. It ends as it would have ended, had it heard of the removal then.
            Err(error) if begins == Begins::Anew && error.is::<Removed>() => {
                tracing::warn!("{error}; shutting down");
                return Ok(Ended::Stopped);
            }
            beginning => beginning?,
        },
        name = signals.next() => {
            tracing::info!(signal = name, "received signal while looking for the other members; stopping");
            return Ok(Ended::Stopped);
        }
    };
    let node = tokio::task::block_in_place(|| open_node(&config, &founded, beginning, &metrics))?;
    assemble::publish(&config, &node).await;
    let tasks = TaskTracker::new();
    let peers = assemble::start_peers(&config, &node, dialer, &metrics, &front.stop, &tasks);
    front.open(&config, assemble::parts(&config, &node, &peers, &front.stop, &tasks)?, &peers);
    tracing::info!("ready to serve client requests");
    let _no_systemd = sd_notify::notify(&[NotifyState::Ready]);

    let ended = wait(&mut signals, &peers).await;
    // What begins anew goes on under the same process id. Told that it stops, systemd would kill it after a while.
    if ended == Ended::Stopped {
        let _no_systemd = sd_notify::notify(&[NotifyState::Stopping]);
    }
    exit_at_the_next(signals);
    drain(&front.stop, front.connections).await;
    tasks.close();
    tasks.wait().await;
    if !tokio::task::block_in_place(|| node.shutdown()) {
        anyhow::bail!("the disk of {} did not answer", config.data_dir.display());
    }
    tracing::info!(name = config.name, "data-dir" = %config.data_dir.display(), "closed eddy server");
    if let Ended::StartAnew(giver) = ended {
        stage::want_anew(&config.data_dir, giver)?;
    }
    Ok(ended)
}

/// The sockets, and the services behind them.
struct Front {
    /// The sockets while they are bound and not served yet.
    sockets: Option<Sockets>,
    services: Arc<Services>,
    /// What peers are served before the node has opened, and after.
    station: Arc<Station>,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
    connections: TaskTracker,
}

impl Front {
    /// Once it serves, peers find this member, and clients are told to come back.
    fn new(config: &Config, sockets: Sockets, founded: &Founded, metrics: &Arc<Metrics>) -> Self {
        let station = Station::new(join::starting(config, founded));
        Self {
            sockets: Some(sockets),
            services: Arc::new(Services::for_peers(peer::routes(&station))),
            station,
            metrics: Arc::clone(metrics),
            stop: CancellationToken::new(),
            connections: TaskTracker::new(),
        }
    }

    /// Accepts connections from now on.
    fn serve(&mut self, config: &Config) {
        if let Some(sockets) = self.sockets.take() {
            let limits = ConnLimits::of(config);
            sockets.serve(&limits, &self.services, &self.metrics, &self.stop, &self.connections);
        }
    }

    /// Opens the node to peers and clients.
    fn open(&mut self, config: &Config, parts: Parts, peers: &Arc<Peers>) {
        self.station.open(Arc::clone(peers));
        let grpc = Grpc::new(parts.routes, Arc::clone(&self.metrics), self.stop.clone())
            .directly(parts.kv)
            .warn_after(config.slow_request());
        let gateway = config.enable_grpc_gateway.then(|| Gateway::new(grpc.clone(), parts.limits.max_message_bytes()));
        self.services.open(ClientServices {
            grpc,
            gateway,
            http: Endpoints::new(config, parts.health, Arc::clone(&self.metrics)).reporting(parts.admin),
        });
        self.serve(config);
    }
}

/// What is found in the data dir.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Begins {
    /// Nothing.
    New,
    /// A replica that must take another member's state.
    Anew,
    /// A replica.
    Again,
}

impl Begins {
    /// Looks into the data dir. First finishes what a stop has interrupted there.
    fn find(config: &Config) -> anyhow::Result<Self> {
        stage::finish(&config.data_dir)?;
        if let Some(note) = moving::noted(&config.data_dir)? {
            anyhow::bail!(
                "an import into {} has not ended: run `eddy import` again and stop it, or remove {} to start with what it has",
                config.data_dir.display(),
                note.display()
            );
        }
        Ok(match (stage::is_there(&config.data_dir)?, stage::is_wanted_anew(&config.data_dir)?) {
            (false, _) => {
                config.check_bootstrap()?;
                Self::New
            }
            (true, true) => Self::Anew,
            (true, false) => Self::Again,
        })
    }

    /// Whether the others are asked before the node opens; they must find this member meanwhile.
    fn looks_for_others(self, founded: &Founded) -> bool {
        self == Self::Anew || (self == Self::New && founded.founders.len() > 1)
    }
}

/// What the data dir begins with; `None` when it is served as it is.
async fn begin(
    config: &Config,
    founded: &Founded,
    dialer: &Dialer,
    station: &Station,
    begins: Begins,
) -> anyhow::Result<Option<Beginning>> {
    match begins {
        Begins::Again => Ok(None),
        Begins::New => join::begin(config, founded, dialer, station.asked()).await.map(Some),
        Begins::Anew => {
            let old = tokio::task::block_in_place(|| assemble::load_replica(config, founded))?;
            let first = stage::giver(&config.data_dir)?;
            let installed = join::anew(&old, first, dialer, config.join_timeout).await?;
            Ok(Some(installed.map_or(Beginning::Old, Beginning::Snapshot)))
        }
    }
}

/// Installs what the data dir begins with, and starts the node. Blocks.
fn open_node(
    config: &Config,
    founded: &Founded,
    beginning: Option<Beginning>,
    metrics: &Arc<Metrics>,
) -> anyhow::Result<Handle> {
    let mut doubt = None;
    let genesis = match beginning {
        Some(Beginning::Genesis(genesis)) => Some(genesis),
        Some(Beginning::Snapshot(installed)) => {
            assemble::install(config, &installed)?;
            None
        }
        Some(Beginning::Old) => {
            doubt = Some(Doubt::Outlived);
            None
        }
        None => None,
    };
    let node = assemble::start_node(config, founded, genesis, doubt, metrics)?;
    if doubt.is_some() {
        // Its new birth is on disk.
        stage::serve_again(&config.data_dir)?;
    }
    Ok(node)
}

/// Ends the process at once at the next signal.
fn exit_at_the_next(mut signals: Signals) {
    tokio::spawn(async move {
        let name = signals.next().await;
        tracing::warn!(signal = name, "received a second signal; stopping at once");
        std::process::exit(1);
    });
}

/// Waits for a signal, or for the peers to say why this replica must stop.
async fn wait(signals: &mut Signals, peers: &Peers) -> Ended {
    let mut halt = peers.halt();
    tokio::select! {
        name = signals.next() => {
            tracing::info!(signal = name, "received signal; shutting down");
            Ended::Stopped
        }
        halted = halt.wait_for(Option::is_some) => match halted.ok().and_then(|halted| halted.clone()) {
            Some(Halt::StartAnew { giver, why }) => {
                tracing::warn!(reason = why, "starting anew from what the other members have");
                Ended::StartAnew(giver)
            }
            Some(Halt::Removed) | None => {
                tracing::warn!("{Removed}; shutting down");
                Ended::Stopped
            }
        },
    }
}

/// Stops accepting, ends streams, and waits for the requests in flight.
pub async fn drain(stop: &CancellationToken, connections: TaskTracker) {
    stop.cancel();
    connections.close();
    if tokio::time::timeout(GRACE, connections.wait()).await.is_err() {
        tracing::warn!(connections = connections.len(), "some requests did not end in time and are dropped");
    }
}

fn announce(config: &Config, notices: &[Notice]) {
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        "etcd-version" = ETCD_VERSION,
        name = config.name,
        "data-dir" = %config.data_dir.display(),
        "listen-client-urls" = join(&config.listen_client_urls),
        "advertise-client-urls" = join(&config.advertise_client_urls),
        "listen-peer-urls" = join(&config.listen_peer_urls),
        "initial-advertise-peer-urls" = join(&config.initial_advertise_peer_urls),
        "initial-cluster" = config.initial_cluster,
        "starting eddy"
    );
    for notice in notices {
        match notice {
            Notice::UsedVariable(name, value) => tracing::info!(
                "variable-name" = name,
                "variable-value" = value,
                "recognized and used environment variable"
            ),
            Notice::UnknownVariable(name) => {
                tracing::warn!("environment-variable" = name, "unrecognized environment variable");
            }
            Notice::UsedFile(path) => tracing::info!(
                path = %path.display(),
                "loaded server configuration, other configuration command line flags and environment variables will be ignored if provided"
            ),
            Notice::Deprecated(text) => tracing::warn!("{text}"),
            Notice::NoEffect(flag, reason) => tracing::warn!(flag, "--{flag} has no effect: {reason}"),
        }
    }
    if config.listen_client_http_urls.is_empty() {
        tracing::info!("running http and grpc server on single port");
    }
    for (tls, urls, side) in [
        (&config.client_tls, &config.listen_client_urls, "client"),
        (&config.peer_tls, &config.listen_peer_urls, "peer"),
    ] {
        if let Some(url) = urls.iter().find(|url| !url.scheme().is_tls()).filter(|_| !tls.is_empty()) {
            tracing::warn!(url = %url, side, "scheme is not https while key and cert files are present; ignoring them for this URL");
        }
    }
}

struct Signals {
    /// Never awaited: catching the signal is enough, see `install`.
    _file_too_large: Signal,
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn install() -> anyhow::Result<Signals> {
        let install = |kind| signal(kind).context("install signal handlers");
        Ok(Signals {
            // Caught, so that a limit on file sizes fails a write, as a full disk does, instead of ending the process.
            _file_too_large: install(SignalKind::from_raw(SIGXFSZ))?,
            terminate: install(SignalKind::terminate())?,
            interrupt: install(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "terminated",
            _ = self.interrupt.recv() => "interrupt",
        }
    }
}
