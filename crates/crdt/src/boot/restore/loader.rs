//! Records, taken one by one, in order.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use smallvec::smallvec;

use crate::boot::restore::damage::Damage;
use crate::boot::restore::replication::{After, Candidate, Transition, restore};
use crate::entry::{Applied, Change, ChangeKind, CodecError, Entry, Head, Record};
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

/// Takes records one by one, in order.
pub struct Loader {
    state: State,
    changed: Vec<(Revision, ChangedKeys)>,
    last_number: u64,
    /// Of each origin the last entry seen whole, and the chain hash up to it.
    last_whole: BTreeMap<Origin, (Dot, Chain)>,
    candidates: Vec<Candidate>,
    /// The number of the last record of a step that is being read, and where its entries begin in `candidates`.
    step: Option<(u64, usize)>,
    engine: u32,
}

impl Default for Loader {
    fn default() -> Self {
        Self {
            state: State::empty(Revision::FIRST),
            changed: vec![],
            last_number: 0,
            last_whole: BTreeMap::new(),
            candidates: vec![],
            step: None,
            engine: ENGINE,
        }
    }
}

impl Loader {
    /// A loader that has seen nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// The same for a build whose newest merge engine is that one.
    pub fn of_engine(engine: u32) -> Self {
        Self { engine, ..Self::default() }
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
        self.end_step(number);
        self.check_chain(&record)?;
        record.changes.iter_mut().for_each(unshare);
        let entry = record.entry().filter(|_| !record.settled);
        let net = entry.iter().flat_map(Entry::net).map(|change| (change.keyspace, change.key.clone()));
        let mut keys: Vec<_> = net.collect();
        // Of one that left the log, a change that was not shown is gone. What a merge made of its key may be left.
        for change in record.outcomes.iter().filter(|_| record.trimmed) {
            let key = (change.keyspace, change.key.clone());
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        let before: Vec<_> = keys.into_iter().map(|(at, key)| (at, self.state.recorded(at, &key), key)).collect();
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
        if let Some(entry) = entry {
            let steps =
                before.into_iter().map(|(keyspace, before, key)| Transition { keyspace, key, before, after: None });
            let steps = steps.collect();
            self.candidates.push(Candidate {
                number,
                entry,
                steps,
                is_gone: record.trimmed,
                together: record.until.is_some(),
            });
        }
        Ok(())
    }

    /// Before record `number` is read: when it is of another step than those before it, notes what that step made of
    /// its keys, at the last version of each.
    fn end_step(&mut self, number: u64) {
        let Some((_, first)) = self.step.take_if(|(until, _)| *until < number) else { return };
        let mut seen = BTreeSet::new();
        for step in self.candidates[first..].iter_mut().rev().flat_map(|candidate| candidate.steps.iter_mut().rev()) {
            // A system key is what it is after each of its versions, and only the last of a step tells.
            if seen.insert((step.keyspace, step.key.clone())) {
                step.after = Some(After(self.state.recorded(step.keyspace, &step.key).map(|recorded| recorded.number)));
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
        Ok((applied.sub, self.state.index.write(&change.key, |key, _| (version, key.clone()))))
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
    /// gives a new replica of that identity.
    ///
    /// # Errors
    /// When the records do not give the state that the head was stored with.
    pub fn finish(mut self, now: Now, head: Option<&Bytes>, identity: Identity) -> Result<Replica, Damage> {
        let Some(head) = head else {
            let replica = Replica::of_engine(identity, self.engine);
            return if self.last_number == 0 { Ok(replica) } else { Err(Damage::NoHead) };
        };
        let head = Head::decode(head).map_err(Damage::Head)?;
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
        replica.membership.past = head.past;
        restore(&mut replica, head, self.candidates)?;
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
