//! Requests to the plain HTTP endpoints: any path, host and origin on each kind of listener.

use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use eddy_crdt::AlarmKind;
use eddy_server::auth::Claim;
use eddy_server::config::Config;
use eddy_server::http::health::{Answer, Health};
use eddy_server::http::{Endpoints, HttpRequest, Surface};
use eddy_server::metrics::Metrics;
use http::{Method, Uri};
use http_body_util::BodyExt;

use super::input::Input;

/// The longest body that any endpoint gives here, bytes: `/metrics`. A path must not make it grow.
const BODY_MAX: usize = 256 << 10;

/// A node in some state: a bit for each thing that can be wrong.
struct Node(u8);

impl Health for Node {
    fn alarms(&self) -> Vec<AlarmKind> {
        let alarms = [AlarmKind::NoSpace, AlarmKind::Corrupt];
        alarms.into_iter().enumerate().filter(|(bit, _)| self.0 >> bit & 1 == 1).map(|(_, alarm)| alarm).collect()
    }
    fn read(&self, serializable: bool) -> Answer<'_> {
        let fails = self.0 & 4 != 0 && !serializable;
        Box::pin(async move { if fails { Err("no".to_owned()) } else { Ok(()) } })
    }
    fn write_failure(&self) -> Option<String> {
        (self.0 & 8 != 0).then(|| "disk".to_owned())
    }
    fn restart_reason(&self) -> Option<String> {
        (self.0 & 16 != 0).then(|| "panic".to_owned())
    }
    fn refresh(&self, _: &Metrics) {}
}

struct World {
    runtime: tokio::runtime::Runtime,
    /// For each state of the node.
    endpoints: Vec<Endpoints>,
}

static WORLD: LazyLock<World> = LazyLock::new(|| {
    let metrics = Arc::new(Metrics::new(false).expect("metrics"));
    let config = Config { cors: vec!["http://a.b".into()], host_whitelist: vec!["a.b".into()], ..Config::default() };
    let open = Config::default();
    let endpoints = (0..64u8).map(|state| {
        let config = if state & 32 == 0 { &open } else { &config };
        Endpoints::new(config, Arc::new(Node(state)), Arc::clone(&metrics))
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    World { runtime, endpoints: endpoints.collect() }
});

/// Three bytes say who asks whom and how; the lines are the path, `Host`, and `Origin`.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let (surface, method, state) = (input.byte(), input.byte(), input.byte());
    let mut lines = input.rest().split(|byte| *byte == b'\n');
    let Ok(uri) = Uri::try_from(lines.next().unwrap_or_default()) else { return };
    let mut text = || lines.next().and_then(|line| std::str::from_utf8(line).ok());
    let (host, origin) = (text().unwrap_or("a.b"), text());
    let methods = [Method::GET, Method::GET, Method::POST, Method::OPTIONS, Method::HEAD, Method::PUT];
    let surface = [Surface::Client, Surface::Metrics, Surface::Peer][usize::from(surface) % 3];
    let method = &methods[usize::from(method) % methods.len()];
    let request = HttpRequest { method, uri: &uri, host, origin, tls: state & 64 != 0, claim: Claim::default() };
    let world = &*WORLD;
    let (status, body) = world.runtime.block_on(async {
        let response = world.endpoints[usize::from(state & 63)].call(surface, request).await;
        (response.status(), response.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default())
    });
    check(surface, &uri, status.as_u16(), &body);
}

fn check(surface: Surface, uri: &Uri, status: u16, body: &Bytes) {
    assert!(body.len() <= BODY_MAX, "{} bytes for {uri}", body.len());
    assert!([200, 404, 405, 421, 501, 503].contains(&status), "{status} for {uri}");
    let path = uri.path();
    let is_open = match surface {
        Surface::Client => true,
        Surface::Metrics => {
            ["/metrics", "/health"].contains(&path) || path.starts_with("/livez") || path.starts_with("/readyz")
        }
        Surface::Peer => ["/version", "/members"].contains(&path),
    };
    assert!(is_open || status == 404, "{status} for {uri} on {surface:?}");
}
