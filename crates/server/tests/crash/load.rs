//! Clients that write, read and watch until the server is gone, and note what they were told.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use eddy_proto::etcdserverpb::{compare::CompareResult, compare::CompareTarget, watch_request::RequestUnion, *};
use rand::{Rng, SeedableRng, rngs::SmallRng};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, transport::Channel};

use crate::model::{Ack, COUNTER, Round, Watched};

/// Few enough keys that writers meet, enough that histories differ.
const KEYS: u32 = 24;
/// Leases outlive the test; that they end at their time is tested elsewhere.
const TTL: i64 = 3600;
/// A compaction keeps at least this many revisions for watchers that are behind.
const KEEP: i64 = 300;

/// The notes of all clients of one life of the server.
#[derive(Clone, Default)]
pub struct Notes(Arc<Mutex<Round>>);

impl Notes {
    pub fn new(watchers: usize) -> Notes {
        Notes(Arc::new(Mutex::new(Round { watched: vec![Watched::default(); watchers], ..Round::default() })))
    }

    fn lock(&self) -> MutexGuard<'_, Round> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the notes out, when all clients have ended.
    pub fn take(&self) -> Round {
        std::mem::take(&mut self.lock())
    }

    fn header(&self, header: Option<ResponseHeader>) -> i64 {
        let revision = header.map_or(0, |h| h.revision);
        let mut round = self.lock();
        round.highest = round.highest.max(revision);
        revision
    }

    fn ack(&self, header: Option<ResponseHeader>, changes: Vec<(String, Option<String>)>) {
        let revision = self.header(header);
        self.lock().acks.push(Ack { revision, changes });
    }
}

/// One client that writes and reads.
pub struct Writer {
    pub name: String,
    pub rng: SmallRng,
    pub notes: Notes,
    /// Leases that may be used and revoked by this client alone.
    pub leases: Vec<i64>,
    kv: kv_client::KvClient<Channel>,
    lease: lease_client::LeaseClient<Channel>,
    count: u64,
}

impl Writer {
    pub fn new(name: String, seed: u64, notes: Notes, channel: Channel) -> Writer {
        Writer {
            name,
            rng: SmallRng::seed_from_u64(seed),
            notes,
            leases: Vec::new(),
            kv: kv_client::KvClient::new(channel.clone()),
            lease: lease_client::LeaseClient::new(channel),
            count: 0,
        }
    }

    /// Works until the server is gone. What is under way then may have happened or not.
    pub async fn run(mut self) {
        loop {
            let step = match self.rng.random_range(0..20) {
                0..9 => self.put().await,
                9..12 => self.delete().await,
                12..15 => self.swap().await,
                15 => self.count_up().await,
                16 => self.grant().await,
                17 => self.revoke().await,
                _ => self.read().await,
            };
            match step {
                Ok(()) => {}
                // A lease that is gone, a full queue: an answer, not the end.
                Err(status) if matches!(status.code(), Code::NotFound | Code::ResourceExhausted) => {}
                Err(_) => return,
            }
        }
    }

    fn key(&mut self) -> String {
        format!("k{}", self.rng.random_range(0..KEYS))
    }

    fn value(&mut self) -> String {
        self.count += 1;
        let value = format!("{}.{}", self.name, self.count);
        self.notes.lock().issued.push(value.clone());
        value
    }

    async fn put(&mut self) -> Result<(), Status> {
        let (key, value) = (self.key(), self.value());
        let lease = if self.leases.is_empty() || self.rng.random_ratio(3, 4) {
            0
        } else {
            self.leases[self.rng.random_range(0..self.leases.len())]
        };
        let request = PutRequest { key: key.clone().into(), value: value.clone().into(), lease, ..Default::default() };
        let answer = self.kv.put(request).await?.into_inner();
        self.notes.ack(answer.header, vec![(key, Some(value))]);
        Ok(())
    }

    async fn delete(&mut self) -> Result<(), Status> {
        let key = self.key();
        let request = DeleteRangeRequest { key: key.clone().into(), ..Default::default() };
        let answer = self.kv.delete_range(request).await?.into_inner();
        let changes = if answer.deleted > 0 { vec![(key, None)] } else { Vec::new() };
        self.notes.ack(answer.header, changes);
        Ok(())
    }

    /// Writes two keys at once if the first has not changed since it was read.
    async fn swap(&mut self) -> Result<(), Status> {
        let (a, b, value) = (self.key(), format!("p{}", self.rng.random_range(0..KEYS)), self.value());
        let now = self.get(&a).await?.map_or(0, |kv| kv.mod_revision);
        let changes = vec![(a.clone(), Some(value.clone())), (b, Some(value))];
        self.write_if(&a, now, changes).await
    }

    async fn count_up(&mut self) -> Result<(), Status> {
        let before = self.get(COUNTER).await?;
        let revision = before.as_ref().map_or(0, |kv| kv.mod_revision);
        let count = before.map_or(0, |kv| String::from_utf8_lossy(&kv.value).parse::<u64>().unwrap_or(0));
        let value = (count + 1).to_string();
        self.notes.lock().issued.push(value.clone());
        self.write_if(COUNTER, revision, vec![(COUNTER.into(), Some(value))]).await
    }

    async fn write_if(&mut self, key: &str, rev: i64, changes: Vec<(String, Option<String>)>) -> Result<(), Status> {
        let put = |(key, value): &(String, Option<String>)| RequestOp {
            request: Some(request_op::Request::RequestPut(PutRequest {
                key: key.clone().into(),
                value: value.clone().unwrap_or_default().into(),
                ..Default::default()
            })),
        };
        let unchanged = Compare {
            result: CompareResult::Equal.into(),
            target: CompareTarget::Mod.into(),
            key: key.to_owned().into(),
            target_union: Some(compare::TargetUnion::ModRevision(rev)),
            ..Default::default()
        };
        let success = changes.iter().map(put).collect();
        let answer = self.kv.txn(TxnRequest { compare: vec![unchanged], success, failure: vec![] }).await?.into_inner();
        self.notes.ack(answer.header, if answer.succeeded { changes } else { Vec::new() });
        Ok(())
    }

    async fn get(&mut self, key: &str) -> Result<Option<eddy_proto::mvccpb::KeyValue>, Status> {
        let serializable = self.rng.random_ratio(1, 3);
        let request = RangeRequest { key: key.to_owned().into(), serializable, ..Default::default() };
        let answer = self.kv.range(request).await?.into_inner();
        self.notes.header(answer.header);
        self.notes.lock().read.extend(answer.kvs.iter().cloned());
        Ok(answer.kvs.into_iter().next())
    }

    async fn read(&mut self) -> Result<(), Status> {
        let key = self.key();
        self.get(&key).await.map(drop)
    }

    async fn grant(&mut self) -> Result<(), Status> {
        let answer = self.lease.lease_grant(LeaseGrantRequest { ttl: TTL, id: 0 }).await?.into_inner();
        self.notes.lock().granted.push(answer.id);
        self.leases.push(answer.id);
        Ok(())
    }

    async fn revoke(&mut self) -> Result<(), Status> {
        let Some(id) = self.leases.pop() else { return Ok(()) };
        self.notes.lock().revoked.insert(id, false);
        let answer = self.lease.lease_revoke(LeaseRevokeRequest { id }).await?.into_inner();
        self.notes.header(answer.header);
        self.notes.lock().revoked.insert(id, true);
        Ok(())
    }
}

/// Watches everything after `last` until the server is gone; asks for progress now and then.
pub async fn watcher(n: usize, last: i64, notes: Notes, channel: Channel) {
    let (requests, outgoing) = mpsc::channel(8);
    let create = WatchCreateRequest {
        key: "\0".into(),
        range_end: "\0".into(),
        start_revision: last + 1,
        ..WatchCreateRequest::default()
    };
    let ask = |request| WatchRequest { request_union: Some(request) };
    if requests.send(ask(RequestUnion::CreateRequest(create))).await.is_err() {
        return;
    }
    let mut client = watch_client::WatchClient::new(channel).max_decoding_message_size(usize::MAX);
    let Ok(answers) = client.watch(ReceiverStream::new(outgoing)).await else { return };
    let mut answers = answers.into_inner();
    while let Ok(Some(answer)) = answers.message().await {
        let progress = !answer.created && !answer.canceled && answer.events.is_empty();
        let revision = notes.header(answer.header);
        {
            let watched = &mut notes.lock().watched[n];
            if progress {
                watched.complete_to = revision;
            }
            let first = answer.events.first().and_then(|e| e.kv.as_ref()).map_or(i64::MAX, |kv| kv.mod_revision);
            if first <= watched.complete_to {
                watched.broken.push(format!("an event of revision {first} after progress {}", watched.complete_to));
            }
            watched.events.extend(answer.events);
        }
        if requests.try_send(ask(RequestUnion::ProgressRequest(WatchProgressRequest {}))).is_err() {
            continue; // enough are under way
        }
    }
}

/// Compacts behind the writers now and then until the server is gone, but never what a watcher still needs.
pub async fn compactor(needed: i64, notes: Notes, channel: Channel, mut rng: SmallRng) {
    let mut kv = kv_client::KvClient::new(channel);
    loop {
        tokio::time::sleep(std::time::Duration::from_millis(rng.random_range(5..40))).await;
        let revision = (notes.lock().highest - KEEP).min(needed);
        if revision <= notes.lock().compacted {
            continue;
        }
        notes.lock().compacting = revision;
        let request = CompactionRequest { revision, physical: rng.random_ratio(1, 2) };
        match kv.compact(request).await {
            Ok(answer) => {
                notes.header(answer.into_inner().header);
                notes.lock().compacted = revision;
            }
            Err(status) if status.code() == Code::OutOfRange => notes.lock().compacted = revision,
            Err(_) => return,
        }
    }
}

/// Leases by writer, so that no two writers use the same.
pub fn share(leases: &[i64], writers: usize) -> BTreeMap<usize, Vec<i64>> {
    let mut shares: BTreeMap<usize, Vec<i64>> = BTreeMap::new();
    for (n, id) in leases.iter().enumerate() {
        shares.entry(n % writers).or_default().push(*id);
    }
    shares
}
