//! The store that an import writes to: a node that serves nobody, on which no lease runs out.

use std::collections::{BTreeSet, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::task::Poll;

use eddy_crdt::{DeleteOp, KeyRange, LeaseId, Op, PutLease, PutOp, PutValue, Refusal, Revision, Txn};
use eddy_proto::mvccpb::event::EventType;
use eddy_proto::mvccpb::{Event, KeyValue};

use super::error::MoveError;
use super::steps::Step;
use crate::node::{Handle, NodeError};

/// Transactions that may wait for the disk at once, and about how many bytes of them.
const WAITING_MAX: usize = 1024;
const WAITING_BYTES_MAX: usize = 16 << 20;

/// The time to live of a lease that is gone where it was granted, seconds. Its keys go, too, and then it does.
const GONE_TTL_S: i64 = 3600;

type Answer = Pin<Box<dyn Future<Output = Result<Revision, NodeError>> + Send>>;

/// See the module.
pub(super) struct Copy {
    pub(super) node: Handle,
    /// The newest revision that was handed in.
    revision: i64,
    waiting: VecDeque<(i64, usize, Answer)>,
    bytes: usize,
    leases: BTreeSet<i64>,
}

impl Copy {
    /// A copy as far as the node is.
    pub(super) async fn of(node: Handle) -> Result<Self, MoveError> {
        let leases = node.leases().await?.into_iter().map(LeaseId::get).collect();
        let revision = node.revision().get();
        Ok(Self { node, revision, waiting: VecDeque::new(), bytes: 0, leases })
    }

    /// The newest revision that was handed in; it may not be durable yet.
    pub(super) fn revision(&self) -> i64 {
        self.revision
    }

    /// The leases that a step needs and that are not here.
    pub(super) fn lacks(&self, step: &Step) -> Vec<i64> {
        let kvs = step.events.iter().filter_map(|event| event.kv.as_ref());
        kvs.map(|kv| kv.lease).filter(|id| *id != 0 && !self.leases.contains(id)).collect()
    }

    /// Grants a lease. One that is gone at its source has no time to live.
    pub(super) async fn grant(&mut self, id: i64, ttl_s: Option<i64>) -> Result<(), MoveError> {
        let Some(lease) = LeaseId::from_wire(id) else { return Ok(()) };
        match self.node.lease_grant(lease, ttl_s.unwrap_or(GONE_TTL_S)).await {
            Ok(_) | Err(NodeError::Refused(Refusal::LeaseExists)) => drop(self.leases.insert(id)),
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// The leases that are here.
    pub(super) fn leases(&self) -> &BTreeSet<i64> {
        &self.leases
    }

    /// Drops a lease that is gone at its source, unless keys hang on it: their deletes are still to come.
    pub(super) async fn drop_lease(&mut self, id: i64) -> Result<(), MoveError> {
        let Some(lease) = LeaseId::from_wire(id) else { return Ok(()) };
        self.settle().await?;
        if self.node.lease(lease).await?.is_some_and(|status| !status.keys.is_empty()) {
            return Ok(());
        }
        match self.node.lease_revoke(lease).await {
            Ok(_) | Err(NodeError::Refused(Refusal::LeaseNotFound)) => drop(self.leases.remove(&id)),
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Does a step again. Waits only when many wait for the disk.
    pub(super) async fn take(&mut self, step: Step) -> Result<(), MoveError> {
        if step.revision != self.revision + 1 {
            return Err(MoveError::Apart { expected: step.revision, found: self.revision + 1 });
        }
        for id in self.lacks(&step) {
            self.grant(id, None).await?;
        }
        let bytes = weight(&step);
        while self.waiting.len() >= WAITING_MAX || (self.bytes + bytes > WAITING_BYTES_MAX && !self.waiting.is_empty())
        {
            self.await_one().await?;
        }
        let txn = Txn { success: step.events.into_iter().filter_map(op).collect(), ..Txn::default() };
        let node = self.node.clone();
        let mut answer: Answer = Box::pin(async move { node.txn(txn).await.map(|reply| reply.revision) });
        // The first look puts it into the queue: so they stand there in order.
        let looked = futures::poll!(&mut answer);
        self.revision = step.revision;
        match looked {
            Poll::Ready(answer) => check(step.revision, answer),
            Poll::Pending => {
                self.waiting.push_back((step.revision, bytes, answer));
                self.bytes += bytes;
                Ok(())
            }
        }
    }

    async fn await_one(&mut self) -> Result<(), MoveError> {
        let Some((revision, bytes, answer)) = self.waiting.pop_front() else { return Ok(()) };
        self.bytes -= bytes;
        check(revision, answer.await)
    }

    /// Waits until all that was handed in is durable.
    pub(super) async fn settle(&mut self) -> Result<(), MoveError> {
        while !self.waiting.is_empty() {
            self.await_one().await?;
        }
        Ok(())
    }
}

fn check(expected: i64, answer: Result<Revision, NodeError>) -> Result<(), MoveError> {
    let found = answer?.get();
    if found == expected { Ok(()) } else { Err(MoveError::Apart { expected, found }) }
}

fn weight(step: &Step) -> usize {
    let kvs = step.events.iter().filter_map(|event| event.kv.as_ref());
    kvs.map(|kv| 64 + kv.key.len() + kv.value.len()).sum()
}

/// What an event did. A step without a key is none.
fn op(event: Event) -> Option<Op> {
    let deletes = event.r#type() == EventType::Delete;
    let KeyValue { key, value, lease, .. } = event.kv?;
    Some(if deletes {
        Op::Delete(DeleteOp { range: KeyRange::Key(key), prev_kv: false })
    } else {
        let lease = PutLease::Set(LeaseId::from_wire(lease));
        Op::Put(PutOp { key, value: PutValue::Set(value), lease, prev_kv: false })
    })
}
