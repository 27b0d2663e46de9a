//! What `/metrics` counts for known requests. The expected numbers are those of etcd 3.7.3: the same test
//! passes with `EDDY_BIN` naming a real etcd.

mod support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use eddy_proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use eddy_proto::etcdserverpb::kv_client::KvClient;
use eddy_proto::etcdserverpb::lease_client::LeaseClient;
use eddy_proto::etcdserverpb::request_op::Request;
use eddy_proto::etcdserverpb::watch_client::WatchClient;
use eddy_proto::etcdserverpb::watch_request::RequestUnion;
use eddy_proto::etcdserverpb::*;
use support::Server;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

/// How long counters may take to show what was done, and a lease of the shortest time to live to expire.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long nothing more may be counted after all was.
const STILL: Duration = Duration::from_millis(200);

/// What must have moved, and by how much.
const EXPECTED: &[(&str, i64)] = &[
    // See each request; compactions read too, to answer.
    ("etcd_mvcc_range_total", 18),
    ("etcd_mvcc_put_total", 11),
    ("etcd_mvcc_delete_total", 6),
    ("etcd_mvcc_txn_total", 9),
    ("etcd_debugging_mvcc_total_put_size_in_bytes", 22),
    ("etcd_debugging_mvcc_keys_total", 2),
    ("etcd_debugging_mvcc_events_total", 21),
    ("etcd_debugging_mvcc_pending_events_total", 0),
    ("etcd_debugging_mvcc_watch_stream_total", 1),
    ("etcd_debugging_mvcc_watcher_total", 2),
    ("etcd_debugging_mvcc_slow_watcher_total", 0),
    ("etcd_debugging_mvcc_current_revision", 12),
    ("etcd_debugging_mvcc_compact_revision", 5),
    ("etcd_debugging_lease_granted_total", 2),
    ("etcd_debugging_lease_revoked_total", 2),
    ("etcd_debugging_lease_renewed_total", 1),
    ("etcd_debugging_lease_ttl_total_count", 2),
    ("etcd_debugging_lease_ttl_total_sum", 602),
    ("etcd_debugging_server_lease_expired_total", 1),
    ("etcd_server_range_duration_seconds_count{success=\"true\"}", 2),
    (
        "grpc_server_handled_total{grpc_code=\"OK\",grpc_method=\"Txn\",grpc_service=\"etcdserverpb.KV\",grpc_type=\"unary\"}",
        7,
    ),
    (
        "grpc_server_handled_total{grpc_code=\"InvalidArgument\",grpc_method=\"Put\",grpc_service=\"etcdserverpb.KV\",grpc_type=\"unary\"}",
        1,
    ),
    ("etcd_server_has_leader", 1),
    ("etcd_server_leader_changes_seen_total", 1),
    ("etcd_server_proposals_failed_total", 0),
    ("etcd_server_proposals_pending", 0),
];

/// What moves with every request, by amounts that depend on the server.
const GROWING: &[&str] = &[
    "etcd_server_proposals_committed_total",
    "etcd_server_proposals_applied_total",
    "etcd_disk_wal_fsync_duration_seconds_count",
    "etcd_disk_backend_commit_duration_seconds_count",
    "etcd_network_client_grpc_received_bytes_total",
    "etcd_network_client_grpc_sent_bytes_total",
];

/// What must be there and above zero.
const POSITIVE: &[&str] = &[
    "etcd_mvcc_db_total_size_in_bytes",
    "etcd_mvcc_db_total_size_in_use_in_bytes",
    "etcd_server_quota_backend_bytes",
    "process_cpu_seconds_total",
    "process_resident_memory_bytes",
    "process_virtual_memory_bytes",
    "process_start_time_seconds",
    "process_open_fds",
    "process_max_fds",
];

type Metrics = BTreeMap<String, f64>;

async fn metrics(server: &Server) -> Result<Metrics> {
    let address = server.url().replace("http://", "");
    let mut stream = tokio::net::TcpStream::connect(&address).await?;
    stream.write_all(format!("GET /metrics HTTP/1.0\r\nHost: {address}\r\n\r\n").as_bytes()).await?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await?;
    let samples = text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.rsplit_once(' '));
    Ok(samples.filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?))).collect())
}

fn value(metrics: &Metrics, name: &str) -> Result<f64> {
    metrics.get(name).copied().with_context(|| format!("no metric {name}"))
}

fn put(key: &'static str, prev_kv: bool) -> PutRequest {
    PutRequest { key: key.into(), value: "v".into(), prev_kv, ..Default::default() }
}

fn created(key: &'static str, create_revision: i64) -> Compare {
    Compare {
        result: CompareResult::Equal.into(),
        target: CompareTarget::Create.into(),
        key: key.into(),
        target_union: Some(TargetUnion::CreateRevision(create_revision)),
        ..Default::default()
    }
}

fn op(request: Request) -> RequestOp {
    RequestOp { request: Some(request) }
}

fn get(key: &'static str) -> RequestOp {
    op(Request::RequestRange(RangeRequest { key: key.into(), ..Default::default() }))
}

/// One of everything, in an order that both kinds of server must count alike.
async fn requests(server: &Server) -> Result<impl Sized> {
    let channel = server.connect().await?;
    let (mut kv, mut lease) = (KvClient::new(channel.clone()), LeaseClient::new(channel.clone()));

    // Two watchers, one of all keys and one of "a" alone.
    let (send, watches) = mpsc::channel(4);
    for (key, end) in [("\0", "\0"), ("a", "")] {
        let create = WatchCreateRequest { key: key.into(), range_end: end.into(), ..Default::default() };
        send.send(WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) }).await?;
    }
    let mut events = WatchClient::new(channel).watch(ReceiverStream::new(watches)).await?.into_inner();
    for _ in 0..2 {
        events.message().await?.context("the watcher was not created")?;
    }

    kv.put(put("a", false)).await?; // 1 put
    kv.put(put("a", true)).await?; // 1 range, 1 put: 1 txn
    kv.put(PutRequest { ignore_value: true, value: "".into(), ..put("a", false) }).await?; // the same
    assert!(kv.put(PutRequest { ignore_value: true, value: "".into(), ..put("none", false) }).await.is_err()); // 1 range
    kv.range(RangeRequest { key: "a".into(), ..Default::default() }).await?;
    kv.range(RangeRequest { key: "\0".into(), range_end: "\0".into(), ..Default::default() }).await?;
    // Kubernetes' way to create and to update: 1 range; 1 put.
    let create = TxnRequest {
        compare: vec![created("b", 0)],
        success: vec![op(Request::RequestPut(put("b", false)))],
        failure: vec![get("b")],
    };
    assert!(kv.txn(create.clone()).await?.into_inner().succeeded);
    // 1 range; 1 range.
    assert!(!kv.txn(create).await?.into_inner().succeeded);
    // The second compare is not looked at: 1 range; nothing.
    let compare = vec![created("a", 999), created("b", 999)];
    assert!(!kv.txn(TxnRequest { compare, ..Default::default() }).await?.into_inner().succeeded);
    // Only reads: 2 compares and 1 range, 1 txn.
    let compare = vec![created("x", 0), created("y", 0)];
    assert!(
        kv.txn(TxnRequest { compare, success: vec![get("a")], ..Default::default() }).await?.into_inner().succeeded
    );
    // Checks: 1 compare and 1 look-up, 1 txn; then 2 puts, 1 look-up, a delete with 1 look-up, 1 txn.
    let delete = DeleteRangeRequest { key: "b".into(), prev_kv: true, ..Default::default() };
    let success = vec![
        op(Request::RequestPut(put("c", true))),
        op(Request::RequestPut(put("d", false))),
        op(Request::RequestDeleteRange(delete.clone())),
    ];
    assert!(
        kv.txn(TxnRequest { compare: vec![created("z", 0)], success, ..Default::default() })
            .await?
            .into_inner()
            .succeeded
    );
    // 2 nested puts: 1 txn.
    let nested = TxnRequest {
        success: vec![op(Request::RequestPut(put("e", false))), op(Request::RequestPut(put("f", false)))],
        ..Default::default()
    };
    kv.txn(TxnRequest { success: vec![op(Request::RequestTxn(nested))], ..Default::default() }).await?;
    kv.delete_range(delete).await?; // finds nothing: 1 range, 1 delete, 1 txn
    kv.delete_range(DeleteRangeRequest { key: "c".into(), range_end: "f".into(), ..Default::default() }).await?; // 1 delete

    // A lease that is revoked with 1 key, and one that expires with 2: 1 txn.
    let granted = lease.lease_grant(LeaseGrantRequest { ttl: 600, id: 0 }).await?.into_inner();
    let (send_alive, alive) = mpsc::channel(1);
    send_alive.send(LeaseKeepAliveRequest { id: granted.id }).await?;
    let mut renewed = lease.lease_keep_alive(ReceiverStream::new(alive)).await?.into_inner();
    renewed.message().await?.context("no answer to a keep-alive")?;
    kv.put(PutRequest { lease: granted.id, ..put("g", false) }).await?;
    lease.lease_revoke(LeaseRevokeRequest { id: granted.id }).await?;
    let short = lease.lease_grant(LeaseGrantRequest { ttl: 2, id: 0 }).await?.into_inner();
    let success = ["h", "i"].map(|key| op(Request::RequestPut(PutRequest { lease: short.id, ..put(key, false) })));
    kv.txn(TxnRequest { success: success.into(), ..Default::default() }).await?;
    kv.compact(CompactionRequest { revision: 5, physical: true }).await?;
    Ok((send, events))
}

async fn check(binary: &Path) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let server = Server::start(binary, &dir.path().join("data"), &[]).await?;
    let before = metrics(&server).await?;
    let watches = requests(&server).await?;
    let deadline = Instant::now() + PATIENCE;
    // One expiry moves several of them, not all at one moment.
    loop {
        let counted = counted(&before, &metrics(&server).await?)?;
        if counted == EXPECTED {
            break;
        }
        if Instant::now() > deadline {
            let differs = counted.iter().zip(EXPECTED).filter(|(is, must)| is != must);
            bail!("{} counts, and is to count: {:?}", binary.display(), differs.collect::<Vec<_>>());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // Nothing is counted behind that.
    tokio::time::sleep(STILL).await;
    let after = metrics(&server).await?;
    assert_eq!(counted(&before, &after)?, EXPECTED, "{}", binary.display());
    drop(watches);
    for name in GROWING {
        assert!(value(&after, name)? > value(&before, name)?, "{name} did not grow");
    }
    for name in POSITIVE {
        assert!(value(&after, name)? > 0.0, "{name} is not above zero");
    }
    Ok(())
}

/// The metrics of [`EXPECTED`]: counters by how much they moved, gauges as they are.
fn counted(before: &Metrics, after: &Metrics) -> Result<Vec<(&'static str, i64)>> {
    let moved = |name: &'static str| {
        // The range that tells that a server is up is the harness's own.
        let start = match name.contains("range") || name.contains("handled") {
            true => before.get(name).copied().unwrap_or_default(),
            false => 0.0,
        };
        Ok((name, (value(after, name)? - start) as i64))
    };
    EXPECTED.iter().map(|(name, _)| moved(name)).collect()
}

#[tokio::test]
async fn eddy_counts_as_etcd_does() {
    let binary = std::env::var_os("EDDY_BIN").map_or_else(|| env!("CARGO_BIN_EXE_eddy").into(), PathBuf::from);
    check(&binary).await.unwrap();
}
