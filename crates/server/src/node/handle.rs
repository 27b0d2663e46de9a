//! The node's handle: commands in, answers out. Who holds one sees neither the threads nor the journal.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use eddy_crdt::{
    Alarm, AlarmKind, Command, Identity, LeaseId, LeaseStatus, RangeOp, RangeReply, ReadAt, Refusal, Reply, Revision,
    Tally, Txn, TxnReply,
};
use tokio::sync::oneshot;

use super::pipe::Work;
use super::queue::Job;
use super::state::SIZE_MIN;
use super::{HashKv, NodeError, NodeState, Outcome, Shared, Status, Threads, hub, quota};

/// While stopping, how often a thread that has not ended is asked whether the disk still answers.
const ENDED_EVERY: Duration = Duration::from_secs(1);

/// How long a client waits for its answer, etcd's limit: a disk that does not answer must not hold clients for ever.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(7);

/// What everyone holds: commands in, answers and events out. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Handle {
    pub(super) shared: Arc<Shared>,
}

impl Handle {
    /// Has a command done. The answer comes once it is durable.
    ///
    /// # Errors
    /// When the replica refuses, the queue is full, the quota is used up, or writes have stopped.
    pub async fn submit(&self, command: Command) -> Outcome {
        let cost = quota::cost(&command);
        if !self.shared.limits.allows(cost, self.shared.quota) && self.shared.limits.check(&command).is_ok() {
            self.raise_no_space().await;
            return Err(NodeError::NoSpace);
        }
        self.enqueue(command, false, cost as usize).await
    }

    /// Keeps a lease alive; tells its time to live, seconds. At once where nothing waits for the disk: what the answer
    /// rests on is durable then.
    ///
    /// # Errors
    /// As [`Self::submit`]; `LeaseNotFound` among them.
    pub async fn renew(&self, id: LeaseId) -> Result<i64, NodeError> {
        let shared = &self.shared;
        let renewed = {
            let replica = shared.replica.read();
            let settled = shared.is_writable() && *shared.durable_number.borrow() == replica.next_number();
            settled.then(|| replica.renew_in_passing(shared.now(), id)).flatten()
        };
        if let Some(ttl) = renewed {
            shared.observer.lease_renewed();
            return Ok(ttl);
        }
        match self.submit(Command::LeaseRenew(id)).await? {
            Reply::LeaseRenew { ttl } => Ok(ttl),
            _ => Err(NodeError::Stopped),
        }
    }

    async fn raise_no_space(&self) {
        let alarm = Alarm { member: self.shared.identity.replica, kind: AlarmKind::NoSpace };
        tracing::warn!(quota = self.shared.quota, "the quota is used up: raising the NOSPACE alarm");
        if let Err(error) = self.enqueue(Command::SetAlarm { alarm, raised: true }, false, 0).await {
            tracing::warn!(%error, "could not raise the NOSPACE alarm");
        }
    }

    async fn enqueue(&self, command: Command, physical: bool, bytes: usize) -> Outcome {
        let shared = &self.shared;
        if !shared.is_writable() {
            shared.observer.write_refused();
            return Err(shared.write_error());
        }
        let (reply, answer) = oneshot::channel();
        shared
            .queue
            .push(Job::Client { command, physical, reply }, bytes)
            .inspect_err(|_| shared.observer.write_refused())?;
        // A sender that is dropped unused: the threads are gone.
        let answer = async { answer.await.unwrap_or_else(|_| Err(shared.write_error())) };
        if physical {
            return answer.await;
        }
        tokio::time::timeout(REQUEST_TIMEOUT, answer).await.unwrap_or(Err(NodeError::TimedOut))
    }

    /// Hides history before the revision. Answers once that is durable or, if `physical`, once what it hid is gone
    /// from the disk.
    ///
    /// # Errors
    /// As [`Self::submit`]; `Compacted` and `FutureRevision` among them.
    pub async fn compact(&self, at: i64, physical: bool) -> Result<(), NodeError> {
        self.enqueue(Command::Compact(at), physical, 0).await.map(|_| ())
    }

    /// The durable revision, for headers.
    pub fn revision(&self) -> Revision {
        self.shared.durable_revision()
    }

    /// Who the replica is.
    pub fn identity(&self) -> Identity {
        self.shared.identity
    }

    /// Reads a range: linearizable (see the module), and at once.
    ///
    /// # Errors
    /// When the revision asked for is compacted or yet to come.
    pub fn range(&self, op: &RangeOp) -> Result<RangeReply, NodeError> {
        let since = Instant::now();
        let as_of = self.shared.durable_revision();
        let replica = self.shared.replica.read();
        let reply = replica.range(op, as_of);
        if let (Err(Refusal::Compacted), ReadAt::Revision(at)) = (&reply, op.at)
            && replica.is_foreign(Revision::new(at), as_of)
        {
            self.shared.met_foreign(Revision::new(at));
        }
        drop(replica);
        self.shared.observer.done(&Tally::range());
        self.shared.observer.range(since.elapsed(), reply.is_ok());
        Ok(reply?)
    }

    /// Evaluates a transaction that only reads, as [`Self::range`].
    ///
    /// # Errors
    /// As [`Self::range`].
    pub fn read_txn(&self, txn: &Txn) -> Result<TxnReply, NodeError> {
        let as_of = self.shared.durable_revision();
        let mut tally = Tally::default();
        let reply = self.shared.replica.read().read_txn(txn, as_of, &mut tally);
        self.shared.observer.done(&tally);
        Ok(reply?)
    }

    /// Waits until everything before that journal number is durable.
    async fn durable_up_to(&self, number: u64) -> Result<(), NodeError> {
        let mut durable = self.shared.durable_number.subscribe();
        loop {
            if *durable.borrow_and_update() >= number {
                return Ok(());
            }
            if !self.shared.is_writable() {
                return Err(self.shared.write_error());
            }
            match tokio::time::timeout(REQUEST_TIMEOUT, durable.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return Err(NodeError::Stopped),
                Err(_) => return Err(NodeError::TimedOut),
            }
        }
    }

    /// What is known of a lease.
    ///
    /// # Errors
    /// When what was seen will never be durable, because writes have stopped.
    pub async fn lease(&self, id: LeaseId) -> Result<Option<LeaseStatus>, NodeError> {
        let (status, number) = {
            let replica = self.shared.replica.read();
            (replica.lease(self.shared.now(), id), replica.next_number())
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
            let replica = self.shared.replica.read();
            let leases: Vec<(LeaseId, u64)> = replica.leases(self.shared.now()).collect();
            (leases, replica.next_number())
        };
        self.durable_up_to(number).await?;
        leases.sort_by_key(|(_, left_ms)| *left_ms);
        Ok(leases.into_iter().map(|(id, _)| id).collect())
    }

    /// The hash that etcd's HashKV gives at that revision; zero for now. At a revision that was compacted at since, the
    /// answer is the same as before, while it is remembered.
    ///
    /// # Errors
    /// When the revision is compacted or yet to come, or as [`Self::lease`].
    pub async fn hash_kv(&self, at: i64) -> Result<HashKv, NodeError> {
        if let Some(hash) = self.shared.hashes.lock().get(Revision::new(at)) {
            return Ok(hash);
        }
        let shared = Arc::clone(&self.shared);
        let hashed = tokio::task::spawn_blocking(move || {
            let since = Instant::now();
            let replica = shared.replica.read();
            let (hash, revision) = replica.hash_kv(at)?;
            shared.observer.hashed(since.elapsed());
            let hash = HashKv { hash, revision, compacted: replica.compacted() };
            Ok((hash, replica.next_number()))
        });
        let (hash, number) = hashed.await.unwrap_or(Err(NodeError::Stopped))?;
        self.durable_up_to(number).await?;
        self.shared.hashes.lock().note(hash);
        Ok(hash)
    }

    /// The alarms that are raised.
    pub fn alarms(&self) -> Vec<Alarm> {
        self.shared.replica.read().alarms().collect()
    }

    /// What Status tells.
    pub fn status(&self) -> Status {
        let shared = &self.shared;
        let size = |of: &AtomicU64| of.load(Ordering::Relaxed);
        let replica = shared.replica.read();
        Status {
            identity: shared.identity,
            revision: shared.durable_revision(),
            compacted: replica.compacted(),
            next_number: *shared.durable_number.borrow(),
            size_allocated: size(&shared.limits.size_allocated).max(SIZE_MIN),
            size_in_use: size(&shared.limits.size_in_use).max(SIZE_MIN),
            size_on_disk: size(&shared.limits.size_on_disk),
            quota: shared.quota,
            keys: replica.live_keys(),
            alarms: replica.alarms().collect(),
            state: self.state(),
            waiting: shared.queue.len(),
        }
    }

    /// Whether the node takes writes.
    pub fn state(&self) -> NodeState {
        let shared = &self.shared;
        if let Some(reason) = &*shared.stopped_because.lock() {
            return NodeState::WritesStopped { reason: Arc::clone(reason) };
        }
        if shared.is_paused() || shared.limits.disk_low.load(Ordering::Relaxed) {
            return NodeState::WritesPaused { reason: "no space left on the disk of the data dir".into() };
        }
        match shared.stalled() {
            Some(silent) => {
                let reason = format!("the disk has not answered for {} s", silent.as_secs());
                NodeState::WritesPaused { reason: reason.into() }
            }
            None => NodeState::Running,
        }
    }

    /// Numbers of streams and watchers, for metrics.
    pub fn watch_counts(&self) -> hub::WatchCounts {
        self.shared.hub.counts()
    }

    /// Rewrites the journal so that freed space goes back to the file system. Writes wait meanwhile.
    ///
    /// # Errors
    /// When the copy fails (the journal is as before), or the node has stopped.
    pub async fn defragment(&self) -> Result<(), NodeError> {
        let (reply, answer) = oneshot::channel();
        if !self.shared.pipe.send(Work::Defragment(reply)) {
            return Err(self.shared.write_error());
        }
        answer.await.unwrap_or(Err(NodeError::Stopped))
    }

    /// Ends all watch streams, so that connections can drain.
    pub fn close_watches(&self) {
        self.shared.hub.close();
    }

    /// Refuses new commands, finishes and flushes what is in flight, ends all watch streams and both threads. Blocks.
    /// False when the disk does not answer: then the threads are left behind, with nothing acknowledged in them.
    pub fn shutdown(&self) -> bool {
        self.shared.queue.close();
        let Threads { handles, ended } = std::mem::take(&mut *self.shared.threads.lock());
        while let Some(Err(mpsc::RecvTimeoutError::Timeout)) = ended.as_ref().map(|e| e.recv_timeout(ENDED_EVERY)) {
            if self.shared.stalled().is_some() {
                tracing::error!("the disk does not answer; stopping without it");
                self.shared.hub.close();
                return false;
            }
        }
        for thread in handles {
            if thread.join().is_err() {
                tracing::error!("a thread of the node ended by a panic");
            }
        }
        self.shared.hub.close();
        true
    }
}
