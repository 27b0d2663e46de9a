//! The model of a store, for all suites: its keys at one revision, as the commits make them, and what it must answer to commands.

use std::collections::BTreeMap;

use eddy_crdt::{
    Command, Commit, Compare, CompareResult, CompareTarget, DeleteOp, DeleteReply, Event, EventKind, Key, KeyRange,
    KeyValue, LeaseId, Op, OpReply, PutLease, PutOp, PutReply, PutValue, RangeOp, RangeReply, Refusal, Replica, Reply,
    Revision, Txn, TxnReply,
};

use super::checks::{ensure, everything};
use super::range::{answer, named, read_at};

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

    /// Its keys in a range.
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
    pub fn predict(&self, command: &Command, beside: &Beside<'_>) -> Option<(Result<Reply, Refusal>, Vec<Event>)> {
        let mut turn = Turn { before: self, kvs: self.kvs.clone(), events: vec![], beside };
        let reply = match command {
            Command::Put(op) => turn.check_put(op).map(|()| Reply::Put(turn.put(op))),
            Command::Delete(op) => Ok(Reply::Delete(turn.delete(op))),
            Command::Txn(txn) => turn.check(txn).map(|()| Reply::Txn(turn.txn(txn))),
            _ => return None,
        };
        Some((reply, turn.events))
    }
}

/// What a store knows beside its newest keys.
pub struct Beside<'a> {
    pub has_lease: &'a dyn Fn(LeaseId) -> bool,
    /// What was in a range at an older revision.
    pub past: &'a dyn Fn(&KeyRange, i64) -> Vec<KeyValue>,
    /// The compacted revision, -1 for none.
    pub compacted: i64,
}

/// A command that is being carried out. What it compares, and whether it is refused, is looked up in the keys before it.
struct Turn<'a> {
    before: &'a Shadow,
    kvs: BTreeMap<Key, KeyValue>,
    events: Vec<Event>,
    beside: &'a Beside<'a>,
}

impl Turn<'_> {
    fn revision(&self) -> Revision {
        if self.events.is_empty() { self.before.revision } else { self.before.revision.next() }
    }

    fn now(&self) -> Shadow {
        Shadow { kvs: self.kvs.clone(), revision: self.revision() }
    }

    fn check_put(&self, op: &PutOp) -> Result<(), Refusal> {
        if let PutLease::Set(Some(lease)) = op.lease
            && !(self.beside.has_lease)(lease)
        {
            return Err(Refusal::LeaseNotFound);
        }
        let keeps = op.value == PutValue::Keep || op.lease == PutLease::Keep;
        if keeps && !self.before.kvs.contains_key(&op.key) { Err(Refusal::KeyNotFound) } else { Ok(()) }
    }

    fn check(&self, txn: &Txn) -> Result<(), Refusal> {
        for op in self.chosen(txn) {
            match op {
                Op::Range(op) => match named(op.at) {
                    Some(at) if at > self.before.revision.get() => return Err(Refusal::FutureRevision),
                    Some(at) if at < self.beside.compacted => return Err(Refusal::Compacted),
                    _ => {}
                },
                Op::Delete(_) => {}
                Op::Put(op) => self.check_put(op)?,
                Op::Txn(txn) => self.check(txn)?,
            }
        }
        Ok(())
    }

    fn chosen<'t>(&self, txn: &'t Txn) -> &'t [Op] {
        if txn.compares.iter().all(|compare| self.before.holds(compare)) { &txn.success } else { &txn.failure }
    }

    fn txn(&mut self, txn: &Txn) -> TxnReply {
        let succeeded = txn.compares.iter().all(|compare| self.before.holds(compare));
        let mut replies = vec![];
        for op in self.chosen(txn) {
            replies.push(match op {
                Op::Range(op) => OpReply::Range(self.range(op)),
                Op::Put(op) => OpReply::Put(self.put(op)),
                Op::Delete(op) => OpReply::Delete(self.delete(op)),
                Op::Txn(txn) => OpReply::Txn(self.txn(txn)),
            });
        }
        TxnReply { revision: self.revision(), succeeded, replies }
    }

    fn range(&self, op: &RangeOp) -> RangeReply {
        let current = self.revision();
        let at = read_at(op, current.get(), self.beside.compacted).expect("checked");
        let kvs = if at == current.get() { self.now().within(&op.range) } else { (self.beside.past)(&op.range, at) };
        answer(kvs, op, current)
    }

    fn put(&mut self, op: &PutOp) -> PutReply {
        let (at, prev) = (self.before.revision.next(), self.kvs.get(&op.key).cloned());
        let before = prev.as_ref();
        let kv = KeyValue {
            key: op.key.clone(),
            value: match &op.value {
                PutValue::Set(value) => value.clone(),
                PutValue::Keep => before.map(|kv| kv.value.clone()).unwrap_or_default(),
            },
            create_revision: before.map_or(at, |kv| kv.create_revision),
            mod_revision: at,
            version: before.map_or(0, |kv| kv.version) + 1,
            lease: match op.lease {
                PutLease::Set(lease) => lease,
                PutLease::Keep => before.and_then(|kv| kv.lease),
            },
        };
        self.kvs.insert(op.key.clone(), kv.clone());
        self.tell(EventKind::Put(kv));
        PutReply { revision: at, prev: prev.filter(|_| op.prev_kv) }
    }

    fn delete(&mut self, op: &DeleteOp) -> DeleteReply {
        let found = self.now().within(&op.range);
        for kv in &found {
            self.kvs.remove(&kv.key);
            self.tell(EventKind::Delete { key: kv.key.clone(), revision: self.before.revision.next() });
        }
        let deleted = found.len() as i64;
        DeleteReply { revision: self.revision(), deleted, prev: if op.prev_kv { found } else { vec![] } }
    }

    /// etcd tells what was there before the command, not what the same transaction wrote.
    fn tell(&mut self, kind: EventKind) {
        let mut event = Event { kind, prev: None };
        event.prev = self.before.kvs.get(event.key()).cloned();
        self.events.push(event);
    }
}
