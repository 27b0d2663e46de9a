//! Sockets: which to open ([`Sockets::bind`]), and what happens to a connection that is accepted ([`conn`]).

mod answer;
mod calls;
mod conn;
mod opening;
mod pings;
mod setup;
mod sniff;

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpSocket, UnixListener};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::Config;
use crate::config::url::{Scheme, Url};
use crate::http::Surface;
use crate::limits;
use crate::metrics::Metrics;
use crate::tls::{self, Side, TlsError};

pub use setup::{ClientServices, ConnLimits, Peer, Services};

/// Connections that the kernel keeps for us until they are accepted; Go asks for the system's maximum too.
const BACKLOG: u32 = 4096;
/// Pause after an accept that failed for want of descriptors or memory: the next would fail as well.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Why a socket could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The system refused; the URL says which.
    #[error("listen {url}: {source}")]
    Listen {
        /// As configured.
        url: Url,
        /// What the system said.
        source: io::Error,
    },
    /// Its TLS can't be served.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

/// One open socket, and what is served on it.
struct Listener {
    socket: Socket,
    address: String,
    /// For connections that begin with a TLS handshake; `None` refuses them.
    tls: Option<Arc<ServerConfig>>,
    /// Whether connections without TLS are served.
    plain: bool,
    grpc: bool,
    http: Option<Surface>,
    /// Whether a client certificate must be for the host it is shown from.
    checks_san: bool,
    /// Whether the common name of a client's certificate is a user.
    names_users: bool,
}

/// All sockets, bound before anything else starts: an address in use must not be found out half-way.
pub struct Sockets {
    listeners: Vec<Listener>,
}

impl Sockets {
    /// Opens every socket of the configuration.
    ///
    /// # Errors
    /// The first that can't be opened, or whose TLS files are bad.
    pub async fn bind(config: &Config) -> Result<Sockets, BindError> {
        let client_tls = tls::server_config(config, Side::Client)?;
        let peer_tls = tls::server_config(config, Side::Peer)?;
        let split = !config.listen_client_http_urls.is_empty();
        let mut sockets = Sockets { listeners: Vec::new() };
        for url in &config.listen_peer_urls {
            sockets.add(config, url, peer_tls.as_ref(), false, Some(Surface::Peer)).await?;
        }
        for url in &config.listen_client_urls {
            let http = (!split).then_some(Surface::Client);
            sockets.add(config, url, client_tls.as_ref(), true, http).await?;
        }
        for url in &config.listen_client_http_urls {
            sockets.add(config, url, client_tls.as_ref(), false, Some(Surface::Client)).await?;
        }
        for url in &config.listen_metrics_urls {
            sockets.add(config, url, client_tls.as_ref(), false, Some(Surface::Metrics)).await?;
        }
        Ok(sockets)
    }

    async fn add(
        &mut self,
        config: &Config,
        url: &Url,
        tls: Option<&Arc<ServerConfig>>,
        grpc: bool,
        http: Option<Surface>,
    ) -> Result<(), BindError> {
        let secure = url.scheme().is_tls();
        let tls = tls.filter(|_| secure).cloned();
        // http and https may share one port; port 0 is a new port each time.
        let shared = url.scheme().is_unix() || url.port() != "0";
        let address = url.address();
        if let Some(other) = self
            .listeners
            .iter_mut()
            .find(|other| shared && other.address == address && other.http == http && other.grpc == grpc)
        {
            other.tls = other.tls.take().or(tls);
            other.plain |= !secure;
            return Ok(());
        }
        let socket = open(config, url).await.map_err(|source| BindError::Listen { url: url.clone(), source })?;
        let peers = &config.peer_tls;
        let checks_san = http == Some(Surface::Peer) && peers.client_cert_auth && !peers.skip_client_san_verify;
        let names_users = http != Some(Surface::Peer) && config.client_tls.client_cert_auth;
        let plain = !secure;
        self.listeners.push(Listener { socket, address, tls, plain, grpc, http, checks_san, names_users });
        Ok(())
    }

    /// The TCP addresses that serve gRPC, with the ports that port 0 became.
    pub fn grpc_addresses(&self) -> Vec<SocketAddr> {
        self.tcp(|listener| listener.grpc)
    }

    /// The TCP addresses of this surface.
    pub fn http_addresses(&self, surface: Surface) -> Vec<SocketAddr> {
        self.tcp(|listener| listener.http == Some(surface))
    }

    fn tcp(&self, wanted: impl Fn(&Listener) -> bool) -> Vec<SocketAddr> {
        let local = |listener: &Listener| match &listener.socket {
            Socket::Tcp(socket) => socket.local_addr().ok(),
            Socket::Unix(..) => None,
        };
        self.listeners.iter().filter(|listener| wanted(listener)).filter_map(local).collect()
    }

    /// Accepts connections until `stop`, each a task of `tracker`.
    pub fn serve(
        self,
        limits: &ConnLimits,
        services: &Arc<Services>,
        metrics: &Arc<Metrics>,
        stop: &CancellationToken,
        tracker: &TaskTracker,
    ) {
        // Health and metrics stay reachable when clients have taken all of theirs, so only clients and peers are
        // counted. They are counted apart, so that a crowd of one kind does not keep the other out.
        let limits::Connections { clients, peers } = limits::connections();
        let (clients, peers) = (Arc::new(Semaphore::new(clients)), Arc::new(Semaphore::new(peers)));
        for listener in self.listeners {
            let traffic = match (listener.grpc, listener.http) {
                (true, None) => "grpc",
                (false, _) => "http",
                (true, Some(_)) => "grpc+http",
            };
            let address = listener.local();
            match listener.http {
                Some(Surface::Peer) => tracing::info!(address, "serving peer traffic"),
                Some(Surface::Metrics) => tracing::info!(address, "serving metrics"),
                _ if listener.plain => {
                    tracing::info!(traffic, address, "serving client traffic insecurely; this is strongly discouraged!")
                }
                _ => tracing::info!(traffic, address, "serving client traffic securely"),
            }
            let permits = match listener.http {
                Some(Surface::Metrics) => None,
                Some(Surface::Peer) => Some(peers.clone()),
                Some(Surface::Client) | None => Some(clients.clone()),
            };
            let limits = match listener.http {
                Some(Surface::Peer) => limits.for_peers(),
                _ => limits.clone(),
            };
            let accept = accept_loop(
                listener,
                permits,
                limits,
                services.clone(),
                metrics.clone(),
                stop.clone(),
                tracker.clone(),
            );
            tracker.spawn(accept);
        }
    }
}

impl Listener {
    fn local(&self) -> String {
        match &self.socket {
            Socket::Tcp(socket) => socket.local_addr().map_or_else(|_| self.address.clone(), |addr| addr.to_string()),
            Socket::Unix(_, path) => path.display().to_string(),
        }
    }
}

async fn open(config: &Config, url: &Url) -> io::Result<Socket> {
    match url.scheme() {
        Scheme::Unix | Scheme::Unixs => {
            let path = url.socket_path();
            // A socket file outlives its process. etcd removes whatever is there; we leave what is no socket alone.
            use std::os::unix::fs::FileTypeExt;
            if std::fs::symlink_metadata(&path).is_ok_and(|meta| meta.file_type().is_socket()) {
                std::fs::remove_file(&path)?;
            }
            Ok(Socket::Unix(UnixListener::bind(&path)?, path))
        }
        Scheme::Http | Scheme::Https => {
            let host = (url.host().to_owned(), url.port().parse::<u16>().unwrap_or(0));
            let mut addresses: Vec<SocketAddr> =
                tokio::task::spawn_blocking(move || host.to_socket_addrs().map(Iterator::collect))
                    .await
                    .map_err(io::Error::other)??;
            // Go binds a name to its first IPv4 address if it has one.
            addresses.sort_by_key(SocketAddr::is_ipv6);
            let address = *addresses.first().ok_or_else(|| io::Error::other("no address of this name"))?;
            let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
            // Without it a restart would have to wait for old connections to time out; Go sets it always.
            socket.set_reuseaddr(true)?;
            if config.socket_reuse_port {
                socket.set_reuseport(true)?;
            }
            socket.bind(address)?;
            Ok(Socket::Tcp(socket.listen(BACKLOG)?))
        }
    }
}

async fn accept_loop(
    listener: Listener,
    permits: Option<Arc<Semaphore>>,
    limits: ConnLimits,
    services: Arc<Services>,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
    tracker: TaskTracker,
) {
    let address = listener.local();
    let setup = Arc::new(setup::Setup {
        tls: listener.tls,
        plain: listener.plain,
        grpc: listener.grpc,
        http: listener.http,
        checks_san: listener.checks_san,
        names_users: listener.names_users,
        refused: parking_lot::Mutex::default(),
        limits,
        services,
        metrics: metrics.clone(),
        stop: stop.clone(),
    });
    let mut failing = false;
    loop {
        let permit = match &permits {
            Some(permits) => tokio::select! {
                permit = permits.clone().acquire_owned() => permit.ok(),
                () = stop.cancelled() => break,
            },
            None => None,
        };
        let accepted = tokio::select! {
            accepted = accept(&listener.socket) => accepted,
            () = stop.cancelled() => break,
        };
        match accepted {
            Ok(stream) => {
                failing = false;
                metrics.connections_accepted.inc();
                let connection = conn::serve(setup.clone(), stream);
                let open = OpenConnection::new(metrics.clone());
                tracker.spawn(async move {
                    connection.await;
                    drop((permit, open));
                });
            }
            Err(err) => {
                metrics.accept_failures.inc();
                // One line per spell of trouble; the counter has the rest.
                if !failing {
                    tracing::warn!(address, error = %err, "accepting a connection failed");
                }
                failing = true;
                tokio::select! {
                    () = tokio::time::sleep(ACCEPT_PAUSE) => {}
                    () = stop.cancelled() => break,
                }
            }
        }
    }
    if let Socket::Unix(_, path) = &listener.socket {
        let _gone_already = std::fs::remove_file(path);
    }
}

async fn accept(socket: &Socket) -> io::Result<conn::Stream> {
    match socket {
        Socket::Tcp(socket) => socket.accept().await.map(|(stream, peer)| conn::Stream::Tcp(stream, peer)),
        Socket::Unix(socket, _) => socket.accept().await.map(|(stream, _)| conn::Stream::Unix(stream)),
    }
}

/// Counts one connection for as long as it lives.
struct OpenConnection(Arc<Metrics>);

impl OpenConnection {
    fn new(metrics: Arc<Metrics>) -> OpenConnection {
        metrics.connections.inc();
        OpenConnection(metrics)
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.connections.dec();
    }
}
