//! A transaction in progress: a draft of what it changes, and the evaluation of its steps.
//!
//! A draft writes to the index at the revision it will take. Whatever can be refused is checked before the first
//! write, so a draft never needs undoing.

use bytes::Bytes;
use smallvec::SmallVec;

use crate::command::event::Event;
use crate::command::op::{
    DeleteOp, DeleteReply, Op, OpReply, PutLease, PutOp, PutReply, PutValue, Refusal, Txn, TxnReply,
};
use crate::command::tally::{self, Tally};
use crate::entry::{Applied, Change, ChangeKind};
use crate::merge::outcome;
use crate::merge::window::Live;
use crate::store::history::{self, ChangedKeys};
use crate::store::index::{self, Incarnation, KeyVersion};
use crate::store::read::View;
use crate::store::state::State;
use crate::store::system::{SystemKey, SystemValue};
use crate::words::clock::Stamp;
use crate::words::id::{Dot, LeaseId};
use crate::words::key::{self, Key, KeyRange, Keyspace};
use crate::words::revision::Revision;

/// What a transaction has changed so far.
pub struct Draft<'a> {
    state: &'a mut State,
    revision: Revision,
    number: u64,
    own: Incarnation,
    /// Its changes, in order.
    pub changes: Vec<Change>,
    /// The same for watchers.
    pub events: SmallVec<[Event; 1]>,
    /// The client keys among them.
    pub keys: ChangedKeys,
    /// Steps run so far; a group of its own.
    pub tally: Tally,
    /// Checks made before them; another group.
    pub checks: Tally,
}

impl<'a> Draft<'a> {
    /// A draft that will take that revision and journal number, as the entry of that name.
    pub fn new(state: &'a mut State, revision: Revision, number: u64, stamp: Stamp, dot: Dot) -> Self {
        let own = Incarnation { stamp, dot };
        Self {
            state,
            revision,
            number,
            own,
            changes: vec![],
            events: SmallVec::new(),
            keys: ChangedKeys::new(),
            tally: Tally::default(),
            checks: Tally::default(),
        }
    }

    /// The store as this draft sees it.
    fn view(&self) -> View<'_> {
        let current = if self.keys.is_empty() { self.revision.prev() } else { self.revision };
        let State { index, compacted, shared, .. } = &*self.state;
        View { index, current, compacted: *compacted, shared: *shared }
    }

    /// Runs one put.
    ///
    /// # Errors
    /// When it names a lease that is not there, or relies on a key that is not there.
    pub fn put(&mut self, op: &PutOp) -> Result<PutReply, Refusal> {
        if let Err(refusal) = check_put(&self.view(), self.state, op) {
            self.tally.ranges += u64::from(refusal == Refusal::KeyNotFound);
            return Err(refusal);
        }
        Ok(self.do_put(op))
    }

    /// Runs one delete.
    pub fn delete(&mut self, op: &DeleteOp) -> DeleteReply {
        let prev = if op.prev_kv { self.view().all(&op.range) } else { vec![] };
        self.tally.ranges += u64::from(op.prev_kv);
        self.tally.deletes += 1;
        let deleted = self.delete_range(&op.range);
        DeleteReply { revision: self.view().current, deleted, prev }
    }

    /// Runs a transaction.
    ///
    /// # Errors
    /// When a step of the branch that the compares choose must be refused; then nothing of it is done.
    pub fn txn(&mut self, txn: &Txn) -> Result<TxnReply, Refusal> {
        let view = self.view();
        let mut checks = Tally::default();
        let path = compare_path(&view, txn, &mut checks);
        let checked = check(&view, self.state, txn, &mut path.iter(), &mut checks);
        self.checks = checks;
        checked?;
        let mut reply = self.run(txn, &mut path.iter())?;
        reply.revision = self.view().current;
        Ok(reply)
    }

    fn run(&mut self, txn: &Txn, path: &mut std::slice::Iter<'_, bool>) -> Result<TxnReply, Refusal> {
        let (succeeded, ops) = branch(txn, path);
        let mut replies = Vec::with_capacity(ops.len());
        for op in ops {
            replies.push(match op {
                Op::Range(op) => {
                    self.tally.ranges += 1;
                    OpReply::Range(self.view().range(op)?)
                }
                Op::Put(op) => OpReply::Put(self.do_put(op)),
                Op::Delete(op) => OpReply::Delete(self.delete(op)),
                Op::Txn(txn) => OpReply::Txn(self.run(txn, path)?),
            });
        }
        Ok(TxnReply { revision: Revision::default(), succeeded, replies })
    }

    fn do_put(&mut self, op: &PutOp) -> PutReply {
        // Most puts do not ask what was there: spare them the look-up.
        let asks = tally::asks(op);
        let before = asks.then(|| self.state.index.newest(&op.key)).flatten();
        let before = before.filter(|(_, version)| version.value.is_some());
        let prev = before.filter(|_| op.prev_kv).map(|(key, version)| version.to_key_value(key));
        let value = match &op.value {
            // Copied: what came from a socket shares the memory of a whole frame.
            PutValue::Set(value) => Bytes::copy_from_slice(value),
            PutValue::Keep => before.and_then(|(_, version)| version.value.clone()).unwrap_or_default(),
        };
        let lease = match op.lease {
            PutLease::Set(lease) => lease,
            PutLease::Keep => before.and_then(|(_, version)| version.lease),
        };
        self.tally.ranges += u64::from(asks);
        self.tally.puts += 1;
        self.tally.put_bytes += (op.key.len() + value.len()) as u64;
        self.write(&op.key, value, lease);
        PutReply { revision: self.revision, prev }
    }

    /// Writes a client key.
    fn write(&mut self, key: &Key, value: Bytes, lease: Option<LeaseId>) {
        let (local, own, now, revision) = (key::is_replica_local(key), self.own, self.state.now, self.revision);
        let State { index, digest, local_digest, leases, windows, windowed, rules, .. } = &mut *self.state;
        let digest = if local { local_digest } else { digest };
        let windowed = *windowed && !local;
        let version = KeyVersion {
            revision,
            sub: self.keys.len() as u32,
            value: Some(value.clone()),
            create_revision: revision,
            version: 1,
            lease,
            incarnation: own,
            number: self.number,
        };
        let (key, event, version) = index.write(key, version, |key, versions, version| {
            let newest = versions.last();
            let before = newest.filter(|version| version.value.is_some());
            if let Some(before) = before {
                version.create_revision = before.create_revision;
                version.version = before.version + 1;
                version.incarnation = before.incarnation;
                if let Some(old) = &before.value {
                    digest.remove(Keyspace::Client, key, old, before.version, before.lease);
                }
            }
            if windowed {
                let live = before.and_then(KeyVersion::live);
                version.incarnation =
                    outcome::incarnation_of_put(rules, Keyspace::Client, key, live.as_ref(), &value, own);
                windows.open(Keyspace::Client, key, || (live, before.map_or(0, |before| before.number)));
            }
            digest.add(Keyspace::Client, key, &value, version.version, lease);
            leases.reattach(now, key, before.and_then(|v| v.lease), lease);
            // Where one transaction writes a key twice, both events tell what was there before the transaction.
            let told = match newest {
                Some(newest) if newest.revision == revision => index::newest_at(versions, revision.prev()),
                newest => newest,
            };
            let change = (version.sub, version.create_revision, version.version, version.incarnation);
            (key.clone(), history::event(key, told, version), change)
        });
        self.events.push(event);
        self.keys.push((version.0, key.clone()));
        self.changes.push(Change {
            sub: version.0,
            keyspace: Keyspace::Client,
            local,
            key,
            kind: ChangeKind::Put { value, lease },
            create_revision: version.1,
            version: version.2,
            incarnation: version.3,
            applied: Applied::AsIs,
        });
    }

    /// Deletes the client keys of a range; tells how many.
    fn delete_range(&mut self, range: &KeyRange) -> i64 {
        let keys: SmallVec<[Key; 1]> =
            self.state.index.range(range, self.view().current).map(|(key, _)| key.clone()).collect();
        for key in &keys {
            self.remove(key, ChangeKind::Delete);
        }
        keys.len() as i64
    }

    /// Deletes a client key, for the given reason; nothing when it is not there.
    fn remove(&mut self, key: &Key, kind: ChangeKind) {
        if self.state.index.newest(key).is_none_or(|(_, newest)| newest.value.is_none()) {
            return;
        }
        let (sub, local) = (self.keys.len() as u32, key::is_replica_local(key));
        if self.state.windowed && !local {
            self.state.open_client(key);
        }
        let (key, event, incarnation) = self.state.bury(key, self.revision, sub, self.number);
        self.events.push(event);
        self.keys.push((sub, key.clone()));
        self.changes.push(Change {
            sub,
            keyspace: Keyspace::Client,
            local,
            key,
            kind,
            create_revision: Revision::default(),
            version: 0,
            incarnation,
            applied: Applied::AsIs,
        });
    }

    /// Deletes the keys of a lease and the lease itself.
    pub fn end_lease(&mut self, id: LeaseId, kind: ChangeKind) {
        for key in self.state.leases.keys(id) {
            self.tally.deletes += 1;
            self.remove(&key, kind.clone());
        }
        self.state.leases.remove(id);
        self.remove_system(SystemKey::Lease(id), kind);
    }

    /// Makes a key what a write that is made again wants: nothing, a value (of a new life, perhaps), or a delete.
    pub fn again(&mut self, keyspace: Keyspace, key: &Key, wanted: Option<Result<(&Live, bool), ChangeKind>>) {
        match (keyspace, wanted) {
            (_, None) => {}
            (Keyspace::Client, Some(Ok((live, new_life)))) => {
                if new_life {
                    self.remove(key, ChangeKind::Delete);
                }
                self.write(key, live.value.clone(), live.lease);
            }
            (Keyspace::Client, Some(Err(kind))) => self.remove(key, kind),
            (Keyspace::System, Some(wanted)) => {
                let Some(key) = SystemKey::decode(key) else { return };
                match wanted {
                    Ok((live, _)) => self.write_system(key, live.value.clone()),
                    Err(kind) => self.remove_system(key, kind),
                }
            }
        }
    }

    /// Writes a system key.
    pub fn write_system(&mut self, key: SystemKey, value: Bytes) {
        let key = key.encode();
        if self.state.windowed {
            self.state.open_system(&key);
        }
        let mut new = SystemValue { value: value.clone(), version: 1, incarnation: self.own, number: self.number };
        if let Some(old) = self.state.system.get(&key) {
            self.state.dead.change(old.number);
            self.state.digest.remove(Keyspace::System, &key, &old.value, old.version, None);
            (new.version, new.incarnation) = (old.version + 1, old.incarnation);
        }
        self.state.digest.add(Keyspace::System, &key, &value, new.version, None);
        self.change_system(&key, ChangeKind::Put { value, lease: None }, new.version, new.incarnation);
        self.state.system.insert(key, new);
    }

    /// Deletes a system key; nothing when it is not there.
    pub fn remove_system(&mut self, key: SystemKey, kind: ChangeKind) {
        let key = key.encode();
        if self.state.windowed && self.state.system.contains_key(&key) {
            self.state.open_system(&key);
        }
        let Some(old) = self.state.system.remove(&key) else { return };
        // Of a deleted system key nothing need stay: neither its last value nor the record of the delete.
        self.state.dead.change(old.number);
        self.state.dead.grave(self.number);
        self.state.digest.remove(Keyspace::System, &key, &old.value, old.version, None);
        self.change_system(&key, kind, 0, old.incarnation);
    }

    fn change_system(&mut self, key: &Key, kind: ChangeKind, version: i64, incarnation: Incarnation) {
        let sub = self.changes.len() as u32;
        self.changes.push(Change { sub, ..Change::new(Keyspace::System, key.clone(), kind, version, incarnation) });
    }
}

/// Evaluates a transaction that only reads, and counts what it did.
///
/// # Errors
/// When a revision it reads at is compacted or yet to come.
pub fn read(view: &View<'_>, txn: &Txn, tally: &mut Tally) -> Result<TxnReply, Refusal> {
    let mut group = Tally::default();
    let reply = read_group(view, txn, &mut group);
    tally.add_group(group);
    reply
}

fn read_group(view: &View<'_>, txn: &Txn, group: &mut Tally) -> Result<TxnReply, Refusal> {
    let succeeded = all_hold(view, txn, group);
    let ops = if succeeded { &txn.success } else { &txn.failure };
    let ranges = || ops.iter().filter_map(|op| if let Op::Range(op) = op { Some(op) } else { None });
    ranges().try_for_each(|op| view.check(op.at))?;
    group.ranges += ranges().count() as u64;
    let replies = ranges().map(|op| view.range(op).map(OpReply::Range)).collect::<Result<_, _>>()?;
    Ok(TxnReply { revision: view.current, succeeded, replies })
}

/// Whether all compares hold; the first that does not is the last that is looked at.
fn all_hold(view: &View<'_>, txn: &Txn, tally: &mut Tally) -> bool {
    txn.compares.iter().all(|compare| {
        tally.ranges += 1;
        view.holds(compare)
    })
}

/// Which branch each transaction takes, itself first, then the nested ones of that branch in order. All compares see
/// the state before the first write.
fn compare_path(view: &View<'_>, txn: &Txn, tally: &mut Tally) -> Vec<bool> {
    fn walk(view: &View<'_>, txn: &Txn, path: &mut Vec<bool>, tally: &mut Tally) {
        let succeeded = all_hold(view, txn, tally);
        path.push(succeeded);
        for op in if succeeded { &txn.success } else { &txn.failure } {
            if let Op::Txn(nested) = op {
                walk(view, nested, path, tally);
            }
        }
    }
    let mut path = Vec::with_capacity(1);
    walk(view, txn, &mut path, tally);
    path
}

/// The branch that the path's next step takes.
fn branch<'t>(txn: &'t Txn, path: &mut std::slice::Iter<'_, bool>) -> (bool, &'t [Op]) {
    let succeeded = path.next().copied().unwrap_or(false);
    (succeeded, if succeeded { &txn.success } else { &txn.failure })
}

fn check(
    view: &View<'_>,
    state: &State,
    txn: &Txn,
    path: &mut std::slice::Iter<'_, bool>,
    tally: &mut Tally,
) -> Result<(), Refusal> {
    for op in branch(txn, path).1 {
        match op {
            Op::Range(op) => view.check(op.at)?,
            Op::Put(op) => {
                let checked = check_put(view, state, op);
                let looked = tally::asks(op) && checked != Err(Refusal::LeaseNotFound);
                tally.ranges += u64::from(looked);
                checked?;
            }
            Op::Delete(_) => {}
            Op::Txn(nested) => check(view, state, nested, path, tally)?,
        }
    }
    Ok(())
}

fn check_put(view: &View<'_>, state: &State, op: &PutOp) -> Result<(), Refusal> {
    if let PutLease::Set(Some(lease)) = op.lease
        && !state.leases.contains(lease)
    {
        return Err(Refusal::LeaseNotFound);
    }
    let needs_key = op.value == PutValue::Keep || op.lease == PutLease::Keep;
    if needs_key && view.index.get(&op.key, view.current).is_none() {
        return Err(Refusal::KeyNotFound);
    }
    Ok(())
}
