//! What a client sees of one replica: a sequential store that is told the commits, and what it must answer to commands.

use std::collections::BTreeMap;

use bytes::Bytes;
use eddy_crdt::{
    Command, Commit, Compare, CompareResult, CompareTarget, DeleteOp, DeleteReply, Event, EventKind, Key, KeyRange,
    KeyValue, LeaseId, Op, OpReply, PutLease, PutOp, PutReply, PutValue, RangeOp, RangeReply, Refusal, Replica, Reply,
    Revision, TxnReply,
};

/// The keys as the commits of one replica make them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Shadow {
    pub kvs: BTreeMap<Key, KeyValue>,
    pub revision: Revision,
}

impl Default for Shadow {
    fn default() -> Self {
        Self { kvs: BTreeMap::new(), revision: Revision::new(0) }
    }
}

macro_rules! ensure {
    ($holds:expr, $($text:tt)+) => {
        if !$holds {
            return Err(format!($($text)+));
        }
    };
}
pub(crate) use ensure;

pub fn everything(replica: &Replica) -> Vec<KeyValue> {
    let range = RangeOp::all(KeyRange::From(Bytes::from_static(b"\0")));
    replica.range(&range, replica.revision()).map(|reply| reply.kvs).unwrap_or_default()
}

impl Shadow {
    pub fn of(replica: &Replica) -> Self {
        let kvs = everything(replica).into_iter().map(|kv| (kv.key.clone(), kv)).collect();
        Self { kvs, revision: replica.revision() }
    }

    /// Takes a commit as a watcher does: nothing is left out, nothing comes twice.
    pub fn apply(&mut self, commit: &Commit) -> Result<(), String> {
        let at = commit.revision;
        ensure!(at == self.revision.next(), "revision {at:?} follows {:?}", self.revision);
        ensure!(!commit.events.is_empty(), "a commit without events at {at:?}");
        let mut changed: Vec<(Key, Option<KeyValue>)> = vec![];
        for event in &commit.events {
            let key = event.key();
            ensure!(changed.iter().all(|(other, _)| other != key), "{key:?} twice at {at:?}");
            let before = self.kvs.get(key);
            ensure!(event.prev.as_ref() == before, "previous value: {event:?}, was {before:?}");
            ensure!(event.revision() == at, "another revision than its commit's: {event:?}");
            match &event.kind {
                EventKind::Put(kv) => {
                    let created = before.map_or(at, |kv| kv.create_revision);
                    ensure!(kv.create_revision == created, "create revision: {event:?}, was {before:?}");
                    ensure!(kv.version > 0, "version: {event:?}");
                    changed.push((key.clone(), Some(kv.clone())));
                }
                EventKind::Delete { .. } => {
                    ensure!(before.is_some(), "a key that was not there is deleted: {event:?}");
                    changed.push((key.clone(), None));
                }
            }
        }
        for (key, kv) in changed {
            match kv {
                Some(kv) => drop(self.kvs.insert(key, kv)),
                None => drop(self.kvs.remove(&key)),
            }
        }
        self.revision = at;
        Ok(())
    }

    fn within(&self, range: &KeyRange) -> Vec<KeyValue> {
        let holds = |key: &Key| match range {
            KeyRange::Key(one) => key == one,
            KeyRange::From(from) => key >= from,
            KeyRange::Span { .. } => range.contains(key),
        };
        self.kvs.values().filter(|kv| holds(&kv.key)).cloned().collect()
    }

    fn holds(&self, compare: &Compare) -> bool {
        let mut found: Vec<Option<KeyValue>> = self.within(&compare.range).into_iter().map(Some).collect();
        if found.is_empty() {
            found.push(None);
        }
        found.iter().all(|kv| {
            let number = |of: fn(&KeyValue) -> i64| kv.as_ref().map_or(0, of);
            let order = match &compare.target {
                CompareTarget::Value(value) => match kv {
                    Some(kv) => kv.value.cmp(value),
                    None => return false,
                },
                CompareTarget::Create(n) => number(|kv| kv.create_revision.get()).cmp(n),
                CompareTarget::Mod(n) => number(|kv| kv.mod_revision.get()).cmp(n),
                CompareTarget::Version(n) => number(|kv| kv.version).cmp(n),
                CompareTarget::Lease(n) => number(|kv| kv.lease.map_or(0, LeaseId::get)).cmp(n),
                CompareTarget::Unknown => std::cmp::Ordering::Equal,
            };
            match compare.result {
                CompareResult::Equal => order.is_eq(),
                CompareResult::NotEqual => order.is_ne(),
                CompareResult::Greater => order.is_gt(),
                CompareResult::Less => order.is_lt(),
                CompareResult::Unknown => true,
            }
        })
    }

    /// What the store answers to a command and tells its watchers; `None` for commands that are not about keys.
    pub fn predict(
        &self,
        command: &Command,
        lease: impl Fn(LeaseId) -> bool,
    ) -> Option<(Result<Reply, Refusal>, Vec<Event>)> {
        let mut draft = Draft { shadow: self, kvs: self.kvs.clone(), events: vec![], lease: &lease };
        let reply = match command {
            Command::Put(op) => draft.put(op).map(Reply::Put),
            Command::Delete(op) => Ok(Reply::Delete(draft.delete(op))),
            Command::Txn(txn) => {
                let succeeded = txn.compares.iter().all(|compare| self.holds(compare));
                let ops = if succeeded { &txn.success } else { &txn.failure };
                let replies: Result<Vec<_>, _> = ops.iter().map(|op| draft.op(op)).collect();
                let revision = draft.revision();
                replies.map(|replies| Reply::Txn(TxnReply { revision, succeeded, replies }))
            }
            _ => return None,
        };
        let events = if reply.is_ok() { draft.events } else { vec![] };
        Some((reply, events))
    }
}

struct Draft<'a> {
    shadow: &'a Shadow,
    kvs: BTreeMap<Key, KeyValue>,
    events: Vec<Event>,
    lease: &'a dyn Fn(LeaseId) -> bool,
}

impl Draft<'_> {
    fn revision(&self) -> Revision {
        if self.events.is_empty() { self.shadow.revision } else { self.shadow.revision.next() }
    }

    fn op(&mut self, op: &Op) -> Result<OpReply, Refusal> {
        Ok(match op {
            Op::Range(op) => {
                let kvs = Shadow { kvs: self.kvs.clone(), revision: self.revision() }.within(&op.range);
                let count = kvs.len() as i64;
                OpReply::Range(RangeReply { revision: self.revision(), kvs, more: false, count })
            }
            Op::Put(op) => OpReply::Put(self.put(op)?),
            Op::Delete(op) => OpReply::Delete(self.delete(op)),
            Op::Txn(_) => unreachable!("none are made"),
        })
    }

    fn put(&mut self, op: &PutOp) -> Result<PutReply, Refusal> {
        let PutLease::Set(lease) = op.lease else { unreachable!("none are made") };
        let PutValue::Set(value) = &op.value else { unreachable!("none are made") };
        if lease.is_some_and(|id| !(self.lease)(id)) {
            return Err(Refusal::LeaseNotFound);
        }
        let (at, prev) = (self.shadow.revision.next(), self.kvs.get(&op.key).cloned());
        let kv = KeyValue {
            key: op.key.clone(),
            value: value.clone(),
            create_revision: prev.as_ref().map_or(at, |kv| kv.create_revision),
            mod_revision: at,
            version: prev.as_ref().map_or(0, |kv| kv.version) + 1,
            lease,
        };
        self.kvs.insert(op.key.clone(), kv.clone());
        self.events.push(Event { kind: EventKind::Put(kv), prev: prev.clone() });
        Ok(PutReply { revision: at, prev: prev.filter(|_| op.prev_kv) })
    }

    fn delete(&mut self, op: &DeleteOp) -> DeleteReply {
        let at = self.shadow.revision.next();
        let found = Shadow { kvs: self.kvs.clone(), revision: at }.within(&op.range);
        for kv in &found {
            self.kvs.remove(&kv.key);
            let kind = EventKind::Delete { key: kv.key.clone(), revision: at };
            self.events.push(Event { kind, prev: Some(kv.clone()) });
        }
        let prev = if op.prev_kv { found.clone() } else { vec![] };
        DeleteReply { revision: self.revision(), deleted: found.len() as i64, prev }
    }
}
