//! What the node is asked to change: one typed call for each command. Its answer comes once it is durable.

use std::future::Future;

use eddy_crdt::merge::{AtomicRule, CounterRule};
use eddy_crdt::{
    Alarm, AlarmKind, AuthCommand, Command, DeleteOp, DeleteReply, LeaseId, Member, PutOp, PutReply, ReplicaId, Reply,
    Revision, Txn, TxnReply,
};
use tokio::sync::oneshot;

use super::admission;
use super::error::NodeError;
use super::handle::{Handle, REQUEST_TIMEOUT};
use super::queue::{CommandResult, Job};

/// A function that takes one kind of reply apart, and refuses all others.
macro_rules! reply {
    ($kind:pat => $value:expr) => {
        |reply| match reply {
            $kind => Ok($value),
            other => Err(mismatched(&other)),
        }
    };
}

fn mismatched(reply: &Reply) -> NodeError {
    tracing::error!(?reply, "the replica answered another command");
    NodeError::Mismatched
}

/// # Errors
/// Every call here fails when the replica refuses the command, the queue is full, the quota is used up, or an alarm
/// forbids it. It also fails when the disk does not answer in time, or writes have stopped.
impl Handle {
    /// Writes one key.
    pub fn put(&self, op: PutOp) -> impl Future<Output = Result<PutReply, NodeError>> + Send {
        self.submit(Command::Put(op), reply!(Reply::Put(reply) => reply))
    }

    /// Deletes the keys of a range.
    pub fn delete(&self, op: DeleteOp) -> impl Future<Output = Result<DeleteReply, NodeError>> + Send {
        self.submit(Command::Delete(op), reply!(Reply::Delete(reply) => reply))
    }

    /// Runs a transaction that may write.
    pub fn txn(&self, txn: Txn) -> impl Future<Output = Result<TxnReply, NodeError>> + Send {
        self.submit(Command::Txn(txn), reply!(Reply::Txn(reply) => reply))
    }

    /// Hides history before the revision. Answers, with the present revision, once that is durable or, if `physical`, once
    /// what it hid is gone from the disk.
    ///
    /// # Errors
    /// As for all calls; `Compacted` and `FutureRevision` among them.
    pub async fn compact(&self, at: i64, physical: bool) -> Result<Revision, NodeError> {
        self.enqueue(Command::Compact(at), physical, 0).await.and_then(reply!(Reply::Compact { revision } => revision))
    }

    /// Grants a lease of that id; tells the time to live that is granted, seconds, and the revision then.
    pub fn lease_grant(
        &self,
        id: LeaseId,
        ttl_s: i64,
    ) -> impl Future<Output = Result<(i64, Revision), NodeError>> + Send {
        self.submit(
            Command::LeaseGrant { id, ttl: ttl_s },
            reply!(Reply::LeaseGrant { ttl, revision, .. } => (ttl, revision)),
        )
    }

    /// Revokes a lease and deletes its keys; tells the revision of the deletes.
    pub fn lease_revoke(&self, id: LeaseId) -> impl Future<Output = Result<Revision, NodeError>> + Send {
        self.submit(Command::LeaseRevoke(id), reply!(Reply::LeaseRevoke { revision } => revision))
    }

    /// Keeps a lease alive; tells its time to live, seconds. At once where nothing waits for the disk: what the answer
    /// rests on is durable then.
    ///
    /// # Errors
    /// As for all calls; `LeaseNotFound` among them.
    pub async fn lease_renew(&self, id: LeaseId) -> Result<i64, NodeError> {
        let engine = &self.engine;
        let renewed = {
            let replica = engine.replica.read();
            let settled = engine.is_writable() && *engine.durable_number.borrow() == replica.next_number();
            settled.then(|| replica.renew_in_passing(engine.now(), id)).flatten()
        };
        if let Some(ttl) = renewed {
            engine.metrics.lease_renewed();
            return Ok(ttl);
        }
        self.submit(Command::LeaseRenew(id), reply!(Reply::LeaseRenew { ttl } => ttl)).await
    }

    /// Raises or lowers an alarm; tells whether that changed anything, and the revision then.
    pub fn set_alarm(
        &self,
        alarm: Alarm,
        raised: bool,
    ) -> impl Future<Output = Result<(bool, Revision), NodeError>> + Send {
        self.submit(
            Command::SetAlarm { alarm, raised },
            reply!(Reply::SetAlarm { changed, revision } => (changed, revision)),
        )
    }

    /// Adds a member; tells the members after it, in order of id, removed ones included.
    pub fn member_add(
        &self,
        id: ReplicaId,
        peer_urls: Vec<String>,
        learner: bool,
    ) -> impl Future<Output = Result<Vec<Member>, NodeError>> + Send {
        self.change_members(Command::MemberAdd { id, peer_urls, learner })
    }

    /// Removes a member; tells the members after it, as [`Self::member_add`].
    pub fn member_remove(&self, id: ReplicaId) -> impl Future<Output = Result<Vec<Member>, NodeError>> + Send {
        self.change_members(Command::MemberRemove(id))
    }

    /// Changes a member's peer URLs; tells the members after it, as [`Self::member_add`].
    pub fn member_update(
        &self,
        id: ReplicaId,
        peer_urls: Vec<String>,
    ) -> impl Future<Output = Result<Vec<Member>, NodeError>> + Send {
        self.change_members(Command::MemberUpdate { id, peer_urls })
    }

    /// Makes a learner a full member; tells the members after it, as [`Self::member_add`].
    pub fn member_promote(&self, id: ReplicaId) -> impl Future<Output = Result<Vec<Member>, NodeError>> + Send {
        self.change_members(Command::MemberPromote(id))
    }

    /// Tells the cluster this member's name and where clients reach it; tells the members after it, as
    /// [`Self::member_add`].
    pub fn member_publish(
        &self,
        name: String,
        client_urls: Vec<String>,
    ) -> impl Future<Output = Result<Vec<Member>, NodeError>> + Send {
        self.change_members(Command::MemberPublish { name, client_urls })
    }

    /// Changes users or roles; tells the revision then.
    pub fn auth(&self, command: AuthCommand) -> impl Future<Output = Result<Revision, NodeError>> + Send {
        self.submit(Command::Auth(command), reply!(Reply::Auth { revision } => revision))
    }

    /// Declares which fields are counters from now on, and which are one value. Tells the number of the rules that follow.
    pub fn declare(
        &self,
        counters: Vec<CounterRule>,
        atomic: Vec<AtomicRule>,
    ) -> impl Future<Output = Result<u32, NodeError>> + Send {
        self.submit(Command::Declare { counters, atomic }, reply!(Reply::Rules { number } => number))
    }

    /// Moves the revision to this replica's next space, above every revision that any member is known to have used.
    /// Tells the first revision of that space.
    pub fn leap(&self) -> impl Future<Output = Result<Revision, NodeError>> + Send {
        self.submit(Command::Leap, reply!(Reply::Leap { revision } => revision))
    }

    fn change_members(&self, command: Command) -> impl Future<Output = Result<Vec<Member>, NodeError>> + Send {
        self.submit(command, reply!(Reply::Members(members) => members))
    }

    /// Has a command done, unless the quota forbids it, and takes its reply apart. The calls above return this future
    /// itself, so a put is one future.
    async fn submit<T>(
        &self,
        command: Command,
        take: impl FnOnce(Reply) -> Result<T, NodeError>,
    ) -> Result<T, NodeError> {
        let admission = &self.engine.admission;
        let cost = admission::cost(&command);
        if !admission.allows(cost, self.engine.quota) && admission.check(&command).is_ok() {
            self.raise_no_space().await;
            return Err(NodeError::NoSpace);
        }
        self.enqueue(command, false, cost as usize).await.and_then(take)
    }

    async fn raise_no_space(&self) {
        let alarm = Alarm { member: self.engine.identity.replica, kind: AlarmKind::NoSpace };
        tracing::warn!(quota = self.engine.quota, "the quota is used up: raising the NOSPACE alarm");
        if let Err(error) = self.enqueue(Command::SetAlarm { alarm, raised: true }, false, 0).await {
            tracing::warn!(%error, "could not raise the NOSPACE alarm");
        }
    }

    async fn enqueue(&self, command: Command, physical: bool, bytes: usize) -> CommandResult {
        let engine = &self.engine;
        if !engine.is_writable() {
            engine.metrics.write_refused();
            return Err(engine.write_error());
        }
        let (reply, answer) = oneshot::channel();
        if let Err((error, _)) = engine.queue.push(Job::Client { command, physical, reply }, bytes) {
            engine.metrics.write_refused();
            return Err(error);
        }
        // A sender that is dropped unused: the threads are gone.
        let answer = async { answer.await.unwrap_or_else(|_| Err(engine.write_error())) };
        if physical {
            return answer.await;
        }
        tokio::time::timeout(REQUEST_TIMEOUT, answer).await.unwrap_or(Err(NodeError::TimedOut))
    }
}
