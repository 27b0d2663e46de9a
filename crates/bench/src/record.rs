//! A proxy that stands between a kube-apiserver and its store and passes everything on. It writes down what is asked of
//! the keys: the traces that `replay` plays.
//!
//! Leases, watches and what belongs to the control plane itself (its leases, its address) are passed on but not written
//! down. They are there whether or not anybody deploys anything.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result};
use eddy_proto::etcdserverpb::kv_client::KvClient;
use eddy_proto::etcdserverpb::kv_server::{Kv, KvServer};
use eddy_proto::etcdserverpb::lease_client::LeaseClient;
use eddy_proto::etcdserverpb::lease_server::{Lease, LeaseServer};
use eddy_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use eddy_proto::etcdserverpb::maintenance_server::{Maintenance, MaintenanceServer};
use eddy_proto::etcdserverpb::request_op::Request as Op;
use eddy_proto::etcdserverpb::watch_client::WatchClient;
use eddy_proto::etcdserverpb::watch_server::{Watch, WatchServer};
use eddy_proto::etcdserverpb::*;
use tokio_stream::StreamExt;
use tonic::codegen::BoxStream;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status, Streaming};

use crate::load::replay::Kind;

/// Keys that change whether or not anybody deploys anything.
const BACKGROUND: [&str; 6] = [
    "/registry/leases/",
    "/registry/masterleases/",
    "/registry/peerserverleases/",
    "/registry/services/endpoints/default/kubernetes",
    "/registry/endpointslices/default/kubernetes",
    "compact_rev_key",
];
/// Largest message that is passed on; etcd's answers have no limit of their own.
const MESSAGE_MAX: usize = 256 << 20;

#[derive(Clone)]
struct Proxy {
    channel: Channel,
    notes: std::sync::Arc<Notes>,
}

struct Notes {
    begin: Instant,
    file: Mutex<File>,
}

impl Notes {
    /// Writes a request down, unless it belongs to the background.
    fn take(&self, kind: Kind, key: &[u8], value: &[u8]) {
        let key = String::from_utf8_lossy(key);
        if BACKGROUND.iter().any(|prefix| key.starts_with(prefix)) || !key.starts_with("/registry/") {
            return;
        }
        // The time is read under the lock, so that lines are in its order.
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let line = serde_json::json!({
            "at_ms": (self.begin.elapsed().as_secs_f64() * 10_000.0).round() / 10.0,
            "kind": format!("{kind:?}").to_lowercase(),
            "key": key,
            "value": String::from_utf8_lossy(value),
        });
        if let Err(error) = writeln!(file, "{line}") {
            eprintln!("the trace is not whole: {error}");
        }
    }
}

/// What a transaction of kube-apiserver does: its kind, the key, and what it writes.
fn meaning(txn: &TxnRequest) -> Option<(Kind, &[u8], &[u8])> {
    let creates = txn.compare.iter().any(|compare| {
        matches!(
            compare.target_union,
            Some(compare::TargetUnion::ModRevision(0) | compare::TargetUnion::CreateRevision(0))
        )
    });
    match txn.success.first()?.request.as_ref()? {
        Op::RequestPut(put) => Some((if creates { Kind::Create } else { Kind::Update }, &put.key[..], &put.value[..])),
        Op::RequestDeleteRange(delete) => Some((Kind::Delete, &delete.key[..], &[])),
        Op::RequestRange(_) | Op::RequestTxn(_) => None,
    }
}

/// Passes on what comes at `listen` to `upstream` (both host and port), and writes it down, until it is stopped.
///
/// # Errors
/// When the file cannot be made or the address not be had.
pub async fn run(listen: &str, upstream: &str, out: &Path) -> Result<()> {
    let file = Mutex::new(File::create(out).with_context(|| out.display().to_string())?);
    let channel = Endpoint::from_shared(format!("http://{upstream}"))?.connect_lazy();
    let proxy = Proxy { channel, notes: std::sync::Arc::new(Notes { begin: Instant::now(), file }) };
    Server::builder()
        .add_service(KvServer::new(proxy.clone()).max_decoding_message_size(MESSAGE_MAX))
        .add_service(WatchServer::new(proxy.clone()))
        .add_service(LeaseServer::new(proxy.clone()))
        .add_service(MaintenanceServer::new(proxy))
        .serve(listen.parse().context("--listen takes an address and a port")?)
        .await?;
    Ok(())
}

impl Proxy {
    fn kv(&self) -> KvClient<Channel> {
        KvClient::new(self.channel.clone()).max_decoding_message_size(MESSAGE_MAX)
    }
    fn lease(&self) -> LeaseClient<Channel> {
        LeaseClient::new(self.channel.clone())
    }
    fn maintenance(&self) -> MaintenanceClient<Channel> {
        MaintenanceClient::new(self.channel.clone())
    }
}

/// What a client sends until it breaks off; the store sees the end of the stream then.
fn until_broken<T: Send + 'static>(stream: Streaming<T>) -> impl tokio_stream::Stream<Item = T> + Send + 'static {
    stream.map_while(Result::ok)
}

#[tonic::async_trait]
impl Kv for Proxy {
    type RangeStreamStream = BoxStream<RangeStreamResponse>;

    async fn range(&self, request: Request<RangeRequest>) -> Result<Response<RangeResponse>, Status> {
        let range = request.get_ref();
        let kind = if range.range_end.is_empty() { Kind::Get } else { Kind::List };
        self.notes.take(kind, &range.key, &[]);
        self.kv().range(request.into_inner()).await
    }
    async fn range_stream(&self, request: Request<RangeRequest>) -> Result<Response<Self::RangeStreamStream>, Status> {
        self.notes.take(Kind::List, &request.get_ref().key, &[]);
        let answers = self.kv().range_stream(request.into_inner()).await?.into_inner();
        Ok(Response::new(Box::pin(answers)))
    }
    async fn put(&self, request: Request<PutRequest>) -> Result<Response<PutResponse>, Status> {
        self.kv().put(request.into_inner()).await
    }
    async fn delete_range(
        &self,
        request: Request<DeleteRangeRequest>,
    ) -> Result<Response<DeleteRangeResponse>, Status> {
        self.kv().delete_range(request.into_inner()).await
    }
    async fn txn(&self, request: Request<TxnRequest>) -> Result<Response<TxnResponse>, Status> {
        if let Some((kind, key, value)) = meaning(request.get_ref()) {
            self.notes.take(kind, key, value);
        }
        self.kv().txn(request.into_inner()).await
    }
    async fn compact(&self, request: Request<CompactionRequest>) -> Result<Response<CompactionResponse>, Status> {
        self.kv().compact(request.into_inner()).await
    }
}

#[tonic::async_trait]
impl Watch for Proxy {
    type WatchStream = BoxStream<WatchResponse>;

    async fn watch(&self, request: Request<Streaming<WatchRequest>>) -> Result<Response<Self::WatchStream>, Status> {
        let metadata = request.metadata().clone();
        let mut onward = Request::new(until_broken(request.into_inner()));
        // Whether a client wants to hear of compactions, and needs a leader, is said here.
        *onward.metadata_mut() = metadata;
        let mut client = WatchClient::new(self.channel.clone()).max_decoding_message_size(MESSAGE_MAX);
        Ok(Response::new(Box::pin(client.watch(onward).await?.into_inner())))
    }
}

#[tonic::async_trait]
impl Lease for Proxy {
    type LeaseKeepAliveStream = BoxStream<LeaseKeepAliveResponse>;

    async fn lease_grant(&self, request: Request<LeaseGrantRequest>) -> Result<Response<LeaseGrantResponse>, Status> {
        self.lease().lease_grant(request.into_inner()).await
    }
    async fn lease_revoke(
        &self,
        request: Request<LeaseRevokeRequest>,
    ) -> Result<Response<LeaseRevokeResponse>, Status> {
        self.lease().lease_revoke(request.into_inner()).await
    }
    async fn lease_keep_alive(
        &self,
        request: Request<Streaming<LeaseKeepAliveRequest>>,
    ) -> Result<Response<Self::LeaseKeepAliveStream>, Status> {
        let answers = self.lease().lease_keep_alive(until_broken(request.into_inner())).await?;
        Ok(Response::new(Box::pin(answers.into_inner())))
    }
    async fn lease_time_to_live(
        &self,
        request: Request<LeaseTimeToLiveRequest>,
    ) -> Result<Response<LeaseTimeToLiveResponse>, Status> {
        self.lease().lease_time_to_live(request.into_inner()).await
    }
    async fn lease_leases(
        &self,
        request: Request<LeaseLeasesRequest>,
    ) -> Result<Response<LeaseLeasesResponse>, Status> {
        self.lease().lease_leases(request.into_inner()).await
    }
}

#[tonic::async_trait]
impl Maintenance for Proxy {
    type SnapshotStream = BoxStream<SnapshotResponse>;

    async fn alarm(&self, request: Request<AlarmRequest>) -> Result<Response<AlarmResponse>, Status> {
        self.maintenance().alarm(request.into_inner()).await
    }
    async fn status(&self, request: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        self.maintenance().status(request.into_inner()).await
    }
    async fn defragment(&self, request: Request<DefragmentRequest>) -> Result<Response<DefragmentResponse>, Status> {
        self.maintenance().defragment(request.into_inner()).await
    }
    async fn hash(&self, request: Request<HashRequest>) -> Result<Response<HashResponse>, Status> {
        self.maintenance().hash(request.into_inner()).await
    }
    async fn hash_kv(&self, request: Request<HashKvRequest>) -> Result<Response<HashKvResponse>, Status> {
        self.maintenance().hash_kv(request.into_inner()).await
    }
    async fn snapshot(&self, request: Request<SnapshotRequest>) -> Result<Response<Self::SnapshotStream>, Status> {
        Ok(Response::new(Box::pin(self.maintenance().snapshot(request.into_inner()).await?.into_inner())))
    }
    async fn move_leader(&self, request: Request<MoveLeaderRequest>) -> Result<Response<MoveLeaderResponse>, Status> {
        self.maintenance().move_leader(request.into_inner()).await
    }
    async fn downgrade(&self, request: Request<DowngradeRequest>) -> Result<Response<DowngradeResponse>, Status> {
        self.maintenance().downgrade(request.into_inner()).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use eddy_proto::etcdserverpb::compare::TargetUnion;

    fn txn(revision: i64, op: Op) -> TxnRequest {
        let compare = Compare { target_union: Some(TargetUnion::ModRevision(revision)), ..Compare::default() };
        TxnRequest { compare: vec![compare], success: vec![RequestOp { request: Some(op) }], failure: vec![] }
    }

    #[test]
    fn the_transactions_of_kube_apiserver_are_understood() {
        let put = Op::RequestPut(PutRequest { key: "k".into(), value: "v".into(), ..PutRequest::default() });
        assert_eq!(meaning(&txn(0, put.clone())), Some((Kind::Create, &b"k"[..], &b"v"[..])));
        assert_eq!(meaning(&txn(7, put)), Some((Kind::Update, &b"k"[..], &b"v"[..])));
        let delete = Op::RequestDeleteRange(DeleteRangeRequest { key: "k".into(), ..DeleteRangeRequest::default() });
        assert_eq!(meaning(&txn(7, delete)), Some((Kind::Delete, &b"k"[..], &b""[..])));
        assert_eq!(meaning(&txn(7, Op::RequestRange(RangeRequest::default()))), None);
    }

    #[test]
    fn what_is_written_down_can_be_played_again_and_the_background_is_left_out() -> Result<()> {
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("trace");
        let notes = Notes { begin: Instant::now(), file: Mutex::new(File::create(&path)?) };
        notes.take(Kind::Create, b"/registry/pods/default/a", br#"{"kind":"Pod"}"#);
        notes.take(Kind::Update, b"/registry/leases/kube-node-lease/n", b"{}");
        notes.take(Kind::Get, b"health", b"");
        notes.take(Kind::List, b"/registry/pods/", b"");
        let trace = crate::load::replay::Trace::load(&path)?;
        assert_eq!(trace.len(), 2);
        Ok(())
    }
}
