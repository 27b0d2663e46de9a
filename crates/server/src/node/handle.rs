//! The node's handle: reads, status and shutdown. Its holder sees neither the threads nor the journal. The calls that
//! change something are in `calls`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use eddy_crdt::{
    Alarm, Identity, Key, LeaseId, LeaseStatus, PastValues, RangeOp, RangeReply, ReadAt, Refusal, Replica, Revision,
    Tally, Txn, TxnReply, Users,
};
use tokio::sync::oneshot;

use super::engine::{Engine, Threads};
use super::error::NodeError;
use super::hold::Hold;
use super::hub::WatchCounts;
use super::pipe::Work;
use super::slow;
use super::state::{HashKv, NodeState, SIZE_MIN, Status};

/// How often a shutdown checks whether the disk still answers, while a thread runs.
const ENDED_EVERY: Duration = Duration::from_secs(1);

/// Versions that go into a hash under one lock: writes wait for less than a millisecond.
const HASHED_AT_ONCE: usize = 1024;

/// Keys of a range that are looked at under one lock. Tests have few keys.
const LOOKED_AT_ONCE: usize = if cfg!(debug_assertions) { 3 } else { 1024 };

/// How long a client waits for its answer, as in etcd. A disk that does not answer must not hold clients for ever.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(7);

/// The node as all other parts see it: commands in, answers and events out. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Handle {
    pub(super) engine: Arc<Engine>,
}

impl Handle {
    /// The durable revision, for headers.
    pub fn revision(&self) -> Revision {
        self.engine.durable_revision()
    }

    /// The replica's identity.
    pub fn identity(&self) -> Identity {
        self.engine.identity
    }

    /// Reads a range: linearizable (see the module). Each lock is held for a slice of it only.
    ///
    /// # Errors
    /// When the revision asked for is compacted or yet to come.
    pub async fn range(&self, op: &RangeOp) -> Result<RangeReply, NodeError> {
        let since = Instant::now();
        let reply = self.range_in_slices(op).await;
        let refusal = match &reply {
            Ok(_) => None,
            Err(NodeError::Refused(refusal)) => Some(refusal),
            Err(_) => return reply,
        };
        self.engine.metrics.done(&Tally::range());
        self.engine.metrics.range(since.elapsed(), refusal.is_none());
        self.engine.note_applied(since, "read-only range ", || slow::range(&op.range), refusal);
        reply
    }

    async fn range_in_slices(&self, op: &RangeOp) -> Result<RangeReply, NodeError> {
        let engine = &self.engine;
        let (mut walk, mut done, _hold) = {
            let replica = engine.replica.read();
            // Under the lock: no compaction above it can have been swept.
            let as_of = engine.durable_revision();
            let begun = replica.begin_range(op, as_of);
            if let (Err(Refusal::Compacted), ReadAt::Revision(at)) = (&begun, op.at)
                && replica.is_foreign(at, as_of)
            {
                engine.met_foreign(at);
            }
            let mut walk = begun?;
            let done = replica.range_on(&mut walk, LOOKED_AT_ONCE)?;
            let hold = (!done || walk.is_lacking()).then(|| Hold::new(engine, Some(walk.at())));
            (walk, done, hold)
        };
        while !done {
            done = engine.replica.read().range_on(&mut walk, LOOKED_AT_ONCE)?;
        }
        if walk.is_lacking() {
            walk.fill(&engine.recall(walk.lacking()).await?);
        }
        Ok(walk.finish())
    }

    /// Evaluates a transaction that only reads, as [`Self::range`].
    ///
    /// # Errors
    /// As [`Self::range`].
    pub async fn read_txn(&self, txn: &Txn) -> Result<TxnReply, NodeError> {
        let since = Instant::now();
        let mut tally = Tally::default();
        let reply = self.whole(|replica, as_of, past| {
            tally = Tally::default();
            replica.read_txn(txn, as_of, &mut tally, past)
        });
        let reply = reply.await?;
        self.engine.metrics.done(&tally);
        self.engine.note_applied(since, "read-only txn ", || slow::read_txn(txn), reply.as_ref().err());
        Ok(reply?)
    }

    /// Reads as of the last durable revision, again when replaced values had to be read from the journal first.
    async fn whole<T>(
        &self,
        mut read: impl FnMut(&Replica, Revision, &PastValues) -> Result<T, Refusal>,
    ) -> Result<Result<T, Refusal>, NodeError> {
        let mut past = PastValues::default();
        loop {
            let reply = {
                let replica = self.engine.replica.read();
                // Under the lock: no compaction above it can have been swept.
                read(&replica, self.engine.durable_revision(), &past)
            };
            let missing = past.missing();
            if missing.is_empty() {
                return Ok(reply);
            }
            past.add(self.engine.recall(missing).await?);
        }
    }

    /// The users and roles that are on disk.
    pub fn users(&self) -> Arc<Users> {
        Arc::clone(&self.engine.peering.durable.borrow().users)
    }

    /// The same, if calls need a user.
    pub fn users_if_enabled(&self) -> Option<Arc<Users>> {
        self.engine.peering.users_if_enabled()
    }

    /// The keys that hang on a lease, as they are now.
    pub fn keys_of_lease(&self, id: LeaseId) -> Vec<Key> {
        self.engine.replica.read().lease(self.engine.now(), id).map(|lease| lease.keys).unwrap_or_default()
    }

    /// The keys that hang on any lease, as they are now.
    pub fn keys_of_leases(&self) -> Vec<Key> {
        let (replica, now) = (self.engine.replica.read(), self.engine.now());
        replica.leases(now).filter_map(|(id, _)| replica.lease(now, id)).flat_map(|lease| lease.keys).collect()
    }

    /// A number of the journal that grows with each change.
    pub fn journal_number(&self) -> u64 {
        *self.engine.durable_number.borrow()
    }

    /// Waits until everything before that journal number is durable.
    pub(super) async fn durable_up_to(&self, number: u64) -> Result<(), NodeError> {
        let mut durable = self.engine.durable_number.subscribe();
        loop {
            if *durable.borrow_and_update() >= number {
                return Ok(());
            }
            if !self.engine.is_writable() {
                return Err(self.engine.write_error());
            }
            match tokio::time::timeout(REQUEST_TIMEOUT, durable.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return Err(NodeError::Stopped),
                Err(_) => return Err(NodeError::TimedOut),
            }
        }
    }

    /// The status of a lease; `None` when there is no such lease.
    ///
    /// # Errors
    /// When writes have stopped, so that what was read will never be durable.
    pub async fn lease(&self, id: LeaseId) -> Result<Option<LeaseStatus>, NodeError> {
        let (status, number) = {
            let replica = self.engine.replica.read();
            (replica.lease(self.engine.now(), id), replica.next_number())
        };
        self.durable_up_to(number).await?;
        Ok(status)
    }

    /// All leases, those with the least time left first, as etcd lists them.
    ///
    /// # Errors
    /// As [`Self::lease`].
    pub async fn leases(&self) -> Result<Vec<LeaseId>, NodeError> {
        let (mut leases, number) = {
            let replica = self.engine.replica.read();
            let leases: Vec<(LeaseId, u64)> = replica.leases(self.engine.now()).collect();
            (leases, replica.next_number())
        };
        self.durable_up_to(number).await?;
        leases.sort_by_key(|(_, left_ms)| *left_ms);
        Ok(leases.into_iter().map(|(id, _)| id).collect())
    }

    /// The hash that etcd's HashKV gives at that revision, or now. After a compaction at that revision the answer stays
    /// the same, as long as the node remembers it.
    ///
    /// # Errors
    /// When the revision is compacted or yet to come, or as [`Self::lease`].
    pub async fn hash_kv(&self, at: Option<Revision>) -> Result<HashKv, NodeError> {
        if let Some(hash) = at.and_then(|at| self.engine.hashes.lock().get(at)) {
            return Ok(hash);
        }
        let engine = Arc::clone(&self.engine);
        let hashed = tokio::task::spawn_blocking(move || {
            let since = Instant::now();
            let (mut walk, number, _hold) = {
                let replica = engine.replica.read();
                let hold = Hold::new(&engine, replica.compacted());
                (replica.begin_hash(at)?, replica.next_number(), hold)
            };
            let compacted = walk.compacted();
            while !engine.replica.read().hash_on(&mut walk, HASHED_AT_ONCE)? {}
            let (revision, hash) = (walk.at(), walk.finish());
            engine.metrics.hashed(since.elapsed());
            Ok((HashKv { hash, revision, compacted }, number))
        });
        let (hash, number) = hashed.await.unwrap_or(Err(NodeError::Stopped))?;
        self.durable_up_to(number).await?;
        self.engine.hashes.lock().note(hash);
        Ok(hash)
    }

    /// The alarms that are raised.
    pub fn alarms(&self) -> Vec<Alarm> {
        self.engine.replica.read().alarms().collect()
    }

    /// The raised alarms that stop writes here: all but those of other members.
    pub fn alarms_that_stop(&self) -> Vec<Alarm> {
        self.engine.replica.read().alarms_that_stop().collect()
    }

    /// The node's status, for the RPC `Status` and for metrics.
    pub fn status(&self) -> Status {
        let engine = &self.engine;
        let size = |of: &AtomicU64| of.load(Ordering::Relaxed);
        let replica = engine.replica.read();
        Status {
            identity: engine.identity,
            revision: engine.durable_revision(),
            compacted: replica.compacted(),
            next_number: *engine.durable_number.borrow(),
            size_allocated: size(&engine.admission.size_allocated).max(SIZE_MIN),
            size_in_use: size(&engine.admission.size_in_use).max(SIZE_MIN),
            size_on_disk: size(&engine.admission.size_on_disk),
            free_on_disk: *engine.admission.free_on_disk.lock(),
            quota: engine.quota,
            keys: replica.live_keys(),
            alarms: replica.alarms().collect(),
            state: self.state(),
            waiting: engine.queue.len(),
        }
    }

    /// Whether the node takes writes.
    pub fn state(&self) -> NodeState {
        let engine = &self.engine;
        if let Some(reason) = &*engine.stopped_because.lock() {
            return NodeState::WritesStopped { reason: Arc::clone(reason) };
        }
        if engine.is_paused() || engine.admission.disk_low.load(Ordering::Relaxed) {
            return NodeState::WritesPaused { reason: "no space left on the disk of the data dir".into() };
        }
        if engine.admission.out_of_spaces.load(Ordering::Relaxed) {
            return NodeState::WritesPaused { reason: "no revision space is left".into() };
        }
        match engine.stalled() {
            Some(silent) => {
                let reason = format!("the disk has not answered for {} s", silent.as_secs());
                NodeState::WritesPaused { reason: reason.into() }
            }
            None => NodeState::Running,
        }
    }

    /// Numbers of streams and watchers, for metrics.
    pub fn watch_counts(&self) -> WatchCounts {
        self.engine.hub.counts()
    }

    /// Rewrites the journal so that freed space goes back to the file system. Writes wait meanwhile.
    ///
    /// # Errors
    /// When the copy fails (the journal is as before), or the node has stopped.
    pub async fn defragment(&self) -> Result<(), NodeError> {
        let (reply, answer) = oneshot::channel();
        if !self.engine.pipe.send(Work::Defragment(reply)) {
            return Err(self.engine.write_error());
        }
        answer.await.unwrap_or(Err(NodeError::Stopped))
    }

    /// Ends all watch streams, so that connections can drain.
    pub fn close_watches(&self) {
        self.engine.hub.close();
    }

    /// Refuses new commands, flushes those in flight, and ends all watch streams and both threads. Blocks. Returns
    /// false when the disk does not answer: the threads are left behind then, with nothing acknowledged in them.
    pub fn shutdown(&self) -> bool {
        self.engine.queue.close();
        let Threads { handles, ended } = std::mem::take(&mut *self.engine.threads.lock());
        while let Some(Err(mpsc::RecvTimeoutError::Timeout)) = ended.as_ref().map(|e| e.recv_timeout(ENDED_EVERY)) {
            if self.engine.stalled().is_some() {
                tracing::error!("the disk does not answer; stopping without it");
                self.engine.hub.close();
                return false;
            }
        }
        for thread in handles {
            if thread.join().is_err() {
                tracing::error!("a thread of the node ended by a panic");
            }
        }
        self.engine.hub.close();
        true
    }
}
