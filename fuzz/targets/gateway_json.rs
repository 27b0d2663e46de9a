//! Bodies of requests to the JSON gateway, on each kind of path. Nothing is behind it: what could be read is answered as not
//! served.

use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use eddy_server::gateway::Gateway;
use eddy_server::grpc::Grpc;
use eddy_server::metrics::Metrics;
use http::{Method, Request};
use http_body_util::{BodyExt, Full};

use super::input::Input;

/// Messages with every kind of field.
pub const PATHS: [&str; 6] = [
    "/v3/kv/range",
    "/v3/kv/txn",
    "/v3/maintenance/downgrade",
    "/v3/auth/user/add",
    "/v3/election/proclaim",
    "/v3beta/maintenance/alarm",
];

/// The longest message that the gateway is for, bytes.
const MESSAGE_MAX: usize = 1024;

struct World {
    runtime: tokio::runtime::Runtime,
    gateway: Gateway,
}

static WORLD: LazyLock<World> = LazyLock::new(|| {
    let metrics = Arc::new(Metrics::new(false).expect("metrics"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let grpc = runtime.block_on(async { Grpc::new(Default::default(), metrics, Default::default()) });
    World { runtime, gateway: Gateway::new(grpc, MESSAGE_MAX) }
});

/// One byte chooses the path, the rest is the body.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let path = PATHS[usize::from(input.byte()) % PATHS.len()];
    let Ok(rpc) = Gateway::find(&Method::POST, path) else { panic!("{path} is not found") };
    let request = Request::new(Full::new(Bytes::copy_from_slice(input.rest())));
    let world = &*WORLD;
    let (status, body) = world.runtime.block_on(async {
        let response = world.gateway.call(rpc, request, None).await;
        (response.status(), response.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default())
    });
    assert!([400, 429, 501].contains(&status.as_u16()), "{status}");
    assert!(body.starts_with(b"{\"code\":") && body.len() < 1024, "{body:?}");
}
