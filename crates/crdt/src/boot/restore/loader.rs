//! Records, taken one by one, in order.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use smallvec::smallvec;

use crate::boot::restore::again::Again;
use crate::boot::restore::damage::Damage;
use crate::boot::restore::replication::{After, Candidate, Transition, before_the_log, restore};
use crate::entry::{Applied, Change, ChangeKind, CodecError, Head, Notes, Record, net};
use crate::merge::rules::ENGINE;
use crate::replica::Replica;
use crate::replica::members::Members;
use crate::store::history::{ChangedKeys, History};
use crate::store::index::Content;
use crate::store::past::Held;
use crate::store::state::{Position, State};
use crate::store::system::{self, SystemKey, SystemValue};
use crate::store::users::Users;
use crate::words::chain::Chain;
use crate::words::clock::{Clock, Now};
use crate::words::id::{Dot, Identity, Origin};
use crate::words::key::{Key, Keyspace};
use crate::words::revision::Revision;
use crate::words::vector::VersionVector;

/// Takes records one by one, in order. Holds no more values than the replica will, unless [it is to](Self::keep_past): what a later
/// record replaced is let go at once, and what the log does not need is not kept.
pub struct Loader {
    head: Option<Head>,
    /// What lies before the log.
    before: VersionVector,
    /// Whether the log holds anything. If not there are no windows either, and nobody asks what a key was.
    has_log: bool,
    state: State,
    changed: Vec<(Revision, ChangedKeys)>,
    last_number: u64,
    /// Of each origin the last entry seen whole, and the chain hash up to it.
    last_whole: BTreeMap<Origin, (Dot, Chain)>,
    candidates: Vec<Candidate>,
    /// What records say of others, with their numbers.
    notes: Vec<(u64, Notes)>,
    /// The number of the last record of a step that is being read, and where its entries begin in `candidates`.
    step: Option<(u64, usize)>,
    engine: u32,
}

impl Loader {
    /// A loader of the records that were stored with that head; `None` for a store that was never written to.
    ///
    /// # Errors
    /// When the bytes are no head.
    pub fn new(head: Option<&Bytes>) -> Result<Self, Damage> {
        Self::of_engine(ENGINE, head)
    }

    /// The same for a build whose newest merge engine is that one.
    ///
    /// # Errors
    /// When the bytes are no head.
    pub fn of_engine(engine: u32, head: Option<&Bytes>) -> Result<Self, Damage> {
        let head = head.map(Head::decode).transpose().map_err(Damage::Head)?;
        let before = head.as_ref().map(before_the_log).unwrap_or_default();
        Ok(Self {
            has_log: head.as_ref().is_some_and(|head| head.vector.iter().any(|dot| !before.contains(dot))),
            head,
            before,
            state: State::empty(Revision::FIRST),
            changed: vec![],
            last_number: 0,
            last_whole: BTreeMap::new(),
            candidates: vec![],
            notes: vec![],
            step: None,
            engine,
        })
    }

    /// Keeps the values that were replaced, too. For the old replica of a member that begins anew: it does not run, and may hold
    /// writes that nobody else has.
    pub fn keep_past(mut self) -> Self {
        self.state.index.keep_past();
        self
    }

    /// Takes the next record, as it was stored under that number.
    ///
    /// # Errors
    /// When it is damaged, or not the one that can come next.
    pub fn record(&mut self, number: u64, bytes: Bytes) -> Result<(), Damage> {
        let mut record = Record::decode(bytes).map_err(|source| Damage::Codec { number, source })?;
        if record.number != number || number <= self.last_number {
            return Err(Damage::Number { found: record.number, last: self.last_number });
        }
        self.last_number = number;
        if !record.notes.is_empty() {
            self.notes.push((number, record.notes));
            return Ok(());
        }
        self.end_step(number);
        self.check_chain(&record)?;
        record.changes.iter_mut().for_each(unshare);
        let candidate = self.candidate(&record);
        if record.changes.iter().any(|change| change.applied.is_none()) {
            self.state.dead.change(number);
        }
        // A revision was taken also where nothing is left of what it did.
        self.changed.extend(record.revision.map(|revision| (revision, ChangedKeys::new())));
        for (applied, change) in record.effective() {
            match change.keyspace {
                Keyspace::Client => {
                    let revision =
                        record.revision.ok_or(Damage::Codec { number, source: CodecError::Field("revision") })?;
                    let revision = revision.after(applied.after);
                    let changed = self.push(number, revision, change, applied)?;
                    match self.changed.last_mut() {
                        Some((last, keys)) if *last == revision => keys.push(changed),
                        _ => self.changed.push((revision, smallvec![changed])),
                    }
                }
                Keyspace::System => self.system(number, change),
            }
        }
        let until = record.until.unwrap_or(number);
        if self.step.is_none() {
            self.step = Some((until, self.candidates.len()));
        }
        self.candidates.extend(candidate);
        Ok(())
    }

    /// What the log may need of a record that is not applied yet.
    fn candidate(&self, record: &Record) -> Option<Candidate> {
        let head = record.head.as_ref().filter(|_| !record.settled)?;
        let is_in_log = !record.trimmed && !self.before.contains(head.dot);
        let entry = if is_in_log { record.entry() } else { None };
        let steps = if self.has_log { self.steps(record) } else { vec![] };
        // Of one that is in the log no more nothing counts but what its keys were.
        (!record.trimmed || !steps.is_empty()).then(|| Candidate {
            number: record.number,
            dot: head.dot,
            first_seq: head.first_seq,
            entry,
            steps,
            is_gone: record.trimmed,
            together: record.until.is_some(),
            has_left: false,
            bases: record.bases.clone(),
        })
    }

    /// What a record's net changes find.
    fn steps(&self, record: &Record) -> Vec<Transition> {
        let net = net(record.changes.iter().filter(|change| !change.local));
        let mut keys: Vec<_> = net.into_iter().map(|change| (change.keyspace, &change.key)).collect();
        // Of one that left the log, a change that was not shown is gone. What a merge made of its key may be left.
        for change in record.outcomes.iter().filter(|_| record.trimmed) {
            let key = (change.keyspace, &change.key);
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        let step = |(keyspace, key): (Keyspace, &Key)| Transition {
            keyspace,
            key: key.clone(),
            before: self.state.record_of(keyspace, key),
            after: None,
        };
        keys.into_iter().map(step).collect()
    }

    /// Before record `number` is read: when it is of another step than those before it, notes what that step made of
    /// its keys, at the last version of each.
    fn end_step(&mut self, number: u64) {
        let Some((_, first)) = self.step.take_if(|(until, _)| *until < number) else { return };
        let mut seen = BTreeSet::new();
        for step in self.candidates[first..].iter_mut().rev().flat_map(|candidate| candidate.steps.iter_mut().rev()) {
            // A system key is what it is after each of its versions, and only the last of a step tells.
            if seen.insert((step.keyspace, step.key.clone())) {
                step.after = Some(After(self.state.record_of(step.keyspace, &step.key)));
            }
        }
    }

    fn check_chain(&mut self, record: &Record) -> Result<(), Damage> {
        let Some(head) = record.head.as_ref().filter(|_| !record.trimmed) else { return Ok(()) };
        let dot = head.dot;
        if let Some((before, chain)) = self.last_whole.get(&dot.origin)
            && before.seq + 1 == head.first_seq
            && *chain != head.previous
        {
            return Err(Damage::Chain { number: record.number, dot });
        }
        let chain = head.previous.extend(head, &record.changes);
        self.last_whole.insert(dot.origin, (dot, chain));
        Ok(())
    }

    fn push(
        &mut self,
        number: u64,
        revision: Revision,
        change: &Change,
        applied: Applied,
    ) -> Result<(u32, Key), Damage> {
        let newest = self.state.index.newest(&change.key).map(|(_, newest)| (newest.revision, newest.sub));
        if newest.is_some_and(|newest| newest >= (revision, applied.sub)) {
            return Err(Damage::Codec { number, source: CodecError::Field("order of changes") });
        }
        let content = match &change.kind {
            ChangeKind::Put { value, lease, version } => {
                let create_revision = applied
                    .create_revision
                    .ok_or(Damage::Codec { number, source: CodecError::Field("create revision") })?;
                Some(Content { value: Held::Here(value.clone()), create_revision, version: *version, lease: *lease })
            }
            ChangeKind::Delete | ChangeKind::Expire => None,
        };
        let version = Position { revision, sub: applied.sub, number }.version(change.incarnation, content);
        let key = self.state.index.write(&change.key, |key, _, _| (version, key.clone()));
        // A range or a watch of the past reads the old value back from the journal.
        self.state.index.release(revision, usize::MAX);
        Ok((applied.sub, key))
    }

    fn system(&mut self, number: u64, change: &Change) {
        let key = change.key.clone();
        let old = match &change.kind {
            ChangeKind::Put { value, version, .. } => {
                let (value, incarnation) = (value.clone(), change.incarnation);
                self.state.system.insert(key, SystemValue { value, version: *version, incarnation, number })
            }
            ChangeKind::Delete | ChangeKind::Expire => {
                self.state.dead.grave(number);
                self.state.system.remove(&key)
            }
        };
        if let Some(old) = old {
            self.state.dead.change(old.number);
        }
    }

    /// The replica whose records these were, with leases counted anew from `now`. A store without records and head
    /// gives a new replica of that identity. Some records are read `again`, by number; `None` where that fails.
    ///
    /// # Errors
    /// When the records do not give the state that the head was stored with, or one cannot be read again.
    pub fn finish(
        mut self,
        now: Now,
        identity: Identity,
        again: &mut dyn FnMut(u64) -> Option<Bytes>,
    ) -> Result<Replica, Damage> {
        let Some(head) = self.head.take() else {
            let replica = Replica::of_engine(identity, self.engine);
            return if self.last_number == 0 { Ok(replica) } else { Err(Damage::NoHead) };
        };
        if self.last_number >= head.next_number {
            return Err(Damage::Number { found: self.last_number, last: head.next_number.saturating_sub(1) });
        }
        if let Some((dot, chain)) = self.last_whole.get(&head.identity.origin())
            && dot.seq == head.vector.get(dot.origin)
            && *chain != head.chain
        {
            return Err(Damage::Chain { number: self.last_number, dot: *dot });
        }
        self.end_step(u64::MAX);
        let history = history(self.changed, &head)?;
        let mut state = self.state;
        (state.compacted, state.swept) = (head.compacted, head.compacted);
        if let Some(at) = head.compacted {
            state.compact_all(at);
        }
        // Old versions are not in the state's hash; that one is missing shows in how many there are.
        if head.versions.is_some_and(|versions| versions != state.index.versions()) {
            return Err(Damage::State { what: "number of versions" });
        }
        if let Some(first) = head.restamped {
            state.index.restamp(first);
        }
        (state.history, state.revision, state.restamped) = (history, head.revision, head.restamped);

        let mut replica = Replica::of_engine(head.identity, self.engine);
        derive(&mut state, &mut replica, now)?;
        if state.digest.get() != head.state_hash {
            return Err(Damage::State { what: "hash of the replicated keys" });
        }
        if state.local_digest.get() != head.local_hash {
            return Err(Damage::State { what: "hash of the replica's own keys" });
        }
        replica.state = state;
        replica.journal.next_number = head.next_number;
        replica.clock = Clock::starting_at(head.stamp);
        (replica.membership.past, replica.membership.lineage) = (head.past, head.lineage);
        restore(&mut replica, head, self.candidates, &self.notes, Again::new(again))?;
        Ok(replica)
    }
}

/// Gives a change a key and a value of its own: those of a record share the memory of a whole page of the journal.
/// The state and the log then hold the same ones.
fn unshare(change: &mut Change) {
    change.key = Bytes::copy_from_slice(&change.key);
    if let ChangeKind::Put { value, .. } = &mut change.kind {
        *value = Bytes::copy_from_slice(value);
    }
}

/// The history from the compacted revision on, without gaps.
fn history(mut changed: Vec<(Revision, ChangedKeys)>, head: &Head) -> Result<History, Damage> {
    // The records of one step share its revisions.
    changed.sort_by_key(|(revision, _)| *revision);
    changed.dedup_by(|(later, more), (revision, keys)| {
        let same = later == revision;
        if same {
            keys.extend(more.drain(..));
            keys.sort_by_key(|(sub, _)| *sub);
        }
        same
    });
    let mut changed = changed.into_iter().skip_while(|(revision, _)| Some(*revision) < head.compacted).peekable();
    // The space's first revision is the empty store: nothing happened there.
    let oldest = Revision::first_in(head.revision.space()).max(head.compacted.unwrap_or(Revision::FIRST));
    let first = match changed.peek() {
        Some((revision, _)) if *revision == oldest => oldest,
        _ => oldest.next(),
    };
    let mut history = History::starting_at(first);
    for (revision, keys) in changed {
        if revision != history.next() {
            return Err(Damage::Revision { missing: history.next() });
        }
        history.push(keys);
    }
    if history.next() != head.revision.next() {
        return Err(Damage::Revision { missing: history.next() });
    }
    Ok(history)
}

/// What is not stored because it follows from the keys: leases, alarms, members, rules, hashes.
fn derive(state: &mut State, replica: &mut Replica, now: Now) -> Result<(), Damage> {
    for (key, value) in &state.system {
        state.digest.add(Keyspace::System, key, &value.value, value.version, None);
        match SystemKey::decode(key) {
            Some(SystemKey::Lease(id)) => {
                let mine = system::lease_owner(&value.value) == Some(replica.identity.replica);
                state.leases.grant(now, id, system::lease_ttl(&value.value).unwrap_or_default(), mine);
            }
            Some(SystemKey::Alarm(alarm)) => {
                state.alarms.insert(alarm);
            }
            _ => {}
        }
    }
    replica.rules = Arc::new(replica.read_rules(&state.system, std::iter::empty())?);
    state.local = replica.rules.first().local_keys();
    replica.membership.members = Members::read(&state.system);
    replica.users = Arc::new(Users::read(&state.system));
    state.shared = replica.membership.members.iter().nth(1).is_some();
    for (key, versions) in state.index.iter() {
        let Some(newest) = versions.last() else { continue };
        let Some(content) = &newest.content else { continue };
        let local = state.local.contains(key);
        let digest = if local { &mut state.local_digest } else { &mut state.digest };
        digest.add(Keyspace::Client, key, content.value.here(), content.version, content.lease);
        state.leases.reattach(now, key, None, content.lease);
    }
    Ok(())
}
