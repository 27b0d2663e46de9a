//! From a configuration to a running process and back: bind, open, serve, drain.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use sd_notify::NotifyState;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::service::Routes;

use crate::api::MountedKv;
use crate::assemble;
use crate::cli::{ETCD_VERSION, Invocation, Notice};
use crate::config::Config;
use crate::config::url::join;
use crate::grpc::Grpc;
use crate::http::Endpoints;
use crate::http::health::Health;
use crate::limits;
use crate::listen::{ConnLimits, Services, Sockets};
use crate::log;
use crate::metrics::Metrics;

/// How long requests that are in flight when the process is told to stop may take. Streams are ended at once, so this
/// is for the slowest write of a full queue.
const GRACE: Duration = Duration::from_secs(5);

/// Linux's number of this signal, which has no name in tokio.
const SIGXFSZ: i32 = 25;

/// What is served: the parts behind the sockets.
pub struct Parts {
    /// The gRPC services.
    pub routes: Routes,
    /// The KV service once more, to be reached without them.
    pub kv: Option<MountedKv>,
    /// What the health endpoints ask.
    pub health: Arc<dyn Health>,
}

/// Runs the process until it is told to stop.
///
/// # Errors
/// Whatever keeps it from starting.
pub fn run(invocation: Invocation) -> anyhow::Result<()> {
    let Invocation { config, notices } = invocation;
    log::init(&config.log)?;
    limits::raise_open_files();
    announce(&config, &notices);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("start the runtime")?;
    runtime.block_on(serve(config))
}

async fn serve(config: Config) -> anyhow::Result<()> {
    let mut signals = Signals::install()?;
    let metrics = Arc::new(Metrics::for_config(&config)?);
    let sockets = Sockets::bind(&config).await?;
    let stop = CancellationToken::new();
    if !config.data_dir.join("eddy").exists() {
        config.check_bootstrap()?;
    }
    let (node, config) =
        tokio::task::block_in_place(|| assemble::start_node(&config, &metrics).map(|node| (node, config)))?;
    let tasks = TaskTracker::new();
    let parts = assemble::parts(&config, &node, &stop, &tasks)?;

    let connections = start(&config, sockets, parts, &metrics, &stop);
    tracing::info!("ready to serve client requests");
    let _no_systemd = sd_notify::notify(&[NotifyState::Ready]);

    let name = signals.next().await;
    tracing::info!(signal = name, "received signal; shutting down");
    let _no_systemd = sd_notify::notify(&[NotifyState::Stopping]);
    tokio::spawn(async move {
        let name = signals.next().await;
        tracing::warn!(signal = name, "received a second signal; stopping at once");
        std::process::exit(1);
    });
    drain(&stop, connections).await;
    tasks.close();
    tasks.wait().await;
    if !tokio::task::block_in_place(|| node.shutdown()) {
        anyhow::bail!("the disk of {} did not answer", config.data_dir.display());
    }
    tracing::info!(name = config.name, "data-dir" = %config.data_dir.display(), "closed eddy server");
    Ok(())
}

/// Serves `parts` on `sockets` until `stop`; the tracker holds every connection.
pub fn start(
    config: &Config,
    sockets: Sockets,
    parts: Parts,
    metrics: &Arc<Metrics>,
    stop: &CancellationToken,
) -> TaskTracker {
    let tracker = TaskTracker::new();
    let services = Arc::new(Services {
        grpc: Grpc::new(parts.routes, metrics.clone(), stop.clone())
            .directly(parts.kv)
            .warn_after(config.warning_unary_request_duration),
        http: Endpoints::new(config, parts.health, metrics.clone()),
    });
    sockets.serve(&ConnLimits::of(config), &services, metrics, stop, &tracker);
    tracker
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
            Notice::NoEffect(flags) => tracing::warn!(
                flags = flags.join(","),
                "these flags steer raft, bbolt or the Go runtime and have no effect in eddy"
            ),
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
    /// Never awaited; see `install`.
    _file_too_large: Signal,
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn install() -> anyhow::Result<Signals> {
        let install = |kind| signal(kind).context("install signal handlers");
        Ok(Signals {
            // Caught, so that a limit of file sizes fails a write, as a full disk does, and does not end the process.
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
