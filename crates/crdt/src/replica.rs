//! The machine: one input at a time, its effects at once.

use bytes::Bytes;
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use crate::clock::{Clock, Now};
use crate::digest;
use crate::entry::{self, Applied, Chain, Change, ChangeKind, Entry, EntryHead, Head, Record};
use crate::event::Commit;
use crate::floor::Acks;
use crate::genesis::Genesis;
use crate::history::{ChangedKeys, History};
use crate::id::{Dot, Identity, LeaseId, Origin, ReplicaId};
use crate::key::{Key, Keyspace};
use crate::lease;
use crate::log::{Log, Logged};
use crate::members::{Member, Members};
use crate::notice::{MergeReport, Notice};
use crate::op::{Alarm, Command, LeaseStatus, RangeOp, RangeReply, Refusal, Reply, Txn, TxnReply};
use crate::origins::OriginState;
use crate::read::View;
use crate::revision::Revision;
use crate::rules::Rules;
use crate::state::State;
use crate::system::{self, SystemKey};
use crate::tally::Tally;
use crate::txn::{self, Draft};
use crate::vector::VersionVector;
use crate::window::Version;
use crate::windows::Windows;

/// What the machine is told.
#[derive(Clone, Debug)]
pub enum Input {
    /// A client's command, or the process's own.
    Client(Command),
    /// Time has passed: leases may have run out.
    Tick,
    /// Entries from a peer, in an order in which what they depend on comes first. Known ones are ignored; those whose
    /// dependencies are missing, and those that cannot be right, are refused with a notice.
    Entries {
        /// Who sent them (not always who made them).
        from: ReplicaId,
        /// The entries.
        entries: Vec<Entry>,
    },
    /// What members have on disk.
    Acks {
        /// What is durable here.
        own: VersionVector,
        /// What the others have, as they said or as it was passed on.
        acks: Vec<(ReplicaId, VersionVector)>,
    },
    /// Everything up to here may be sent to peers from now on. To be durable before the first of it is sent.
    Offer {
        /// Only the part about this replica's own entries counts.
        upto: VersionVector,
    },
    /// A peer reads a snapshot: nothing is settled for a minute, so that its parts fit together.
    Hold,
}

/// How long [`Input::Hold`] holds, milliseconds.
pub const HOLD_MS: u64 = 60_000;

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
    /// Whether all earlier revisions count as compacted from now on: watches are to be cancelled so.
    pub leapt: bool,
    /// What an operator should hear of.
    pub notices: Vec<Notice>,
}

/// What one slice of sweeping did.
#[derive(Debug, Default)]
pub struct Sweep {
    /// Journal numbers of records that lost a change; [`Replica::trim`] tells what is left of them.
    pub dead: Vec<u64>,
    /// Whether nothing is left to sweep.
    pub done: bool,
}

/// Someone lacks entries that are not kept any more because every member had them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("it lacks entries that are not kept any more; it needs a snapshot")]
pub struct BelowFloor;

/// From so many unsettled versions of a key on, those that nobody needs are looked for.
const THIN_OUT_FROM: usize = 16;

/// How many leases may expire in one tick; the rest in the next, so that a crowd of them does not hold up writes.
const EXPIRIES_PER_TICK: usize = 256;

/// One replica.
pub struct Replica {
    pub(crate) identity: Identity,
    pub(crate) state: State,
    pub(crate) history: History,
    /// What changed in spaces that a leap has left, still to be swept.
    pub(crate) retired: VecDeque<ChangedKeys>,
    pub(crate) alarms: BTreeSet<Alarm>,
    pub(crate) revision: Revision,
    pub(crate) next_number: u64,
    pub(crate) vector: VersionVector,
    pub(crate) clock: Clock,
    /// How far the last compaction has been swept.
    pub(crate) swept: Revision,
    /// See [`Head::restamped`].
    pub(crate) restamped: Option<Revision>,
    pub(crate) members: Members,
    /// This replica as an origin, under its present birth.
    pub(crate) own: OriginState,
    /// All other origins.
    pub(crate) others: BTreeMap<Origin, OriginState>,
    /// What was applied from others since the last own entry.
    pub(crate) fresh: VersionVector,
    /// Entries that a member may lack; empty in a cluster of one.
    pub(crate) log: Log,
    /// Where the log begins; means nothing in a cluster of one.
    pub(crate) base: VersionVector,
    /// What every member is known to have; means nothing in a cluster of one.
    pub(crate) floor: VersionVector,
    pub(crate) acks: Acks,
    /// Up to which of its own entries peers may have been sent any.
    pub(crate) offered: u64,
    /// Keys with versions under the floor that could not be settled yet.
    pub(crate) lingering: BTreeSet<(Keyspace, Key)>,
    /// Records that lost a change but are still needed.
    pub(crate) held: BTreeSet<u64>,
    /// Until when nothing is settled, by the monotonic clock.
    pub(crate) hold_until_ms: u64,
    /// Whether a snapshot is being installed: until it is, this member writes nothing.
    pub(crate) joining: bool,
    /// The newest merges that decided something.
    pub(crate) merges: VecDeque<MergeReport>,
}

impl Replica {
    /// An empty replica that belongs to no cluster yet: alone until it is founded, or has a snapshot.
    pub fn new(identity: Identity) -> Self {
        let revision = Revision::first_of(identity.ordinal);
        let state = State::empty();
        Self {
            identity,
            history: History::starting_at(revision.next()),
            retired: VecDeque::new(),
            alarms: BTreeSet::new(),
            revision,
            next_number: 1,
            vector: VersionVector::default(),
            clock: Clock::default(),
            swept: state.compacted,
            restamped: None,
            state,
            members: Members::default(),
            own: OriginState::default(),
            others: BTreeMap::new(),
            fresh: VersionVector::default(),
            log: Log::default(),
            base: VersionVector::default(),
            floor: VersionVector::default(),
            acks: Acks::default(),
            offered: 0,
            lingering: BTreeSet::new(),
            held: BTreeSet::new(),
            hold_until_ms: 0,
            joining: false,
            merges: VecDeque::new(),
        }
    }

    /// A member of a cluster that begins with a static list of members. The effects hold the first record. Whoever is not
    /// on the list gets an empty replica, as by [`Self::new`].
    pub fn found(mut identity: Identity, genesis: &Genesis) -> (Self, Effects) {
        let mut effects = Effects::default();
        let Some(ordinal) = genesis.ordinal_of(identity.replica) else { return (Self::new(identity), effects) };
        identity.ordinal = ordinal;
        let mut replica = Self::new(identity);
        let entry = genesis.entry();
        let (number, dot) = (replica.next_number, entry.head.dot);
        for change in &entry.changes {
            if let ChangeKind::Put { value, .. } = &change.kind {
                let live = crate::window::Live {
                    value: value.clone(),
                    lease: None,
                    version: change.version,
                    incarnation: change.incarnation,
                };
                replica.state.set_system(&change.key, Some(&live), number);
            }
        }
        let state = replica.others.entry(dot.origin).or_default();
        state.chain = state.chain.extend(&entry.head, &entry.changes);
        replica.vector.advance(dot);
        replica.fresh.advance(dot);
        replica.next_number += 1;
        let record = Record {
            number,
            revision: None,
            head: entry.head,
            changes: entry.changes,
            outcomes: vec![],
            trimmed: false,
            settled: true,
            left_out: false,
        };
        effects.records.push(record.encode());
        replica.follow_system(Now::default(), record.changes.iter(), &mut effects);
        (replica, effects)
    }

    /// Handles one input. Deterministic: equal replicas given equal inputs end equal, with equal effects.
    pub fn handle(&mut self, now: Now, input: Input) -> Effects {
        let mut effects = Effects::default();
        self.state.now = now;
        match input {
            Input::Client(command) => effects.reply = Some(self.command(now, command, &mut effects)),
            Input::Tick => {
                for _ in 0..EXPIRIES_PER_TICK {
                    let Some(id) = self.state.leases.first_expired(now) else { break };
                    self.draft(now, &mut effects, |draft| draft.end_lease(id, ChangeKind::Expire));
                }
            }
            Input::Entries { from, entries } => self.receive(now, from, entries, &mut effects),
            Input::Acks { own, acks } => self.acknowledge(now, own, acks, &mut effects),
            Input::Offer { upto } => {
                let offered = upto.get(self.identity.origin());
                if offered > self.offered {
                    self.offered = offered;
                    effects.head_changed = true;
                }
            }
            Input::Hold => self.hold_until_ms = now.mono_ms.saturating_add(HOLD_MS),
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
                let renewal = self.state.leases.renew(now, id).ok_or(Refusal::LeaseNotFound)?;
                if renewal.tell && self.state.windowed {
                    let value = system::lease_value(renewal.ttl_s, self.identity.replica);
                    self.draft(now, effects, |draft| draft.write_system(SystemKey::Lease(id), value));
                }
                Ok(Reply::LeaseRenew { ttl: renewal.ttl_s })
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
            Command::MemberAdd { id, peer_urls, learner } => self.member_add(now, id, peer_urls, learner, effects),
            Command::MemberRemove(id) => self.member_remove(now, id, effects),
            Command::MemberUpdate { id, peer_urls } => self.member_update(now, id, peer_urls, effects),
            Command::MemberPromote(id) => self.member_promote(now, id, effects),
            Command::MemberPublish { name, client_urls } => self.member_publish(now, name, client_urls, effects),
            Command::Leap => self.leap(now, effects),
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
        self.state.leases.grant(now, id, ttl, true);
        let value = system::lease_value(ttl, self.identity.replica);
        self.draft(now, effects, |draft| draft.write_system(SystemKey::Lease(id), value));
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
    pub(crate) fn draft<T>(&mut self, now: Now, effects: &mut Effects, run: impl FnOnce(&mut Draft<'_>) -> T) -> T {
        self.leave_full_space(now, effects);
        let stamp = self.clock.tick(now);
        self.draft_at(stamp, effects, run)
    }

    /// The same with a given stamp.
    pub(crate) fn draft_at<T>(
        &mut self,
        stamp: crate::clock::Stamp,
        effects: &mut Effects,
        run: impl FnOnce(&mut Draft<'_>) -> T,
    ) -> T {
        let origin = self.identity.origin();
        let mut dot = Dot { origin, seq: self.vector.get(origin) + 1 };
        let revision = self.revision.next();
        let number = self.next_number;
        let mut draft = Draft::new(&mut self.state, revision, number, stamp, dot);
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
        let previous = self.own.chain;
        let mut head =
            EntryHead { dot, first_seq: dot.seq, stamp, depends: VersionVector::default(), previous, resulting: None };
        if dot.seq > 0 {
            if !self.fresh.is_empty() {
                head.depends = std::mem::take(&mut self.fresh);
                let mut deps = VersionVector::clone(&self.own.deps);
                deps.merge(&head.depends);
                self.own.deps = Arc::new(deps);
            }
            self.own.chain = previous.extend(&head, &changes);
            self.vector.advance(dot);
        }
        let touched_clients = !keys.is_empty();
        let record = Record {
            number,
            revision: touched_clients.then_some(revision),
            head,
            changes,
            outcomes: vec![],
            trimmed: false,
            settled: !self.state.windowed,
            left_out: false,
        };
        effects.records.push(record.encode());
        self.next_number += 1;
        if touched_clients {
            self.revision = revision;
            self.history.push(keys);
            effects.commits.push(Commit { revision, events });
        }
        if self.state.windowed && dot.seq > 0 {
            self.keep(&record);
        }
        outcome
    }

    /// Keeps an entry of its own for those who lack it.
    fn keep(&mut self, record: &Record) {
        let entry = record.entry();
        let (dot, stamp, deps) = (entry.head.dot, entry.head.stamp, Arc::clone(&self.own.deps));
        for change in entry::net(&entry.changes) {
            let version = Version {
                dot,
                stamp,
                deps: Arc::clone(&deps),
                kind: change.kind.clone(),
                version: change.version,
                incarnation: change.incarnation,
            };
            self.state.windows.add(change.keyspace, &change.key, version);
            let number = if matches!(change.kind, ChangeKind::Put { .. }) { record.number } else { 0 };
            self.state.windows.note(change.keyspace, &change.key, number);
        }
        let (number, chain) = (record.number, self.own.chain);
        let keys: Vec<(Keyspace, Key)> =
            entry::net(&entry.changes).into_iter().map(|change| (change.keyspace, change.key.clone())).collect();
        self.log.push(Logged { number, entry: Arc::new(entry), deps, chain });
        for (keyspace, key) in keys {
            self.thin_out(keyspace, &key);
        }
    }

    /// Leaves out what this replica alone wrote over before any peer was offered it: a long time alone then costs neither
    /// memory nor traffic, however often a key is written.
    fn thin_out(&mut self, keyspace: Keyspace, key: &Key) {
        let len = self.state.windows.get(keyspace, key).map_or(0, |open| open.window.versions().len());
        // Looking at all versions at every write would cost more than it saves.
        if len < THIN_OUT_FROM || !len.is_power_of_two() {
            return;
        }
        let (origin, offered) = (self.identity.origin(), self.offered);
        let Self { log, state, .. } = self;
        let rules = Arc::clone(&state.rules);
        let droppable = |dot: Dot| {
            dot.origin == origin
                && dot.seq > offered
                && log.get(dot).is_some_and(|logged| {
                    let entry = &logged.entry;
                    entry.head.dot == dot && entry.changes.len() == 1 && entry.head.depends.is_empty()
                })
        };
        for dot in state.windows.drop_middles(keyspace, key, &rules, droppable) {
            if let Some(gone) = self.log.leave_out(dot) {
                self.held.remove(&gone.number);
                self.state.dead.push(gone.number);
            }
        }
    }

    /// Drops a slice of what the last compaction hid, at most about `max_changes` of it.
    pub fn sweep(&mut self, max_changes: usize) -> Sweep {
        let at = self.state.compacted;
        let mut dead = std::mem::take(&mut self.state.dead);
        let done = self.sweep_keys(at, max_changes, &mut dead);
        let (held, dead): (Vec<_>, Vec<_>) = dead.into_iter().partition(|number| self.is_retained(*number));
        self.held.extend(held);
        Sweep { dead, done }
    }

    fn sweep_keys(&mut self, at: Revision, max_changes: usize, dead: &mut Vec<u64>) -> bool {
        let mut budget = max_changes;
        while budget > 0 {
            if let Some(keys) = self.retired.pop_front() {
                budget = budget.saturating_sub(keys.len());
                for (_, key) in &keys {
                    self.state.index.compact(key, at, &mut |number| dead.push(number));
                }
                continue;
            }
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
                return true;
            };
            budget = budget.saturating_sub(keys.len());
            for (_, key) in &keys {
                self.state.index.compact(key, at, &mut |number| dead.push(number));
            }
        }
        false
    }

    /// What is left of a record on disk after a sweep; `None` when nothing of it is needed any more.
    pub fn trim(&self, record: &Bytes) -> Option<Bytes> {
        let Ok(mut decoded) = Record::decode(record.clone()) else {
            // Not ours to judge here: start-up reports damage, with the place.
            return Some(record.clone());
        };
        let number = decoded.number;
        if self.log.by_number(number).is_some() {
            return Some(record.clone());
        }
        let revision = decoded.revision;
        let needed = |change: &Change| {
            let at = revision.map(|at| if change.applied == Applied::Later { at.next() } else { at });
            change.applied != Applied::Not
                && (self.state.windows.get(change.keyspace, &change.key).is_some_and(|w| w.base_number == number)
                    || match change.keyspace {
                        Keyspace::Client => {
                            at.is_some_and(|at| self.state.index.holds(&change.key, at, change.sub, number))
                        }
                        Keyspace::System => {
                            self.state.system.get(&change.key).is_some_and(|value| value.number == number)
                        }
                    })
        };
        let before = decoded.changes.len() + decoded.outcomes.len();
        decoded.changes.retain(needed);
        decoded.outcomes.retain(needed);
        let after = decoded.changes.len() + decoded.outcomes.len();
        // One that was left out of the log is no entry any more, even if clients can still read all of it.
        let left_out = decoded.head.dot.seq > self.log_base().get(decoded.head.dot.origin);
        if after == before && !(left_out && !decoded.trimmed) {
            return Some(record.clone());
        }
        decoded.trimmed = true;
        decoded.left_out |= left_out;
        (after > 0).then(|| decoded.encode())
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
            chain: self.own.chain,
            stamp: self.clock.last(),
            state_hash: self.state.digest.get(),
            local_hash: self.state.local_digest.get(),
            versions: (self.swept == self.state.compacted).then(|| self.state.index.versions()),
            floor: self.floor().clone(),
            acks: self.acks.counted().iter().map(|(member, ack)| (*member, ack.clone())).collect(),
            origins: self.origin_heads(),
            offered: self.offered,
            restamped: self.restamped,
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

    /// All members, also those that were removed, in order of id.
    pub fn members(&self) -> impl Iterator<Item = &Member> {
        self.members.iter()
    }

    /// What every member is known to have on disk.
    pub fn floor(&self) -> &VersionVector {
        if self.state.windowed { &self.floor } else { &self.vector }
    }

    /// Durable vectors of members, as far as they count: all that is in them is known here.
    pub fn acks(&self) -> &BTreeMap<ReplicaId, VersionVector> {
        self.acks.counted()
    }

    /// The chain hash of every origin up to its newest entry here.
    pub fn chains(&self) -> impl Iterator<Item = (Dot, Chain)> + '_ {
        self.vector.iter().map(|dot| {
            let others = || self.others.get(&dot.origin).map(|state| state.chain);
            let own = dot.origin == self.identity.origin();
            (dot, if own { self.own.chain } else { others().unwrap_or_default() })
        })
    }

    /// The chain hash up to an entry that is in the log, or is the last one before it.
    pub fn chain_at(&self, dot: Dot) -> Option<Chain> {
        if let Some(logged) = self.log.get(dot) {
            return (logged.entry.head.dot == dot).then_some(logged.chain);
        }
        let own = dot.origin == self.identity.origin();
        let state = if own { Some(&self.own) } else { self.others.get(&dot.origin) }?;
        if dot.seq == self.vector.get(dot.origin) {
            return Some(state.chain);
        }
        (self.state.windowed && dot.seq == self.base.get(dot.origin)).then_some(state.base_chain)
    }

    /// Entries that `have` lacks and that are durable here, each after all that it depends on, until about `max_bytes`.
    ///
    /// # Errors
    /// When `have` lacks something that is not kept any more because every member had it: whoever lacks it needs a
    /// snapshot.
    pub fn entries_for(
        &self,
        have: &VersionVector,
        durable: &VersionVector,
        max_bytes: usize,
    ) -> Result<Vec<Arc<Entry>>, BelowFloor> {
        if !have.covers(self.log_base()) {
            return Err(BelowFloor);
        }
        Ok(self.log.missing(have, durable, max_bytes))
    }

    /// Up to which of its own entries peers may have been sent any.
    pub fn offered(&self) -> u64 {
        self.offered
    }

    /// How many entries are kept because some member may lack them.
    pub fn log_len(&self) -> usize {
        self.log.len()
    }

    /// How many keys have versions that some member may lack.
    pub fn windows_len(&self) -> usize {
        self.state.windows.len()
    }

    /// The unsettled versions of all keys.
    pub fn windows(&self) -> &Windows {
        &self.state.windows
    }

    /// The entries that some member may lack.
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// How concurrent writes are merged.
    pub fn rules(&self) -> &Rules {
        &self.state.rules
    }

    /// The newest merges that decided something, oldest first.
    pub fn recent_merges(&self) -> impl Iterator<Item = &MergeReport> {
        self.merges.iter()
    }

    /// The bytes of that hash (XXH3, 128 bits) among what this replica knows of a key: its value, and those of its
    /// unsettled versions.
    pub fn value_by_hash(&self, keyspace: Keyspace, key: &[u8], hash: u128) -> Option<Bytes> {
        let of = |value: &Bytes| xxhash_rust::xxh3::xxh3_128(value) == hash;
        let present = self.state.live(keyspace, key).0.map(|live| live.value);
        if let Some(value) = present.filter(of) {
            return Some(value);
        }
        let window = &self.state.windows.get(keyspace, key)?.window;
        let versions = window.versions().iter().rev().filter_map(|version| match &version.kind {
            ChangeKind::Put { value, .. } => Some(value),
            ChangeKind::Delete | ChangeKind::Expire => None,
        });
        versions.chain(window.base().map(|live| &live.value)).find(|value| of(value)).cloned()
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

    /// Alarms that stop writes here: all but those of other members. Clients see every alarm, as in etcd, where any of
    /// them stops all members; but here each member has its own disk to fill, and the others go on without it.
    pub fn alarms_that_stop(&self) -> impl Iterator<Item = Alarm> + '_ {
        let elsewhere = |member| member != self.identity.replica && self.members.is_present(member);
        self.alarms().filter(move |alarm| !elsewhere(alarm.member))
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
