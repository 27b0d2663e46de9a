//! A server inside the test's process, and clients that say exactly which bytes they send.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use eddy_crdt::AlarmKind;
use eddy_server::cli::{self, Action};
use eddy_server::config::Config;
use eddy_server::gateway::Gateway;
use eddy_server::grpc::Grpc;
use eddy_server::http::health::{Answer, Health};
use eddy_server::http::{Endpoints, Surface};
use eddy_server::listen::{ClientServices, ConnLimits, Services, Sockets};
use eddy_server::metrics::Metrics;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::service::Routes;

/// Longer than anything here takes on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Parses flags as the binary does, with no environment.
pub fn config(args: &[&str]) -> Config {
    match cli::parse(args.iter().map(|arg| (*arg).to_owned()), []) {
        Ok(Action::Serve(invocation)) => invocation.config,
        other => panic!("expected a configuration: {other:?}"),
    }
}

/// A node whose health the test decides.
#[derive(Default)]
pub struct Node {
    pub alarms: Mutex<Vec<AlarmKind>>,
    pub read_error: Mutex<Option<String>>,
    pub write_failure: Mutex<Option<String>>,
    pub restart_reason: Mutex<Option<String>>,
}

impl Health for Node {
    fn alarms(&self) -> Vec<AlarmKind> {
        self.alarms.lock().clone()
    }
    fn read(&self, serializable: bool) -> Answer<'_> {
        let error = self.read_error.lock().clone().filter(|_| !serializable);
        Box::pin(async move { error.map_or(Ok(()), Err) })
    }
    fn write_failure(&self) -> Option<String> {
        self.write_failure.lock().clone()
    }
    fn restart_reason(&self) -> Option<String> {
        self.restart_reason.lock().clone()
    }
    fn refresh(&self, _: &Metrics) {}
}

pub struct Server {
    pub grpc: Vec<SocketAddr>,
    pub http: Vec<SocketAddr>,
    pub metrics_only: Vec<SocketAddr>,
    pub node: Arc<Node>,
    pub metrics: Arc<Metrics>,
    pub stop: CancellationToken,
    pub tracker: TaskTracker,
}

pub struct Options {
    pub routes: Routes,
    pub header_timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Options { routes: Routes::default(), header_timeout: Duration::from_secs(300) }
    }
}

impl Server {
    pub async fn start(args: &[&str]) -> Server {
        Server::with(args, Options::default()).await
    }

    /// Peers are not under test: they get a port of their own.
    pub async fn with(args: &[&str], options: Options) -> Server {
        let config = config(&[&["--listen-peer-urls=http://127.0.0.1:0"], args].concat());
        Server::try_with(&config, options).await.unwrap()
    }

    pub async fn try_with(config: &Config, options: Options) -> Result<Server, eddy_server::listen::BindError> {
        let sockets = Sockets::bind(config).await?;
        let (grpc, http) = (sockets.grpc_addresses(), sockets.http_addresses(Surface::Client));
        let metrics_only = sockets.http_addresses(Surface::Metrics);
        let metrics = Arc::new(Metrics::for_config(config).unwrap());
        let (stop, tracker, node) = (CancellationToken::new(), TaskTracker::new(), Arc::new(Node::default()));
        let services = Arc::new(Services::default());
        let api = Grpc::new(options.routes, metrics.clone(), stop.clone());
        services.open(ClientServices {
            grpc: api.clone(),
            gateway: config.enable_grpc_gateway.then(|| Gateway::new(api, 2 << 20)),
            http: Endpoints::new(config, node.clone(), metrics.clone()),
        });
        let limits = ConnLimits { header_timeout: options.header_timeout, ..ConnLimits::of(config) };
        sockets.serve(&limits, &services, &metrics, &stop, &tracker);
        Ok(Server { grpc, http, metrics_only, node, metrics, stop, tracker })
    }

    pub async fn get(&self, path: &str) -> String {
        let stream = tokio::net::TcpStream::connect(self.http[0]).await.unwrap();
        get(stream, path).await.unwrap()
    }
}

/// Flags for a client listener on a free port.
pub const ANY_PORT: &[&str] =
    &["--listen-client-urls=http://127.0.0.1:0", "--advertise-client-urls=http://127.0.0.1:2379"];

/// An HTTP/1.1 GET, returned whole: status line, headers, body.
pub async fn get<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S, path: &str) -> std::io::Result<String> {
    let request = format!("GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await??;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// The body of an answer.
pub fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").map_or("", |(_, body)| body)
}

/// Waits until a condition holds.
pub async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !holds() {
        assert!(tokio::time::Instant::now() < deadline, "in vain waited until {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

pub fn write(dir: &Path, name: &str, text: impl AsRef<[u8]>) -> String {
    let path = dir.join(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}
