//! A transaction in progress: what it changes, and the evaluation of its steps.
//!
//! A transaction writes to the index at the revision it will take. Whatever can be refused is checked before the first
//! write, so a transaction never needs undoing.

use bytes::Bytes;
use smallvec::SmallVec;

use crate::command::event::Event;
use crate::command::op::{DeleteOp, Op, PutLease, PutOp, PutValue, RangeOp, ReadAt, Txn};
use crate::command::reply::{DeleteReply, OpReply, PutReply, Refusal, TxnReply};
use crate::command::tally::{self, Tally};
use crate::entry::{Applied, Change, ChangeKind};
use crate::store::history::{self, ChangedKeys};
use crate::store::index::Content;
use crate::store::past::{Held, PastValues};
use crate::store::read::View;
use crate::store::state::{Buried, Position, Recorded, State};
use crate::store::system::{SystemKey, SystemValue};
use crate::words::clock::Now;
use crate::words::id::LeaseId;
use crate::words::key::{Key, KeyRange, Keyspace};
use crate::words::revision::Revision;
use crate::words::value::{Incarnation, Live};

/// Whether a put of the second value over the first one begins a new incarnation of that client key.
pub type BeginsAnew<'a> = &'a dyn Fn(&[u8], &[u8], &[u8]) -> bool;

/// Where a transaction writes.
#[derive(Clone, Copy)]
pub struct TxnSlot {
    /// What the clocks say.
    pub now: Now,
    /// The revision that it takes if it changes client keys.
    pub revision: Revision,
    /// The journal number of its record.
    pub number: u64,
    /// The incarnation of keys that it creates.
    pub own: Incarnation,
}

/// What a write that is made again makes of a key.
pub enum Again {
    /// It is written.
    Put {
        /// What it holds then.
        live: Live,
        /// Whether that is a new incarnation of it.
        begins_anew: bool,
    },
    /// It is deleted, for that reason.
    Delete(ChangeKind),
}

/// A key that a transaction has changed, and what it was before.
pub struct Touched {
    /// The keyspace.
    pub keyspace: Keyspace,
    /// The key.
    pub key: Key,
    /// What it was; `None` when it was not there.
    pub before: Option<Recorded>,
}

/// What a transaction has changed so far.
pub struct Transaction<'a> {
    state: &'a mut State,
    place: TxnSlot,
    /// `None` where there are no other members: then nobody asks which incarnation a put belongs to, nor what was before.
    begins_anew: Option<BeginsAnew<'a>>,
    past: PastValues,
    /// Its changes, in order.
    pub changes: Vec<Change>,
    /// The same for watchers.
    pub events: SmallVec<[Event; 1]>,
    /// The client keys among them.
    pub keys: ChangedKeys,
    /// What replicated keys were before each of its changes; empty where there are no other members.
    pub touched: SmallVec<[Touched; 1]>,
    /// Steps run so far; a group of its own.
    pub tally: Tally,
    /// Checks made before them; another group.
    pub checks: Tally,
}

impl<'a> Transaction<'a> {
    /// A transaction that has changed nothing.
    pub fn new(state: &'a mut State, place: TxnSlot, begins_anew: Option<BeginsAnew<'a>>) -> Self {
        let past = PastValues::of(std::mem::take(&mut state.given));
        Self {
            state,
            place,
            begins_anew,
            past,
            changes: vec![],
            events: SmallVec::new(),
            keys: ChangedKeys::new(),
            touched: SmallVec::new(),
            tally: Tally::default(),
            checks: Tally::default(),
        }
    }

    /// The store as this transaction sees it.
    fn view(&self) -> View<'_> {
        let revision = self.place.revision;
        let current = if self.keys.is_empty() { revision.prev() } else { revision };
        let State { index, compacted, restamped, shared, .. } = &*self.state;
        let (compacted, restamped, shared) = (*compacted, *restamped, *shared);
        View { index, current, compacted, restamped, shared, past: &self.past }
    }

    /// The position of its next change of a client key.
    fn position(&self) -> Position {
        Position { revision: self.place.revision, sub: self.keys.len() as u32, number: self.place.number }
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
        self.run(txn, &mut path.iter())
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
        Ok(TxnReply { revision: self.view().current, succeeded, replies })
    }

    fn do_put(&mut self, op: &PutOp) -> PutReply {
        // Most puts do not ask what was there: spare them the look-up.
        let asks = tally::asks(op);
        let before = asks.then(|| self.state.index.newest(&op.key)).flatten();
        let prev = before
            .filter(|_| op.prev_kv)
            .and_then(|(key, version)| version.to_key_value(key, self.state.index.past(&self.past)));
        let before = before.and_then(|(_, version)| version.content.as_ref());
        let value = match &op.value {
            // Copied: what came from a socket shares the memory of a whole frame.
            PutValue::Set(value) => Bytes::copy_from_slice(value),
            PutValue::Keep => before.map(|content| content.value.here().clone()).unwrap_or_default(),
        };
        let lease = match op.lease {
            PutLease::Set(lease) => lease,
            PutLease::Keep => before.and_then(|content| content.lease),
        };
        self.tally.ranges += u64::from(asks);
        self.tally.puts += 1;
        self.tally.put_bytes += (op.key.len() + value.len()) as u64;
        self.write(&op.key, value, lease);
        PutReply { revision: self.place.revision, prev }
    }

    /// Writes a client key.
    fn write(&mut self, key: &Key, value: Bytes, lease: Option<LeaseId>) {
        let (local, own, now, at) = (self.state.local.contains(key), self.place.own, self.place.now, self.position());
        let State { index, digest, local_digest, leases, .. } = &mut *self.state;
        let digest = if local { local_digest } else { digest };
        let (touched, begins_anew) = (&mut self.touched, self.begins_anew.filter(|_| !local));
        let (event, change) = index.write(key, |key, versions, lately| {
            let newest = versions.last();
            let before = newest.and_then(|newest| Some((newest, newest.content.as_ref()?)));
            let (mut create_revision, mut version, mut incarnation) = (at.revision, 1, own);
            if let Some((newest, content)) = before {
                digest.remove(Keyspace::Client, key, content.value.here(), content.version, content.lease);
                (create_revision, version) = (content.create_revision, content.version + 1);
                if !begins_anew.is_some_and(|begins_anew| begins_anew(key, content.value.here(), &value)) {
                    incarnation = newest.incarnation;
                }
            }
            if begins_anew.is_some() {
                let before = newest.and_then(|newest| newest.recorded());
                touched.push(Touched { keyspace: Keyspace::Client, key: key.clone(), before });
            }
            digest.add(Keyspace::Client, key, &value, version, lease);
            leases.reattach(now, key, before.and_then(|(_, content)| content.lease), lease);
            let content = Content { value: Held::Here(value.clone()), create_revision, version, lease };
            let written = at.version(incarnation, Some(content));
            // Where one transaction writes a key twice, both events tell what was there before the transaction.
            let event = history::coming(key, versions, &written, lately);
            let change = Change {
                keyspace: Keyspace::Client,
                local,
                key: key.clone(),
                kind: ChangeKind::Put { value, lease, version },
                incarnation,
                applied: Some(Applied { sub: at.sub, create_revision: Some(create_revision), after: 0 }),
            };
            (written, (event, change))
        });
        self.events.push(event);
        self.keys.push((at.sub, change.key.clone()));
        self.changes.push(change);
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
        let (at, local) = (self.position(), self.state.local.contains(key));
        let Some(Buried { key, event, before }) = self.state.bury(self.place.now, key, at) else { return };
        let incarnation = before.live.incarnation;
        if self.begins_anew.is_some() && !local {
            self.touched.push(Touched { keyspace: Keyspace::Client, key: key.clone(), before: Some(before) });
        }
        self.events.push(event);
        self.keys.push((at.sub, key.clone()));
        let applied = Some(Applied { sub: at.sub, create_revision: None, after: 0 });
        self.changes.push(Change { local, applied, ..Change::new(Keyspace::Client, key, kind, incarnation) });
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

    /// Makes a key what a write that is made again wants.
    pub fn again(&mut self, keyspace: Keyspace, key: &Key, wanted: Again) {
        match (keyspace, wanted) {
            (Keyspace::Client, Again::Put { live, begins_anew }) => {
                if begins_anew {
                    self.remove(key, ChangeKind::Delete);
                }
                self.write(key, live.value, live.lease);
            }
            (Keyspace::Client, Again::Delete(kind)) => self.remove(key, kind),
            (Keyspace::System, wanted) => match (SystemKey::decode(key), wanted) {
                (None, _) => {}
                (Some(key), Again::Put { live, .. }) => self.write_system(key, live.value),
                (Some(key), Again::Delete(kind)) => self.remove_system(key, kind),
            },
        }
    }

    /// Writes a system key.
    pub fn write_system(&mut self, key: SystemKey, value: Bytes) {
        let (key, TxnSlot { own, number, .. }) = (key.encode(), self.place);
        let mut new = SystemValue { value: value.clone(), version: 1, incarnation: own, number };
        let old = self.state.system.get(&key);
        if self.begins_anew.is_some() {
            let before = old.map(SystemValue::recorded);
            self.touched.push(Touched { keyspace: Keyspace::System, key: key.clone(), before });
        }
        if let Some(old) = old {
            self.state.dead.change(old.number);
            self.state.digest.remove(Keyspace::System, &key, &old.value, old.version, None);
            (new.version, new.incarnation) = (old.version + 1, old.incarnation);
        }
        self.state.digest.add(Keyspace::System, &key, &value, new.version, None);
        self.change_system(&key, ChangeKind::Put { value, lease: None, version: new.version }, new.incarnation);
        self.state.system.insert(key, new);
    }

    /// Deletes a system key; nothing when it is not there.
    pub fn remove_system(&mut self, key: SystemKey, kind: ChangeKind) {
        let key = key.encode();
        let Some(old) = self.state.system.remove(&key) else { return };
        // Of a deleted system key nothing need stay: neither its last value nor the record of the delete.
        self.state.dead.change(old.number);
        self.state.dead.grave(self.place.number);
        self.state.digest.remove(Keyspace::System, &key, &old.value, old.version, None);
        self.change_system(&key, kind, old.incarnation);
        if self.begins_anew.is_some() {
            let before = Some(old.recorded());
            self.touched.push(Touched { keyspace: Keyspace::System, key, before });
        }
    }

    fn change_system(&mut self, key: &Key, kind: ChangeKind, incarnation: Incarnation) {
        let applied = Some(Applied { sub: self.changes.len() as u32, create_revision: None, after: 0 });
        self.changes.push(Change { applied, ..Change::new(Keyspace::System, key.clone(), kind, incarnation) });
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
            Op::Range(op) => {
                view.check(op.at)?;
                check_past(view, op)?;
            }
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

/// Refuses to read replaced values that were not given: nobody has them any more.
fn check_past(view: &View<'_>, op: &RangeOp) -> Result<(), Refusal> {
    if matches!(op.at, ReadAt::Revision(_)) {
        view.range(op)?;
    }
    if view.past.is_short() { Err(Refusal::Compacted) } else { Ok(()) }
}

/// Reads what a transaction may read at revisions of the past, whichever branches it takes.
pub fn read_past(view: &View<'_>, txn: &Txn) {
    for op in txn.success.iter().chain(&txn.failure) {
        match op {
            // What is refused reads nothing.
            Op::Range(op) if matches!(op.at, ReadAt::Revision(_)) => drop(view.range(op)),
            Op::Txn(nested) => read_past(view, nested),
            Op::Range(_) | Op::Put(_) | Op::Delete(_) => {}
        }
    }
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
