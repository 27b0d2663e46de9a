//! Runs steps on one server and reports what it answered, in a form in which two servers can be compared.

mod services;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use eddy_proto::etcdserverpb::*;
use tonic::{Code, Status, transport::Channel};

use crate::{
    op::{self, Lease, Op, Rev},
    requests::Names,
    seen::{Seen, normal_header},
    streams::Stream,
    ties,
};

/// No answer within this time is itself a difference.
const ANSWER_WITHIN: Duration = Duration::from_secs(6);
/// How long the answer to a progress request may take. Many have none.
const PROGRESS_TIME: Duration = Duration::from_millis(50);
/// Stands for the n-th server-chosen lease in what is compared; above any id that a sequence names.
const LEASE_SYMBOL: i64 = 7_000_000_000_000_000_000;
/// Pads histories so that two servers get to the same revision.
const PAD_KEY: &str = "\u{7f}pad";

/// One server as one sequence sees it.
pub struct Session {
    channel: Channel,
    kv: kv_client::KvClient<Channel>,
    lease: lease_client::LeaseClient<Channel>,
    maintenance: maintenance_client::MaintenanceClient<Channel>,
    /// Leases whose id the server chose, in the order of their grants.
    granted: Vec<i64>,
    /// The revision of the last answer.
    now: i64,
    compacted: i64,
    /// The revisions of all compactions of this process.
    compactions: BTreeSet<i64>,
    pub streams: BTreeMap<u8, Stream>,
}

impl Session {
    pub fn new(channel: Channel) -> Session {
        Session {
            kv: kv_client::KvClient::new(channel.clone()).max_decoding_message_size(usize::MAX),
            lease: lease_client::LeaseClient::new(channel.clone()),
            maintenance: maintenance_client::MaintenanceClient::new(channel.clone()),
            channel,
            granted: Vec::new(),
            now: 0,
            compacted: 0,
            compactions: BTreeSet::new(),
            streams: BTreeMap::new(),
        }
    }

    /// Begins another sequence on the same process.
    pub fn renewed(&mut self, channel: Channel) -> Session {
        let mut next = Session::new(channel);
        next.compactions = std::mem::take(&mut self.compactions);
        next
    }

    /// Goes on after the server was stopped, or `killed`, and started again: its watchers are gone.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn resume(self, channel: Channel, killed: bool) -> Result<Session> {
        let mut next = Session::new(channel);
        (next.granted, next.now, next.compacted) = (self.granted, self.now, self.compacted);
        if killed {
            // What etcd had not committed to its store it does again from its log, compactions included.
            next.compactions = self.compactions;
        }
        next.storage_version_known().await?;
        Ok(next)
    }

    /// Empties the server: no keys, leases, alarms, watchers or history.
    ///
    /// # Errors
    /// The server refuses what a fresh one accepts.
    pub async fn clear(&mut self) -> Result<()> {
        self.streams.clear();
        for alarm in 0..4 {
            let action = alarm_request::AlarmAction::Deactivate.into();
            self.maintenance.alarm(AlarmRequest { action, member_id: 0, alarm }).await?;
        }
        let leases = self.lease.lease_leases(LeaseLeasesRequest {}).await?.into_inner().leases;
        for lease in leases {
            self.lease.lease_revoke(LeaseRevokeRequest { id: lease.id }).await?;
        }
        self.wipe().await?;
        self.granted.clear();
        Ok(())
    }

    async fn wipe(&mut self) -> Result<()> {
        let all = DeleteRangeRequest { key: "\0".into(), range_end: "\0".into(), ..Default::default() };
        let header = self.kv.delete_range(all).await?.into_inner().header;
        self.now = header.map_or(0, |h| h.revision);
        Ok(())
    }

    /// Brings a cleared server to `revision` and hides all history.
    ///
    /// # Errors
    /// As [`Session::clear`].
    pub async fn align(&mut self, revision: i64) -> Result<()> {
        // The last revision is the delete of the padding.
        while self.now < revision - 1 {
            let put = PutRequest { key: PAD_KEY.into(), ..Default::default() };
            self.now = self.kv.put(put).await?.into_inner().header.map_or(0, |h| h.revision);
        }
        self.wipe().await?;
        if self.now != revision {
            bail!("the server is at revision {}, not {revision}", self.now);
        }
        if self.compacted < revision {
            self.kv.compact(CompactionRequest { revision, physical: true }).await?;
            self.compacted = revision;
            self.compactions.insert(revision);
        }
        Ok(())
    }

    /// Waits until the server has settled its storage version, which a real etcd does shortly after its start.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn storage_version_known(&mut self) -> Result<()> {
        let deadline = Instant::now() + ANSWER_WITHIN;
        while Instant::now() < deadline {
            let status = self.maintenance.status(StatusRequest {}).await?.into_inner();
            if status.version.starts_with(status.storage_version.trim_end_matches('0'))
                && !status.storage_version.is_empty()
            {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(()) // what it answers then is compared
    }

    /// The last revision that the server answered.
    pub fn now(&self) -> i64 {
        self.now
    }

    fn names(&self) -> Names<'_> {
        Names { now: self.now, compacted: self.compacted, granted: &self.granted }
    }

    fn revision(&self, rev: Rev) -> i64 {
        self.names().revision(rev)
    }

    fn lease_id(&self, lease: Lease) -> i64 {
        self.names().lease_id(lease)
    }

    /// What stands for a lease id when two servers are compared.
    pub fn symbol(&self, id: i64) -> i64 {
        match self.granted.iter().position(|g| *g == id) {
            Some(n) => LEASE_SYMBOL + n as i64,
            None => id,
        }
    }

    fn symbol_in(&self, kv: &mut eddy_proto::mvccpb::KeyValue) {
        kv.lease = self.symbol(kv.lease);
    }

    /// Runs one step; watch steps that need an answer wait for it.
    pub async fn run(&mut self, op: &Op) -> Seen {
        match tokio::time::timeout(ANSWER_WITHIN, self.perform(op)).await {
            Ok(seen) => seen,
            Err(_) => Seen::NoAnswer,
        }
    }

    async fn perform(&mut self, op: &Op) -> Seen {
        let answer = match op {
            Op::Range(r) => self.range(r).await,
            Op::RangeStream(r) => self.range_stream(r).await,
            Op::Put(p) => self.put(p).await,
            Op::Delete(d) => self.delete(d).await,
            Op::Txn(t) => self.txn(t).await,
            Op::Compact(c) => self.compact(c).await,
            Op::Watch(w) => self.watch(w).await,
            Op::Cancel(c) => self.watch_control(c.stream, Some(c.watch_id)).await,
            Op::EmptyWatch { stream } => self.watch_control(*stream, None).await,
            Op::Progress { stream } => return self.progress(*stream).await,
            Op::CloseStream { stream } => {
                self.streams.remove(stream);
                return Seen::Done;
            }
            Op::Settle | Op::Restart { .. } => return Seen::Done,
            Op::Grant(g) => self.grant(g).await,
            Op::Revoke(lease) => self.revoke(*lease).await,
            Op::KeepAlive(lease) => self.keep_alive(*lease).await,
            Op::TimeToLive(t) => self.time_to_live(t).await,
            Op::Leases => self.leases().await,
            Op::AwaitExpiry(lease) => self.await_expiry(*lease).await,
            Op::MemberList { linearizable } => self.member_list(*linearizable).await,
            Op::Status => self.status().await,
            Op::Hash => self.hash().await,
            Op::HashKv(rev) => self.hash_kv(*rev).await,
            Op::Alarm(a) => self.alarm(a).await,
            Op::AuthStatus => self.auth_status().await,
            Op::Defragment => self.defragment().await,
            Op::Unknown(path) => self.unknown(path).await,
        };
        answer.unwrap_or_else(|status| Seen::Error(status.code(), status.message().to_owned()))
    }

    fn learn(&mut self, header: &mut Option<ResponseHeader>) {
        if let Some(h) = header {
            self.now = h.revision;
            normal_header(h);
        }
    }

    async fn range(&mut self, r: &op::Range) -> Result<Seen, Status> {
        let mut answer = self.kv.range(self.names().range(r)).await?.into_inner();
        self.learn(&mut answer.header);
        answer.kvs.iter_mut().for_each(|kv| self.symbol_in(kv));
        ties::settle(r, &mut answer);
        Ok(Seen::Range(answer))
    }

    /// The chunks as one answer: how a range is cut is the server's affair.
    async fn range_stream(&mut self, r: &op::Range) -> Result<Seen, Status> {
        let mut chunks = self.kv.range_stream(self.names().range(r)).await?.into_inner();
        let (mut whole, mut n, mut headers) = (RangeResponse::default(), 0, Vec::new());
        while let Some(chunk) = chunks.message().await? {
            let part = chunk.range_response.unwrap_or_default();
            if let Some(header) = part.header {
                headers.push(n == 0);
                whole.header = Some(header);
            }
            whole.kvs.extend(part.kvs);
            whole.more |= part.more;
            whole.count += part.count;
            n += 1;
        }
        self.learn(&mut whole.header);
        whole.kvs.iter_mut().for_each(|kv| self.symbol_in(kv));
        ties::settle(r, &mut whole);
        Ok(Seen::RangeStream { whole, headers: headers.len() })
    }

    async fn put(&mut self, p: &op::Put) -> Result<Seen, Status> {
        let mut answer = self.kv.put(self.names().put(p)).await?.into_inner();
        self.learn(&mut answer.header);
        answer.prev_kv.iter_mut().for_each(|kv| self.symbol_in(kv));
        Ok(Seen::Put(answer))
    }

    async fn delete(&mut self, d: &op::Delete) -> Result<Seen, Status> {
        let mut answer = self.kv.delete_range(self.names().delete(d)).await?.into_inner();
        self.learn(&mut answer.header);
        answer.prev_kvs.iter_mut().for_each(|kv| self.symbol_in(kv));
        Ok(Seen::Delete(answer))
    }

    async fn txn(&mut self, t: &op::Txn) -> Result<Seen, Status> {
        let mut answer = self.kv.txn(self.names().txn(t)).await?.into_inner();
        self.learn(&mut answer.header);
        self.normal_txn(&mut answer);
        ties::settle_txn(t, &mut answer);
        Ok(Seen::Txn(answer))
    }

    fn normal_txn(&self, answer: &mut TxnResponse) {
        use response_op::Response;
        answer.header.iter_mut().for_each(normal_header);
        for response in answer.responses.iter_mut().filter_map(|r| r.response.as_mut()) {
            match response {
                Response::ResponseRange(r) => {
                    r.header.iter_mut().for_each(normal_header);
                    r.kvs.iter_mut().for_each(|kv| self.symbol_in(kv));
                }
                Response::ResponsePut(p) => {
                    p.header.iter_mut().for_each(normal_header);
                    p.prev_kv.iter_mut().for_each(|kv| self.symbol_in(kv));
                }
                Response::ResponseDeleteRange(d) => {
                    d.header.iter_mut().for_each(normal_header);
                    d.prev_kvs.iter_mut().for_each(|kv| self.symbol_in(kv));
                }
                Response::ResponseTxn(t) => self.normal_txn(t),
            }
        }
    }

    async fn compact(&mut self, c: &op::Compact) -> Result<Seen, Status> {
        let revision = self.revision(c.revision);
        let mut answer = self.kv.compact(CompactionRequest { revision, physical: c.physical }).await?.into_inner();
        self.compacted = revision;
        self.compactions.insert(revision);
        self.learn(&mut answer.header);
        Ok(Seen::Compact(answer))
    }

    async fn stream(&mut self, n: u8) -> Result<&mut Stream, Status> {
        if !self.streams.contains_key(&n) {
            let stream = Stream::open(self.channel.clone()).await?;
            self.streams.insert(n, stream);
        }
        self.streams.get_mut(&n).ok_or_else(|| Status::internal("the stream was just opened"))
    }

    async fn watch(&mut self, w: &op::Watch) -> Result<Seen, Status> {
        let request = WatchCreateRequest {
            key: w.key.0.clone().into(),
            range_end: w.range_end.0.clone().into(),
            start_revision: self.revision(w.start),
            progress_notify: w.progress_notify,
            filters: w.filters.clone(),
            prev_kv: w.prev_kv,
            watch_id: w.watch_id,
            fragment: w.fragment,
        };
        Ok(Seen::Control(
            self.stream(w.stream).await?.control(watch_request::RequestUnion::CreateRequest(request)).await?,
        ))
    }

    async fn watch_control(&mut self, stream: u8, cancel: Option<i64>) -> Result<Seen, Status> {
        let stream = self.stream(stream).await?;
        Ok(Seen::Control(match cancel {
            Some(watch_id) => {
                stream.control(watch_request::RequestUnion::CancelRequest(WatchCancelRequest { watch_id })).await?
            }
            None => stream.empty_request().await?,
        }))
    }

    /// Whether a manual progress request was answered before the next event, and with which revision.
    async fn progress(&mut self, n: u8) -> Seen {
        let stream = match self.stream(n).await {
            Ok(stream) => stream,
            Err(status) => return Seen::Error(status.code(), status.message().to_owned()),
        };
        if let Err(status) = stream.ask_progress().await {
            return Seen::Error(status.code(), status.message().to_owned());
        }
        // The sentinel goes another way: it must not overtake the request. There may be no answer at all.
        stream.progress_came(PROGRESS_TIME).await;
        match self.sentinel().await {
            Ok(true) => Seen::Progress(self.streams.get_mut(&n).map(Stream::take_progress).unwrap_or_default()),
            // Without the sentinel's event there is no telling when an answer should have come.
            Ok(false) => Seen::Progress(Vec::new()),
            Err(status) => Seen::Error(status.code(), status.message().to_owned()),
        }
    }

    /// Writes a key that every stream watches and waits until each has seen it. All earlier events of watchers that are
    /// not behind came before it. False when a raised alarm forbids the write.
    ///
    /// # Errors
    /// The write is refused otherwise, or a stream has ended.
    pub async fn sentinel(&mut self) -> Result<bool, Status> {
        if self.streams.is_empty() {
            return Ok(true);
        }
        let put = PutRequest { key: crate::streams::SENTINEL.into(), ..Default::default() };
        match self.kv.put(put).await {
            Ok(answer) => self.now = answer.into_inner().header.map_or(self.now, |h| h.revision),
            Err(status) if matches!(status.code(), Code::ResourceExhausted | Code::DataLoss) => return Ok(false),
            Err(status) => return Err(status),
        }
        for stream in self.streams.values() {
            stream.reached(self.now).await?;
        }
        Ok(true)
    }
}
