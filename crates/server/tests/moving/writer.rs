//! Objects, and a client that goes on writing them.

use std::time::Duration;

use anyhow::{Context, Result};
use eddy_proto::etcdserverpb as pb;
use eddy_proto::etcdserverpb::kv_client::KvClient;
use eddy_proto::etcdserverpb::lease_client::LeaseClient;
use eddy_proto::etcdserverpb::request_op::Request;
use eddy_proto::etcdserverpb::watch_client::WatchClient;
use eddy_proto::etcdserverpb::watch_request::RequestUnion;
use eddy_proto::mvccpb::Event;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::support::Server;

/// Puts of one transaction.
const TOGETHER: usize = 100;

/// How long a value is, bytes.
const VALUE_BYTES: usize = 300;

fn put(key: String, value: String, lease: i64) -> pb::RequestOp {
    let put = pb::PutRequest { key: key.into(), value: value.into(), lease, ..Default::default() };
    pb::RequestOp { request: Some(Request::RequestPut(put)) }
}

fn delete(key: String) -> pb::RequestOp {
    let delete = pb::DeleteRangeRequest { key: key.into(), ..Default::default() };
    pb::RequestOp { request: Some(Request::RequestDeleteRange(delete)) }
}

fn txn(success: Vec<pb::RequestOp>) -> pb::TxnRequest {
    pb::TxnRequest { success, ..Default::default() }
}

fn value(n: usize) -> String {
    format!("{n}-{}", "x".repeat(VALUE_BYTES))
}

/// Writes that many objects.
///
/// # Errors
/// The server refuses.
pub async fn fill(server: &Server, objects: usize) -> Result<()> {
    let mut kv = KvClient::new(server.connect().await?);
    for first in (0..objects).step_by(TOGETHER) {
        let puts = (first..objects.min(first + TOGETHER)).map(|n| put(format!("/o/{n:06}"), value(n), 0));
        kv.txn(txn(puts.collect())).await?;
    }
    Ok(())
}

/// Writes that go on until they are stopped: puts, deletes, transactions of several keys, keys on leases that are revoked.
pub struct Writer {
    stop: watch::Sender<bool>,
    task: JoinHandle<Result<u64>>,
}

impl Writer {
    /// Starts it.
    ///
    /// # Errors
    /// The server cannot be reached.
    pub async fn start(server: &Server) -> Result<Self> {
        Self::start_at(server, Duration::ZERO).await
    }

    /// The same with a pause between two writes.
    ///
    /// # Errors
    /// The server cannot be reached.
    pub async fn start_at(server: &Server, pause: Duration) -> Result<Self> {
        let (mut kv, mut leases) = (KvClient::new(server.connect().await?), LeaseClient::new(server.connect().await?));
        let (stop, stopped) = watch::channel(false);
        let task = tokio::spawn(async move {
            let mut writes = 0;
            for n in 0_usize.. {
                if *stopped.borrow() {
                    break;
                }
                let key = |n: usize| format!("/o/{:06}", n * 37 % 5000);
                let lease = 100_000 + (n / 50) as i64;
                let ops = match n % 50 {
                    0 => {
                        leases.lease_grant(pb::LeaseGrantRequest { ttl: 600, id: lease }).await?;
                        vec![put("/leased/a".to_owned(), value(n), lease), put("/leased/b".to_owned(), value(n), lease)]
                    }
                    // Half of the leases go with their keys, and some stay without any.
                    49 if n % 100 == 49 => {
                        leases.lease_revoke(pb::LeaseRevokeRequest { id: lease }).await?;
                        continue;
                    }
                    1..10 => vec![delete(key(n)), put(key(n + 1), value(n), 0), put(format!("/new/{n}"), value(n), 0)],
                    10..14 => vec![delete(format!("/new/{}", n - 9))],
                    _ => vec![put(key(n), value(n), 0)],
                };
                kv.txn(txn(ops)).await?;
                writes += 1;
                tokio::time::sleep(pause).await;
            }
            Ok(writes)
        });
        Ok(Self { stop, task })
    }

    /// Stops it; tells how many writes there were.
    ///
    /// # Errors
    /// One of them failed.
    pub async fn stop(self) -> Result<u64> {
        self.stop.send_replace(true);
        self.task.await?
    }
}

/// All events from a revision to another.
///
/// # Errors
/// The server does not answer, or has compacted it.
pub async fn events(server: &Server, from: i64, to: i64) -> Result<Vec<Event>> {
    let create =
        pb::WatchCreateRequest { key: "\0".into(), range_end: "\0".into(), start_revision: from, ..Default::default() };
    let create = pb::WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
    let asks = tokio_stream::StreamExt::chain(tokio_stream::once(create), tokio_stream::pending());
    let mut client = WatchClient::new(server.connect().await?).max_decoding_message_size(usize::MAX);
    let mut answers = client.watch(asks).await?.into_inner();
    let mut events = vec![];
    loop {
        let answer = answers.message().await?.context("the watch ended")?;
        anyhow::ensure!(!answer.canceled, "canceled: {} {}", answer.cancel_reason, answer.compact_revision);
        events.extend(answer.events);
        if events.last().and_then(|event| event.kv.as_ref()).is_some_and(|kv| kv.mod_revision >= to) {
            return Ok(events);
        }
    }
}
