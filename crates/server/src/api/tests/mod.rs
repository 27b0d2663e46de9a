//! The services over a real socket, on a node whose disk is memory.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use eddy_crdt::{Birth, ClusterId, Founder, Genesis, Identity, ReplicaId};
use eddy_proto::etcdserverpb as pb;
use eddy_proto::etcdserverpb::kv_client::KvClient;
use eddy_proto::etcdserverpb::lease_client::LeaseClient;
use eddy_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use eddy_proto::etcdserverpb::request_op::Request as Step;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Code, Status};

use super::cluster::MemberInfo;
use super::limits::RequestLimits;
use crate::auth::{Access, Passwords, Tokens};
use crate::metrics::Metrics;
use crate::node::{self, Handle, Options};
use crate::storage::faulty::Disk;

mod auth;
mod cluster;
mod kv;
mod lease;
mod locks;
mod maintenance;
mod watch;

const CLUSTER: u64 = 0xc1;
const MEMBER: u64 = 0x8e9e_05c5_2164_694d;
const MAX_REQUEST_BYTES: usize = 64 << 10;
const MAX_MESSAGE_BYTES: usize = MAX_REQUEST_BYTES + (512 << 10);

struct Served {
    node: Handle,
    disk: Disk,
    channel: Channel,
    stop: CancellationToken,
}

impl Served {
    async fn start() -> Self {
        let disk = Disk::new();
        let identity = Identity {
            cluster: ClusterId::new(CLUSTER),
            replica: ReplicaId::new(MEMBER),
            birth: Birth::new(1),
            ordinal: 0,
        };
        let peer_urls = vec!["http://b:2380".to_owned(), "http://a:2380".to_owned()];
        let founder = Founder { id: identity.replica, name: "m".to_owned(), peer_urls: peer_urls.clone() };
        let genesis = Genesis { founders: vec![founder], ..Genesis::default() };
        let options = Options {
            genesis: Some(genesis),
            ..Options::new(identity, PathBuf::from("memory"), Arc::new(Metrics::new(false).unwrap()))
        };
        let node = node::start(Box::new(disk.open()), options).unwrap();
        let limits = RequestLimits { max_request_bytes: MAX_REQUEST_BYTES, max_txn_ops: 8 };
        let member = MemberInfo {
            name: "m".to_owned(),
            peer_urls,
            client_urls: vec!["http://a:2379".to_owned()],
            max_learners: 1,
        };
        let stop = CancellationToken::new();
        let listener = tokio::net::TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
        let address = listener.local_addr().unwrap();
        let tokens = Tokens::new("simple", Duration::from_secs(300)).unwrap();
        let access = Access::new(node.clone(), tokens, Passwords::new(4), false);
        let routes = super::routes(&node, &access, limits, member, &stop);
        tokio::spawn(Server::builder().add_routes(routes).serve_with_incoming(TcpListenerStream::new(listener)));
        let channel = Endpoint::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
        Self { node, disk, channel, stop }
    }

    fn kv(&self) -> KvClient<Channel> {
        KvClient::new(self.channel.clone())
    }

    fn leases(&self) -> LeaseClient<Channel> {
        LeaseClient::new(self.channel.clone())
    }

    fn maintenance(&self) -> MaintenanceClient<Channel> {
        MaintenanceClient::new(self.channel.clone())
    }

    async fn put(&self, key: impl Into<Bytes>, value: impl Into<Bytes>) -> Result<pb::PutResponse, Status> {
        let request = pb::PutRequest { key: key.into(), value: value.into(), ..Default::default() };
        self.kv().put(request).await.map(tonic::Response::into_inner)
    }

    async fn get(&self, key: &'static str) -> pb::RangeResponse {
        let request = pb::RangeRequest { key: key.into(), ..Default::default() };
        self.kv().range(request).await.unwrap().into_inner()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.node.shutdown();
    }
}

fn header(revision: i64) -> Option<pb::ResponseHeader> {
    Some(pb::ResponseHeader { cluster_id: CLUSTER, member_id: MEMBER, revision, raft_term: 2 })
}

fn error<T: std::fmt::Debug>(result: Result<T, Status>) -> (Code, String) {
    let status = result.unwrap_err();
    (status.code(), status.message().to_owned())
}

fn of(request: Step) -> pb::RequestOp {
    pb::RequestOp { request: Some(request) }
}

fn put(key: &'static str, value: &'static str) -> pb::RequestOp {
    of(Step::RequestPut(pb::PutRequest { key: key.into(), value: value.into(), ..Default::default() }))
}

fn get(key: &'static str) -> pb::RequestOp {
    of(Step::RequestRange(pb::RangeRequest { key: key.into(), ..Default::default() }))
}
