//! What the connections of a listener share: limits, services, and who may connect.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use rustls::ServerConfig;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;

use crate::auth::CommonName;
use crate::config::Config;
use crate::gateway::Gateway;
use crate::grpc::Grpc;
use crate::http::{Endpoints, Surface};
use crate::metrics::Metrics;
use crate::peer::{PING_INTERVAL, PING_TIMEOUT, Troubles};

/// Streams of one connection of a peer: one for the sync protocol, and a few short calls while members meet.
const PEER_STREAMS_MAX: u32 = 16;
/// What holds for the pings of clients when `--grpc-keepalive-min-time` is 0; grpc-go's, so etcd's too.
const PING_MIN_TIME: Duration = Duration::from_secs(300);

/// What holds for every connection.
#[derive(Debug, Clone)]
pub struct ConnLimits {
    /// Most streams of one HTTP/2 connection.
    pub streams_max: u32,
    /// The shortest interval at which a client with an open call may ping; `None` for any.
    pub ping_min_time: Option<Duration>,
    /// Interval of pings; `None` for none.
    pub ping_interval: Option<Duration>,
    /// How long a ping may stay unanswered.
    pub ping_timeout: Duration,
    /// How long the headers of an HTTP/1 request may take, and the first bytes of any; etcd's 5 minutes.
    pub header_timeout: Duration,
}

impl ConnLimits {
    /// As the flags say.
    pub fn of(config: &Config) -> ConnLimits {
        let (interval, timeout) = (config.grpc_keepalive_interval, config.grpc_keepalive_timeout);
        let min_time = Some(config.grpc_keepalive_min_time).filter(|min_time| !min_time.is_zero());
        ConnLimits {
            streams_max: config.max_concurrent_streams,
            ping_min_time: Some(min_time.unwrap_or(PING_MIN_TIME)),
            ping_interval: (!interval.is_zero() && !timeout.is_zero()).then_some(interval),
            ping_timeout: timeout,
            header_timeout: Duration::from_secs(300),
        }
    }

    /// The same for connections of peers. A peer that went silent must be noticed soon. The member at the other end is
    /// not known before it has greeted.
    pub(super) fn for_peers(&self) -> ConnLimits {
        ConnLimits {
            ping_min_time: None,
            streams_max: PEER_STREAMS_MAX,
            ping_interval: Some(PING_INTERVAL),
            ping_timeout: PING_TIMEOUT,
            ..self.clone()
        }
    }
}

/// What answers requests of clients.
pub struct ClientServices {
    /// gRPC.
    pub grpc: Grpc,
    /// The same in JSON, unless it is switched off.
    pub gateway: Option<Gateway>,
    /// The rest.
    pub http: Endpoints,
}

/// What answers requests. Peers are answered from the beginning on; clients once the node has opened.
#[derive(Default)]
pub struct Services {
    pub(super) clients: OnceLock<ClientServices>,
    /// The gRPC services for peers.
    pub(super) peers: Routes,
}

impl Services {
    /// Serves peers, and clients not yet.
    pub fn for_peers(peers: Routes) -> Services {
        Services { clients: OnceLock::new(), peers: peers.prepare() }
    }

    /// Serves clients from now on.
    pub fn open(&self, clients: ClientServices) {
        if self.clients.set(clients).is_err() {
            tracing::error!("clients were being served already");
        }
    }
}

/// What all connections of one listener share.
pub(super) struct Setup {
    pub(super) tls: Option<Arc<ServerConfig>>,
    pub(super) plain: bool,
    pub(super) grpc: bool,
    pub(super) http: Option<Surface>,
    /// Whether a client certificate must be for the host it is shown from.
    pub(super) checks_san: bool,
    /// Whether the common name of a client's certificate is a user.
    pub(super) names_users: bool,
    /// Why peers were refused so far: a peer comes again every other second, and each reason is logged once.
    pub(super) refused: Mutex<Troubles>,
    pub(super) limits: ConnLimits,
    pub(super) services: Arc<Services>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) stop: CancellationToken,
}

impl Setup {
    /// Whose connections these are, for the log.
    pub(super) fn side(&self) -> &'static str {
        if self.http == Some(Surface::Peer) { "peer" } else { "client" }
    }

    /// Counts and logs a connection that is not taken.
    pub(super) fn rejected(&self, address: Option<SocketAddr>, error: &str) {
        self.metrics.tls_handshake_failures.inc();
        let (side, host) = (self.side(), address.map(|address| address.ip()));
        if side == "peer" && !self.refused.lock().is_news(format!("{host:?} {error}")) {
            return;
        }
        tracing::warn!("remote-addr" = remote(address), error, "rejected connection on {side} endpoint");
    }
}

/// The address of the other end, for the log.
pub(super) fn remote(address: Option<SocketAddr>) -> String {
    address.map_or_else(|| "unix".to_owned(), |address| address.to_string())
}

/// Who is at the other end.
#[derive(Debug, Clone)]
pub struct Peer {
    /// TCP address; `None` on a unix socket.
    pub address: Option<SocketAddr>,
    /// Whether the connection is encrypted.
    pub tls: bool,
    /// The common name of the certificate that a client showed, where that is a user.
    pub common_name: Option<CommonName>,
}
