//! A node to test, and a gate in front of its journal.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use eddy_crdt::{
    Birth, ClusterId, Command, DeleteOp, Entry, Founder, Genesis, Identity, Input, KeyRange, Now, Op, PutLease, PutOp,
    PutValue, RangeOp, Replica, ReplicaId, Revision, Txn,
};
use futures::FutureExt;
use parking_lot::{Condvar, Mutex};

use crate::metrics::Metrics;
use crate::node::{Handle, NodeError, Options, start};
use crate::storage::faulty::Disk;
use crate::storage::{AppendStats, Doubt, Group, Journal, StorageError};

pub(super) fn identity() -> Identity {
    Identity { cluster: ClusterId::new(1), replica: ReplicaId::new(2), birth: Birth::new(3), ordinal: 0 }
}

pub(super) fn options() -> Options {
    Options::new(identity(), "memory".into(), Arc::new(Metrics::new(false).unwrap()))
}

pub(super) fn node(disk: &Disk) -> Handle {
    start(Box::new(disk.open()), options()).unwrap()
}

pub(super) fn key(name: &str) -> Bytes {
    Bytes::copy_from_slice(name.as_bytes())
}

pub(super) fn put(name: &str, value: &str) -> PutOp {
    PutOp { key: key(name), value: PutValue::Set(key(value)), lease: PutLease::Set(None), prev_kv: false }
}

pub(super) fn delete(name: &str) -> DeleteOp {
    DeleteOp { range: KeyRange::Key(key(name)), prev_kv: false }
}

pub(super) fn txn(ops: Vec<Op>) -> Txn {
    Txn { compares: vec![], success: ops, failure: vec![] }
}

pub(super) fn everything() -> KeyRange {
    KeyRange::From(Bytes::from_static(&[0]))
}

pub(super) async fn put_ok(node: &Handle, name: &str, value: &str) -> Revision {
    node.put(put(name, value)).await.unwrap().revision
}

pub(super) fn get(node: &Handle, name: &str) -> Option<Bytes> {
    // What a key is now is in memory, so nothing is waited for.
    let reply = node.range(&RangeOp::all(KeyRange::Key(key(name)))).now_or_never().unwrap().unwrap();
    reply.kvs.first().map(|kv| kv.value.clone())
}

pub(super) fn writes_stopped<T>(result: Result<T, NodeError>) -> bool {
    matches!(result, Err(NodeError::WritesStopped(_)))
}

#[derive(Debug, Default)]
struct GateState {
    closed: bool,
    waiting: bool,
    groups: Vec<usize>,
}

/// Holds appends back while closed, and counts what passed.
#[derive(Clone, Debug, Default)]
pub(super) struct Gate(Arc<(Mutex<GateState>, Condvar)>);

impl Gate {
    pub(super) fn close(&self) {
        self.0.0.lock().closed = true;
    }

    pub(super) fn open(&self) {
        self.0.0.lock().closed = false;
        self.0.1.notify_all();
    }

    /// Blocks until an append waits in front of the gate.
    pub(super) fn wait_for_append(&self) {
        let mut state = self.0.0.lock();
        while !state.waiting {
            self.0.1.wait(&mut state);
        }
    }

    /// The number of records of each append that passed.
    pub(super) fn groups(&self) -> Vec<usize> {
        self.0.0.lock().groups.clone()
    }
}

/// A journal behind a [`Gate`].
pub(super) struct Gated<J> {
    pub(super) journal: J,
    pub(super) gate: Gate,
}

impl<J: Journal> Journal for Gated<J> {
    fn last_head(&self) -> Option<Bytes> {
        self.journal.last_head()
    }

    fn load(&mut self, visit: &mut dyn FnMut(u64, Bytes) -> Result<(), StorageError>) -> Result<(), StorageError> {
        self.journal.load(visit)
    }

    fn append(&mut self, group: &Group) -> Result<AppendStats, StorageError> {
        let (state, changed) = &*self.gate.0;
        let mut state = state.lock();
        state.waiting = true;
        changed.notify_all();
        while state.closed {
            changed.wait(&mut state);
        }
        state.waiting = false;
        state.groups.push(group.records.len());
        drop(state);
        self.journal.append(group)
    }

    fn trim(
        &mut self,
        dead: &mut BTreeSet<u64>,
        max_bytes: usize,
        keep: &mut dyn FnMut(u64, &Bytes) -> Option<Bytes>,
    ) -> Result<(), StorageError> {
        self.journal.trim(dead, max_bytes, keep)
    }

    fn read(&mut self, number: u64) -> Result<Option<Bytes>, StorageError> {
        self.journal.read(number)
    }

    fn head(&mut self, head: Bytes) -> Result<(), StorageError> {
        self.journal.head(head)
    }

    fn sync(&mut self) -> Result<(), StorageError> {
        self.journal.sync()
    }

    fn defragment(&mut self) -> Result<(), StorageError> {
        self.journal.defragment()
    }

    fn work(&mut self) -> Result<(), StorageError> {
        self.journal.work()
    }

    fn is_busy(&self) -> bool {
        self.journal.is_busy()
    }

    fn size_in_use(&self) -> u64 {
        self.journal.size_in_use()
    }

    fn size_allocated(&self) -> u64 {
        self.journal.size_allocated()
    }

    fn size_on_disk(&self) -> u64 {
        self.journal.size_on_disk()
    }

    fn free_on_disk(&self) -> Option<u64> {
        self.journal.free_on_disk()
    }

    fn doubt(&self) -> Option<Doubt> {
        self.journal.doubt()
    }
}

/// A node whose flushes can be held back.
pub(super) fn gated(disk: &Disk) -> (Handle, Gate) {
    let gate = Gate::default();
    let journal = Gated { journal: disk.open(), gate: gate.clone() };
    (start(Box::new(journal), options()).unwrap(), gate)
}

/// A node of a cluster of two, and what the other member wrote: `count` keys, an entry each.
pub(super) fn with_news(disk: &Disk, count: usize) -> (Handle, Input) {
    let founder = |id: ReplicaId| Founder { id, name: id.to_string(), peer_urls: vec![] };
    let other = Identity { replica: ReplicaId::new(1), ..identity() };
    let genesis = Genesis { founders: vec![founder(other.replica), founder(identity().replica)], ..Genesis::default() };
    let now = Now { wall_ms: 1, mono_ms: 1 };
    let mut peer = Replica::found(other, &genesis).0;
    let before = peer.vector().clone();
    for n in 0..count {
        peer.handle(now, Input::Client(Command::Put(put(&format!("peer-{n}"), "v"))));
    }
    let entries = peer.entries_for(&before, peer.vector(), usize::MAX).unwrap();
    let entries = entries.iter().map(|entry| Entry::clone(entry)).collect();
    let news = Input::Entries { from: other.replica, births: [other.birth].into(), entries, together: None };
    (start(Box::new(disk.open()), Options { genesis: Some(genesis), ..options() }).unwrap(), news)
}
