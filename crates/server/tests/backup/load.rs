//! What clients write, and what they see.

use anyhow::{Context, Result, ensure};
use eddy_proto::etcdserverpb as pb;
use eddy_proto::etcdserverpb::kv_client::KvClient;
use eddy_proto::etcdserverpb::lease_client::LeaseClient;
use eddy_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use eddy_proto::etcdserverpb::request_op::Request;
use eddy_proto::mvccpb::KeyValue;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tonic::transport::Channel;

use super::support::Server;

async fn kv(server: &Server) -> Result<KvClient<Channel>> {
    Ok(KvClient::new(server.connect().await?).max_decoding_message_size(usize::MAX))
}

fn put_request(key: &str, value: &str, lease: i64) -> pb::PutRequest {
    pb::PutRequest { key: key.to_owned().into(), value: value.to_owned().into(), lease, ..Default::default() }
}

fn delete_request(key: &'static str, end: &'static str) -> pb::DeleteRangeRequest {
    pb::DeleteRangeRequest { key: key.into(), range_end: end.into(), ..Default::default() }
}

/// Puts one key; tells the revision.
///
/// # Errors
/// The server refuses.
pub async fn put(server: &Server, key: &str, value: &str) -> Result<i64> {
    let reply = kv(server).await?.put(put_request(key, value, 0)).await?.into_inner();
    Ok(reply.header.context("no header")?.revision)
}

/// Reads one key.
///
/// # Errors
/// It is not there.
pub async fn get(server: &Server, key: &'static str) -> Result<KeyValue> {
    let request = pb::RangeRequest { key: key.into(), ..Default::default() };
    kv(server).await?.range(request).await?.into_inner().kvs.pop().context("no such key")
}

/// All keys at a revision; 0 is now.
///
/// # Errors
/// The revision is compacted or yet to come.
pub async fn all(server: &Server, revision: i64) -> Result<Vec<KeyValue>> {
    let request = pb::RangeRequest { key: "\0".into(), range_end: "\0".into(), revision, ..Default::default() };
    Ok(kv(server).await?.range(request).await?.into_inner().kvs)
}

/// The newest revision.
///
/// # Errors
/// The server does not answer.
pub async fn revision(server: &Server) -> Result<i64> {
    let request = pb::RangeRequest { key: "\0".into(), ..Default::default() };
    Ok(kv(server).await?.range(request).await?.into_inner().header.context("no header")?.revision)
}

/// All leases: the time that was granted, and the keys on each.
///
/// # Errors
/// The server does not answer.
pub async fn leases(server: &Server) -> Result<Vec<(i64, i64, Vec<Vec<u8>>)>> {
    let mut client = LeaseClient::new(server.connect().await?);
    let mut leases = vec![];
    for lease in client.lease_leases(pb::LeaseLeasesRequest {}).await?.into_inner().leases {
        let request = pb::LeaseTimeToLiveRequest { id: lease.id, keys: true };
        let told = client.lease_time_to_live(request).await?.into_inner();
        let mut keys: Vec<Vec<u8>> = told.keys.iter().map(|key| key.to_vec()).collect();
        keys.sort_unstable();
        leases.push((lease.id, told.granted_ttl, keys));
    }
    leases.sort_unstable();
    Ok(leases)
}

/// Alarms that are raised.
///
/// # Errors
/// The server does not answer.
pub async fn alarms(server: &Server) -> Result<Vec<pb::AlarmMember>> {
    let mut client = MaintenanceClient::new(server.connect().await?);
    Ok(client.alarm(pb::AlarmRequest::default()).await?.into_inner().alarms)
}

/// `HashKV`.
///
/// # Errors
/// The server does not answer.
pub async fn hash(server: &Server, revision: i64) -> Result<u32> {
    let mut client = MaintenanceClient::new(server.connect().await?);
    Ok(client.hash_kv(pb::HashKvRequest { revision }).await?.into_inner().hash)
}

/// Writes of every kind, and a compaction among them. Tells the compacted and the newest revision.
///
/// # Errors
/// The server refuses.
pub async fn history(server: &Server) -> Result<(i64, i64)> {
    let channel = server.connect().await?;
    let (mut kv, mut leases) = (KvClient::new(channel.clone()), LeaseClient::new(channel));
    for (id, ttl) in [(1000, 500), (2000, 9_000), (3000, 60)] {
        leases.lease_grant(pb::LeaseGrantRequest { id, ttl }).await?;
    }
    let mut compacted = 0;
    for n in 0..400_i64 {
        let lease = if n % 7 == 3 { 1000 * (1 + n % 2) } else { 0 };
        let reply = kv.put(put_request(&format!("k{}", n % 37), &format!("v{n}"), lease)).await?.into_inner();
        if n % 50 == 20 {
            kv.delete_range(delete_request("k2", "k24")).await?;
        }
        if n % 60 == 30 {
            let put = |key: &str| Some(Request::RequestPut(put_request(key, &format!("t{n}"), 0)));
            let success =
                [put("t1"), put("t2"), Some(Request::RequestDeleteRange(delete_request("k3", "k5"))), put("t3")];
            let success = success.into_iter().map(|request| pb::RequestOp { request }).collect();
            kv.txn(pb::TxnRequest { success, ..Default::default() }).await?;
        }
        if n == 250 {
            compacted = reply.header.context("no header")?.revision;
            kv.compact(pb::CompactionRequest { revision: compacted, physical: true }).await?;
        }
    }
    // Values that take pages of their own, of no byte, and bytes that are no text.
    kv.put(put_request("large", &"l".repeat(1_400_000), 0)).await?;
    kv.put(put_request("empty", "", 0)).await?;
    let odd = pb::PutRequest { key: vec![0, 255, 1].into(), value: vec![254; 4080].into(), ..Default::default() };
    kv.put(odd).await?;
    leases.lease_revoke(pb::LeaseRevokeRequest { id: 3000 }).await?;
    let revision = revision(server).await?;
    ensure!(compacted > 0 && revision > compacted + 100);
    Ok((compacted, revision))
}

/// Puts that go on until they are stopped.
pub struct Load {
    stop: watch::Sender<bool>,
    task: JoinHandle<Result<u64>>,
}

impl Load {
    /// Starts them.
    ///
    /// # Errors
    /// The server cannot be reached.
    pub async fn start(server: &Server) -> Result<Self> {
        let (mut kv, (stop, stopped)) = (kv(server).await?, watch::channel(false));
        let task = tokio::spawn(async move {
            let mut puts = 0;
            while !*stopped.borrow() {
                kv.put(put_request(&format!("load{}", puts % 500), &puts.to_string(), 0)).await?;
                puts += 1;
            }
            Ok(puts)
        });
        Ok(Self { stop, task })
    }

    /// Stops them; tells how many there were.
    ///
    /// # Errors
    /// One of them failed.
    pub async fn stop(self) -> Result<u64> {
        self.stop.send_replace(true);
        self.task.await?
    }
}
