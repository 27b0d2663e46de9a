//! The etcd v3 API: one file for each gRPC service. The services share the checks of requests ([`check`], [`overlap`])
//! and the limits on requests ([`limits`]). They also share the translation of messages into the replica's types and
//! back ([`convert`]), and the statuses of errors ([`status`]).

use eddy_proto::etcdserverpb::auth_server::AuthServer;
use eddy_proto::etcdserverpb::cluster_server::ClusterServer;
use eddy_proto::etcdserverpb::kv_server::KvServer;
use eddy_proto::etcdserverpb::lease_server::LeaseServer;
use eddy_proto::etcdserverpb::maintenance_server::MaintenanceServer;
use eddy_proto::etcdserverpb::watch_server::WatchServer;
use eddy_proto::health::health_server::HealthServer;
use eddy_proto::v3electionpb::election_server::ElectionServer;
use eddy_proto::v3lockpb::lock_server::LockServer;
use tokio_util::sync::CancellationToken;
use tonic::codec::CompressionEncoding::Gzip;
use tonic::service::Routes;

use self::auth::AuthService;
use self::cluster::{ClusterService, MemberInfo};
use self::concurrency::Concurrency;
use self::election::ElectionService;
use self::health::HealthService;
use self::kv::KvService;
use self::lease::LeaseService;
use self::limits::{RequestLimits, Worded};
use self::lock::LockService;
use self::maintenance::MaintenanceService;
use self::watch::WatchService;
use crate::auth::{Access, Claim};
use crate::node::Handle;

pub mod auth;
pub mod check;
pub mod cluster;
pub mod concurrency;
pub mod convert;
pub mod election;
pub mod header;
pub mod health;
pub mod invalid;
pub mod kv;
pub mod lease;
pub mod limits;
pub mod lock;
pub mod maintenance;
pub mod overlap;
pub mod range_stream;
pub mod snapshot;
pub mod status;
#[cfg(test)]
mod tests;
pub mod watch;

/// The KV service, with its errors in etcd's words.
pub type MountedKv = Worded<KvServer<KvService>>;

/// The KV service on one node.
pub fn kv(node: &Handle, access: &Access, limits: RequestLimits) -> MountedKv {
    let server = KvServer::new(KvService::new(node.clone(), access.clone(), limits));
    Worded(server.max_decoding_message_size(limits.max_message_bytes()).accept_compressed(Gzip))
}

/// All services of the API on one node. Who waits for a lock is told when the process stops.
pub fn routes(
    node: &Handle,
    access: &Access,
    limits: RequestLimits,
    member: MemberInfo,
    stop: &CancellationToken,
) -> Routes {
    let (max, common) = (limits.max_message_bytes(), header::without_revision(&node.identity()));
    // Answers are never compressed. etcd compresses the answers to compressed requests only, which no client has to send.
    macro_rules! serve {
        ($server:ident, $service:expr) => {
            Worded($server::new($service).max_decoding_message_size(max).accept_compressed(Gzip))
        };
    }
    let shared = Concurrency {
        kv: KvService::new(node.clone(), access.clone(), limits),
        leases: LeaseService::new(node.clone(), access.clone()),
        watch: WatchService::new(node.clone(), access.clone(), common, limits.max_request_bytes),
        stop: stop.clone(),
        claim: Claim::default(),
    };
    Routes::new(kv(node, access, limits))
        .add_service(serve!(WatchServer, shared.watch.clone()))
        .add_service(serve!(LeaseServer, shared.leases.clone()))
        .add_service(serve!(LockServer, LockService(shared.clone())))
        .add_service(serve!(ElectionServer, ElectionService(shared)))
        .add_service(serve!(ClusterServer, ClusterService::new(node.clone(), access.clone(), member)))
        .add_service(serve!(MaintenanceServer, MaintenanceService::new(node.clone(), access.clone())))
        .add_service(serve!(AuthServer, AuthService::new(node.clone(), access.clone())))
        .add_service(serve!(HealthServer, HealthService::new(node.clone())))
}
