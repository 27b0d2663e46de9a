//! The machine: one input at a time, its effects at once.

use bytes::Bytes;
use smallvec::SmallVec;
use std::collections::BTreeSet;

use crate::clock::{Clock, Now};
use crate::digest::{self, Digest};
use crate::entry::{Chain, ChangeKind, EntryHead, Head, Record};
use crate::event::Commit;
use crate::history::History;
use crate::id::{Dot, Identity, LeaseId};
use crate::index::Index;
use crate::key::Keyspace;
use crate::lease::{self, Leases};
use crate::op::{Alarm, Command, LeaseStatus, RangeOp, RangeReply, Refusal, Reply, Txn, TxnReply};
use crate::read::View;
use crate::revision::Revision;
use crate::system::{self, System, SystemKey};
use crate::tally::Tally;
use crate::txn::{self, Draft};
use crate::vector::VersionVector;

/// What the machine is told.
#[derive(Clone, Debug)]
pub enum Input {
    /// A client's command, or the process's own.
    Client(Command),
    /// Time has passed: leases may have run out.
    Tick,
}

/// What an input leads to. The state has changed already; none of this may leave the process before the records and
/// the head are durable.
#[derive(Debug, Default)]
pub struct Effects {
    /// The answer to a command.
    pub reply: Option<Result<Reply, Refusal>>,
    /// Records to journal, under consecutive numbers.
    pub records: SmallVec<[Bytes; 1]>,
    /// What watchers are to be told, in order.
    pub commits: SmallVec<[Commit; 1]>,
    /// Whether the head changed although there may be no record: it is to be stored all the same.
    pub head_changed: bool,
    /// What was done, also for an answer that refuses.
    pub tally: Tally,
}

/// What one slice of sweeping did.
#[derive(Debug, Default)]
pub struct Sweep {
    /// Journal numbers of records that lost a change; [`Replica::trim`] tells what is left of them.
    pub dead: Vec<u64>,
    /// Whether nothing is left to sweep.
    pub done: bool,
}

/// How many leases may expire in one tick; the rest in the next, so that a crowd of them does not hold up writes.
const EXPIRIES_PER_TICK: usize = 256;

/// What a draft may change.
pub struct State {
    /// All client keys.
    pub index: Index,
    /// All system keys.
    pub system: System,
    /// All leases.
    pub leases: Leases,
    /// Revision of the last compaction; -1 for none.
    pub compacted: Revision,
    /// Hash over what is replicated.
    pub digest: Digest,
    /// Hash over what stays on this replica.
    pub local_digest: Digest,
    /// Records that lost a change since the last sweep.
    pub dead: Vec<u64>,
}

impl State {
    /// The hash that a client key counts in.
    pub fn digest_of(&mut self, local: bool) -> &mut Digest {
        if local { &mut self.local_digest } else { &mut self.digest }
    }
}

/// One replica.
pub struct Replica {
    pub(crate) identity: Identity,
    pub(crate) state: State,
    pub(crate) history: History,
    pub(crate) alarms: BTreeSet<Alarm>,
    pub(crate) revision: Revision,
    pub(crate) next_number: u64,
    pub(crate) vector: VersionVector,
    pub(crate) chain: Chain,
    pub(crate) clock: Clock,
    /// How far the last compaction has been swept.
    pub(crate) swept: Revision,
}

impl Replica {
    /// An empty replica.
    pub fn new(identity: Identity) -> Self {
        let revision = Revision::first_of(identity.ordinal);
        let none = Revision::new(-1);
        Self {
            identity,
            state: State {
                index: Index::default(),
                system: System::new(),
                leases: Leases::default(),
                compacted: none,
                digest: Digest::default(),
                local_digest: Digest::default(),
                dead: vec![],
            },
            history: History::starting_at(revision.next()),
            alarms: BTreeSet::new(),
            revision,
            next_number: 1,
            vector: VersionVector::default(),
            chain: Chain::default(),
            clock: Clock::default(),
            swept: none,
        }
    }

    /// Handles one input. Deterministic: equal replicas given equal inputs end equal, with equal effects.
    pub fn handle(&mut self, now: Now, input: Input) -> Effects {
        let mut effects = Effects::default();
        match input {
            Input::Client(command) => effects.reply = Some(self.command(now, command, &mut effects)),
            Input::Tick => {
                for _ in 0..EXPIRIES_PER_TICK {
                    let Some(id) = self.state.leases.first_expired(now) else { break };
                    self.draft(now, &mut effects, |draft| draft.end_lease(id, ChangeKind::Expire));
                }
            }
        }
        effects
    }

    fn command(&mut self, now: Now, command: Command, effects: &mut Effects) -> Result<Reply, Refusal> {
        match command {
            Command::Put(op) => self.draft(now, effects, |draft| draft.put(&op)).map(Reply::Put),
            Command::Delete(op) => Ok(Reply::Delete(self.draft(now, effects, |draft| draft.delete(&op)))),
            Command::Txn(txn) => self.draft(now, effects, |draft| draft.txn(&txn)).map(Reply::Txn),
            Command::Compact(at) => self.compact(Revision::new(at), effects),
            Command::LeaseGrant { id, ttl } => self.grant(now, id, ttl, effects),
            Command::LeaseRevoke(id) => {
                if !self.state.leases.contains(id) {
                    return Err(Refusal::LeaseNotFound);
                }
                self.draft(now, effects, |draft| draft.end_lease(id, ChangeKind::Delete));
                Ok(Reply::LeaseRevoke)
            }
            Command::LeaseRenew(id) => {
                let ttl = self.state.leases.renew(now, id).ok_or(Refusal::LeaseNotFound)?;
                Ok(Reply::LeaseRenew { ttl })
            }
            Command::SetAlarm { alarm, raised } => {
                let changed = self.alarms.contains(&alarm) != raised;
                if changed {
                    let key = SystemKey::Alarm(alarm);
                    if raised {
                        self.alarms.insert(alarm);
                        self.draft(now, effects, |draft| draft.write_system(key, Bytes::new()));
                    } else {
                        self.alarms.remove(&alarm);
                        self.draft(now, effects, |draft| draft.remove_system(key, ChangeKind::Delete));
                    }
                }
                Ok(Reply::SetAlarm { changed })
            }
        }
    }

    fn grant(&mut self, now: Now, id: LeaseId, ttl: i64, effects: &mut Effects) -> Result<Reply, Refusal> {
        if ttl > lease::MAX_TTL_S {
            return Err(Refusal::LeaseTtlTooLarge);
        }
        if self.state.leases.contains(id) {
            return Err(Refusal::LeaseExists);
        }
        let ttl = ttl.max(lease::MIN_TTL_S);
        self.state.leases.grant(now, id, ttl);
        self.draft(now, effects, |draft| draft.write_system(SystemKey::Lease(id), system::lease_value(ttl)));
        Ok(Reply::LeaseGrant { id, ttl })
    }

    fn compact(&mut self, at: Revision, effects: &mut Effects) -> Result<Reply, Refusal> {
        if at <= self.state.compacted {
            return Err(Refusal::Compacted);
        }
        if at > self.revision {
            return Err(Refusal::FutureRevision);
        }
        self.state.compacted = at;
        effects.head_changed = true;
        Ok(Reply::Compact)
    }

    /// Runs one transaction and, if it changed anything, commits it as one entry and one record.
    fn draft<T>(&mut self, now: Now, effects: &mut Effects, run: impl FnOnce(&mut Draft<'_>) -> T) -> T {
        let origin = self.identity.origin();
        let mut dot = Dot { origin, seq: self.vector.get(origin) + 1 };
        let stamp = self.clock.tick(now);
        let revision = self.revision.next();
        let mut draft = Draft::new(&mut self.state, revision, self.next_number, stamp, dot);
        let outcome = run(&mut draft);
        let (changes, events, keys) = (draft.changes, draft.events, draft.keys);
        effects.tally.add_group(draft.checks);
        effects.tally.add_group(draft.tally);
        if changes.is_empty() {
            return outcome;
        }
        if changes.iter().all(|change| change.local) {
            // Never sent, so it must leave no hole in the numbers of what is.
            dot.seq = 0;
        }
        let head = EntryHead { dot, stamp, depends: VersionVector::default(), previous: self.chain };
        if dot.seq > 0 {
            self.chain = self.chain.extend(&head, &changes);
            self.vector.advance(dot);
        }
        let touched_clients = !keys.is_empty();
        let record = Record {
            number: self.next_number,
            revision: touched_clients.then_some(revision),
            head,
            changes,
            trimmed: false,
        };
        effects.records.push(record.encode());
        self.next_number += 1;
        if touched_clients {
            self.revision = revision;
            self.history.push(keys);
            effects.commits.push(Commit { revision, events });
        }
        outcome
    }

    /// Drops a slice of what the last compaction hid, at most about `max_changes` of it.
    pub fn sweep(&mut self, max_changes: usize) -> Sweep {
        let at = self.state.compacted;
        let mut dead = std::mem::take(&mut self.state.dead);
        let mut budget = max_changes;
        while budget > 0 {
            let keys = match self.history.peek() {
                Some((revision, _)) if revision < at => self.history.pop(),
                // What changed at the compacted revision itself stays in the history: a watch may start there.
                Some((revision, keys)) if revision == at && self.swept < at => {
                    self.swept = at;
                    Some(keys.clone())
                }
                _ => None,
            };
            let Some(keys) = keys else {
                self.swept = at;
                return Sweep { dead, done: true };
            };
            budget = budget.saturating_sub(keys.len());
            for (_, key) in &keys {
                self.state.index.compact(key, at, &mut |number| dead.push(number));
            }
        }
        Sweep { dead, done: false }
    }

    /// What is left of a record on disk after a sweep; `None` when nothing of it is needed any more.
    pub fn trim(&self, record: &Bytes) -> Option<Bytes> {
        let Ok(mut decoded) = Record::decode(record.clone()) else {
            // Not ours to judge here: start-up reports damage, with the place.
            return Some(record.clone());
        };
        let (number, revision, before) = (decoded.number, decoded.revision, decoded.changes.len());
        decoded.changes.retain(|change| match change.keyspace {
            Keyspace::Client => revision.is_some_and(|at| self.state.index.at(&change.key, at, change.sub).is_some()),
            Keyspace::System => self.state.system.get(&change.key).is_some_and(|value| value.number == number),
        });
        if decoded.changes.len() == before {
            return Some(record.clone());
        }
        decoded.trimmed = true;
        (!decoded.changes.is_empty()).then(|| decoded.encode())
    }

    /// The store as of that revision. A compaction above it is not durable yet, and must not have been swept: whoever
    /// reads here may still read at the newest revision that is.
    fn view(&self, current: Revision) -> View<'_> {
        View { index: &self.state.index, current, compacted: self.state.compacted.min(current) }
    }

    /// Reads a range, taking `as_of` as the newest revision.
    ///
    /// # Errors
    /// When the revision asked for is compacted or yet to come.
    pub fn range(&self, op: &RangeOp, as_of: Revision) -> Result<RangeReply, Refusal> {
        self.view(as_of).range(op)
    }

    /// Evaluates a transaction that only reads, taking `as_of` as the newest revision. Adds to `tally` what was done.
    ///
    /// # Errors
    /// When a revision it reads at is compacted or yet to come.
    pub fn read_txn(&self, txn: &Txn, as_of: Revision, tally: &mut Tally) -> Result<TxnReply, Refusal> {
        txn::read(&self.view(as_of), txn, tally)
    }

    /// Whole commits from revision `from` to `to`, both included, until at least `limit` events are together. What
    /// lies below [`Self::compacted`] is gone.
    pub fn events(&self, from: Revision, to: Revision, limit: usize) -> Vec<Commit> {
        self.history.commits(&self.state.index, from, to, limit)
    }

    /// The hash that etcd's HashKV gives at that revision (zero: now), with the revision it was taken at.
    ///
    /// # Errors
    /// When the revision is compacted or yet to come.
    pub fn hash_kv(&self, at: i64) -> Result<(u32, Revision), Refusal> {
        let at = if at == 0 { self.revision } else { Revision::new(at) };
        if at.get() > 0 && at < self.state.compacted {
            return Err(Refusal::Compacted);
        }
        if at > self.revision {
            return Err(Refusal::FutureRevision);
        }
        Ok((digest::hash_kv(&self.state.index, self.state.compacted, at), at))
    }

    /// The state to store with the next flush.
    pub fn head(&self) -> Head {
        Head {
            identity: self.identity,
            next_number: self.next_number,
            revision: self.revision,
            compacted: self.state.compacted,
            vector: self.vector.clone(),
            chain: self.chain,
            stamp: self.clock.last(),
            state_hash: self.state.digest.get(),
            local_hash: self.state.local_digest.get(),
            versions: (self.swept == self.state.compacted).then(|| self.state.index.versions()),
        }
    }

    /// Who this is.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// The newest revision; it may not be durable yet.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// The revision of the last compaction; -1 for none.
    pub fn compacted(&self) -> Revision {
        self.state.compacted
    }

    /// The number that the next record will have.
    pub fn next_number(&self) -> u64 {
        self.next_number
    }

    /// What it has applied.
    pub fn vector(&self) -> &VersionVector {
        &self.vector
    }

    /// Hash over the replicated state.
    pub fn state_hash(&self) -> u128 {
        self.state.digest.get()
    }

    /// How many client keys have a value.
    pub fn live_keys(&self) -> usize {
        self.state.index.live()
    }

    /// Alarms that are raised, in a fixed order.
    pub fn alarms(&self) -> impl Iterator<Item = Alarm> + '_ {
        self.alarms.iter().copied()
    }

    /// What is known of a lease.
    pub fn lease(&self, now: Now, id: LeaseId) -> Option<LeaseStatus> {
        self.state.leases.status(now, id)
    }

    /// All leases with the milliseconds that are left of each, in order of id.
    pub fn leases(&self, now: Now) -> impl Iterator<Item = (LeaseId, u64)> + '_ {
        self.state.leases.iter(now)
    }

    /// When the next lease runs out, milliseconds of the monotonic clock.
    pub fn next_lease_deadline_ms(&self) -> Option<u64> {
        self.state.leases.next_deadline_ms()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{Birth, ClusterId, ReplicaId};
    use crate::key::{Key, KeyRange};
    use crate::op::{PutLease, PutOp, PutValue};

    /// A reader is shown the newest durable revision. While a compaction above it waits for its flush, that reader was
    /// told that the present was compacted.
    #[test]
    fn a_compaction_above_the_revision_read_at_hides_nothing() {
        let identity =
            Identity { cluster: ClusterId::new(1), replica: ReplicaId::new(1), birth: Birth::new(1), ordinal: 0 };
        let (mut replica, key) = (Replica::new(identity), Key::from_static(b"k"));
        for value in ["a", "b"] {
            let value = PutValue::Set(Bytes::from_static(value.as_bytes()));
            let put = PutOp { key: key.clone(), value, lease: PutLease::Set(None), prev_kv: false };
            replica.handle(Now::default(), Input::Client(Command::Put(put)));
        }
        replica.handle(Now::default(), Input::Client(Command::Compact(3)));
        let read = |as_of| replica.range(&RangeOp::all(KeyRange::Key(key.clone())), Revision::new(as_of));
        assert_eq!(read(2).map(|reply| reply.kvs[0].value.clone()), Ok(Bytes::from_static(b"a")));
        assert_eq!(read(3).map(|reply| reply.kvs[0].value.clone()), Ok(Bytes::from_static(b"b")));
    }
}
