//! The machine: one input at a time, its effects at once.

pub(crate) mod acks;
mod local;
pub(crate) mod log;
pub(crate) mod members;
mod membership;
pub(crate) mod origins;
pub(crate) mod query;
mod rebirth;
pub(crate) mod remote;
mod settle;
mod spaces;
pub(crate) mod sweep;

use bytes::Bytes;
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use crate::command::event::Commit;
use crate::command::notice::{MergeReport, Notice};
use crate::command::op::{Alarm, Command, RangeOp, RangeReply, Refusal, Reply, Txn, TxnReply};
use crate::command::tally::Tally;
use crate::entry::{ChangeKind, Entry, Head, Past};
use crate::replica::acks::Acks;
use crate::replica::log::Log;
use crate::replica::members::Members;
use crate::replica::origins::OriginState;
use crate::store::digest;
use crate::store::history::{ChangedKeys, History};
use crate::store::lease;
use crate::store::read::View;
use crate::store::state::State;
use crate::store::system::{self, SystemKey};
use crate::store::txn;
use crate::words::clock::{Clock, Now};
use crate::words::id::{Birth, Identity, LeaseId, Origin, ReplicaId};
use crate::words::key::{Key, Keyspace};
use crate::words::revision::Revision;
use crate::words::vector::VersionVector;

/// What the machine is told.
#[derive(Clone, Debug)]
pub enum Input {
    /// A client's command, or the process's own.
    Client(Command),
    /// Time has passed: leases may have run out, a hold may be over. See [`Replica::next_tick_ms`].
    Tick,
    /// Entries from a peer, in an order in which what they depend on comes first. Known ones are ignored; those whose
    /// dependencies are missing, and those that cannot be right, are refused with a notice.
    Entries {
        /// Who sent them (not always who made them).
        from: ReplicaId,
        /// Its birth, and those under which entries of it were known when it was greeted. Where entries of another have come
        /// since, it has lost its disk: this is from before, and others may have settled what it does not depend on.
        births: Arc<[Birth]>,
        /// The entries.
        entries: Vec<Entry>,
    },
    /// What members have on disk.
    Acks {
        /// What is durable here.
        own: VersionVector,
        /// What the others have, as they said or as it was passed on.
        acks: Vec<(Origin, VersionVector)>,
    },
    /// Everything up to here may be sent to peers from now on. To be durable before the first of it is sent.
    Offer {
        /// Only the part about this replica's own entries counts.
        upto: VersionVector,
    },
    /// What is on disk may be less than what peers know of this replica: it goes on under this birth, which must never
    /// have been used.
    Doubt(Birth),
    /// A member begins, under that birth, with what this replica has. To be durable before it is given anything.
    Begins {
        /// Which.
        member: ReplicaId,
        /// Its birth.
        birth: Birth,
    },
    /// That member was greeted and does not know more of this replica.
    Met(ReplicaId),
    /// A peer reads a snapshot: nothing is settled for a minute, so that its parts fit together.
    Hold,
    /// No peer reads a snapshot any more: what could not be settled meanwhile is.
    Release,
}

/// How long [`Input::Hold`] holds without [`Input::Release`], milliseconds.
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
    /// Records of tombstones that nobody can see any more, but that may hide a put in one of those.
    pub(crate) graves: BTreeSet<u64>,
    /// Until when nothing is settled, by the monotonic clock.
    pub(crate) hold_until_ms: u64,
    /// Whether a snapshot is being installed: until it is, this member writes nothing.
    pub(crate) joining: bool,
    pub(crate) past: Past,
    /// Who was met since this replica is in doubt.
    pub(crate) met: BTreeSet<ReplicaId>,
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
            graves: BTreeSet::new(),
            hold_until_ms: 0,
            joining: false,
            past: Past::default(),
            met: BTreeSet::new(),
            merges: VecDeque::new(),
        }
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
                if self.hold_until_ms > 0 && now.mono_ms >= self.hold_until_ms {
                    // Nobody need say anything for what waited to be settled.
                    self.hold_until_ms = 0;
                    self.advance(now, &mut effects);
                }
            }
            Input::Entries { from, births, entries } => self.receive(now, from, &births, entries, &mut effects),
            Input::Acks { own, acks } => self.acknowledge(now, own, acks, &mut effects),
            Input::Offer { upto } => {
                let offered = upto.get(self.identity.origin());
                if offered > self.offered {
                    self.offered = offered;
                    effects.head_changed = true;
                }
            }
            Input::Doubt(birth) => self.doubt(now, birth, &mut effects),
            Input::Begins { member, birth } => self.announce(now, member, birth, &mut effects),
            Input::Met(member) => self.meet(member, &mut effects),
            Input::Hold => self.hold_until_ms = now.mono_ms.saturating_add(HOLD_MS),
            Input::Release => {
                self.hold_until_ms = 0;
                self.advance(now, &mut effects);
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
        if self.is_foreign(at, self.revision) {
            return Err(Refusal::Compacted);
        }
        if at > self.revision {
            return Err(Refusal::FutureRevision);
        }
        self.state.compacted = at;
        effects.head_changed = true;
        Ok(Reply::Compact)
    }

    /// The store as of that revision. A compaction above it is not durable yet, and must not have been swept: whoever
    /// reads here may still read at the newest revision that is.
    fn view(&self, current: Revision) -> View<'_> {
        let State { index, compacted, shared, .. } = &self.state;
        View { index, current, compacted: (*compacted).min(current), shared: *shared }
    }

    /// Whether a revision is of another space than `current` and may be another replica's: what came since cannot be told,
    /// so whoever asks for it is answered as if it were compacted.
    pub fn is_foreign(&self, at: Revision, current: Revision) -> bool {
        self.view(current).is_foreign(at)
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
        if at.get() > 0 && (at < self.state.compacted || self.is_foreign(at, self.revision)) {
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
            past: self.past,
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::op::{PutLease, PutOp, PutValue};
    use crate::words::id::{Birth, ClusterId, ReplicaId};
    use crate::words::key::{Key, KeyRange};

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
