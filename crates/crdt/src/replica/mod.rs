//! The machine: one input at a time, its effects at once.

pub(crate) mod acks;
mod auth;
pub(crate) mod backup;
mod command;
pub(crate) mod definitions;
pub(crate) mod forget;
pub(crate) mod heard;
mod journal;
mod leases;
mod leave;
mod local;
pub(crate) mod log;
pub(crate) mod marks;
pub(crate) mod members;
mod membership;
pub(crate) mod origins;
pub(crate) mod prepare;
pub(crate) mod prepared;
pub(crate) mod query;
mod rebirth;
pub(crate) mod remote;
pub(crate) mod replication;
pub(crate) mod rules;
mod schemas;
mod settle;
mod showing;
pub(crate) mod spaces;
mod step;
pub(crate) mod strays;
pub(crate) mod sweep;
pub(crate) mod told;
pub(crate) mod turn;

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;

use crate::command::event::Commit;
use crate::command::notice::MergeReport;
use crate::command::op::{Command, RangeOp, Txn};
use crate::command::reply::{RangeReply, Refusal, TxnReply};
use crate::command::tally::Tally;
use crate::entry::{Head, Record};
use crate::merge::book::RuleBook;
use crate::merge::rules::ENGINE;
use crate::replica::definitions::Schemas;
use crate::replica::journal::Journal;
use crate::replica::marks::Marks;
use crate::replica::members::Membership;
use crate::replica::origins::Origins;
use crate::replica::replication::{Replication, SETTLE_PACE};
use crate::replica::told::Told;
use crate::replica::turn::{Effects, HOLD_MS, Input, Turn};
use crate::store::hash_kv::HashWalk;
use crate::store::history::EventsAsked;
use crate::store::past::{PastPlace, PastValues};
use crate::store::range::RangeWalk;
use crate::store::state::State;
use crate::store::txn;
use crate::store::users::Users;
use crate::words::clock::{Clock, Now};
use crate::words::id::Identity;
use crate::words::revision::Revision;
use crate::words::vector::VersionVector;

/// How many leases may expire in one tick; the rest in the next, so that a crowd of them does not hold up writes.
const EXPIRIES_PER_TICK: usize = 256;

/// One replica of the store: a state machine that is told everything and does nothing by itself.
///
/// # Where one comes from
/// [`Loader`](crate::Loader) makes it from its journal, [`Replica::found`] from a list of founders,
/// [`Installer`](crate::Installer) from a peer's state. [`Replica::new`] makes an empty one that has yet to join.
///
/// # Calls
/// - [`Replica::handle`] takes one [`Input`] and returns its [`Effects`]. Beside it only [`Replica::sweep`] changes anything.
/// - Reads ([`Replica::range`], [`Replica::read_txn`], [`Replica::events`]) take the revision that counts as the newest. The
///   caller gives the newest *durable* one, so no read shows what a crash could take back.
/// - [`Replica::next_tick_ms`] says when [`Input::Tick`] has something to do.
/// - [`Replica::entries_for`], [`Replica::snapshot_chunk`] and what a [`Session`](crate::sync::Session) asks read what peers lack.
///   They are given what is durable, and show nothing above it.
///
/// # Effects, and when they may be used
/// The state has changed when `handle` returns. Its effects wait for the disk. In this order, for one input or for a group of
/// inputs at once:
/// 1. Write `records`, in their order, together with [`Replica::head`] as it is after the last of these inputs, in one atomic
///    batch. A group without records is written too if `head_changed` is set in any of its effects.
/// 2. Make the batch durable.
/// 3. Only then use `reply`, `commits`, `leapt` and `notices`, in the order of the inputs, and count the vector and the revision
///    as durable.
///
/// If a write fails, nothing of the group or after it may leave the process, and the replica must be made anew from the
/// journal. Further inputs may be handled while an earlier group is on its way to the disk.
///
/// # After a compaction
/// A compaction hides history at once. [`Replica::sweep`] then drops what it hid in slices, between groups. For each record in
/// [`Sweep::dead`](crate::Sweep::dead), in ascending order, [`Replica::trim`] says what is left of it in the journal.
pub struct Replica {
    pub(crate) identity: Identity,
    /// The keys, and what is derived from them.
    pub(crate) state: State,
    /// The numbers of its records.
    pub(crate) journal: Journal,
    pub(crate) clock: Clock,
    /// The users and roles, as the system keys say.
    pub(crate) users: Arc<Users>,
    /// How concurrent versions are merged.
    pub(crate) rules: Arc<RuleBook>,
    /// The schemas of custom resources, as their definitions here say.
    pub(crate) schemas: Schemas,
    /// The newest merge engine of this build.
    pub(crate) engine: u32,
    /// Which entries it has applied, by their origins.
    pub(crate) origins: Origins,
    /// The members of the cluster, and what they have on disk.
    pub(crate) membership: Membership,
    /// What is kept for the sake of other members; `None` in a cluster of one.
    pub(crate) replication: Option<Replication>,
    /// How far entries may have been sent to members.
    pub(crate) marks: Marks,
    /// The newest merges that decided something.
    pub(crate) merges: VecDeque<MergeReport>,
    /// The losses that were told.
    pub(crate) told: Told,
    /// About how much is settled in one turn.
    pub(crate) settle_pace: usize,
}

impl Replica {
    /// An empty replica that belongs to no cluster yet: alone until it is founded, or has a snapshot.
    pub fn new(identity: Identity) -> Self {
        Self::of_engine(identity, ENGINE)
    }

    /// The same for a build whose newest merge engine is that one.
    pub fn of_engine(identity: Identity, engine: u32) -> Self {
        Self {
            identity,
            state: State::empty(Revision::first_of(identity.ordinal)),
            journal: Journal::default(),
            clock: Clock::default(),
            users: Arc::default(),
            rules: Arc::default(),
            schemas: Schemas::default(),
            engine,
            origins: Origins::default(),
            membership: Membership::default(),
            replication: None,
            marks: Marks::default(),
            merges: VecDeque::new(),
            told: Told::default(),
            settle_pace: SETTLE_PACE,
        }
    }

    /// Handles one input. Deterministic: equal replicas given equal inputs end equal, with equal effects.
    pub fn handle(&mut self, now: Now, input: Input) -> Effects {
        let mut turn = Turn::new(now);
        match input {
            Input::Client(command) => turn.effects.reply = Some(self.command(&mut turn, command)),
            Input::Tick => self.tick(&mut turn),
            Input::Entries { from, births, entries, together } => {
                self.receive(&mut turn, from, &births, entries, together);
            }
            Input::Acks { own, acks } => self.acknowledge(&mut turn, own, acks),
            Input::Stream { member, session } => {
                self.leave_before_stream(member);
                turn.effects.head_changed |= self.marks.stream(member, session, &self.origins.vector);
            }
            Input::Stop { member, session, upto } => {
                let upto = upto.map(|upto| upto.meet(&self.origins.vector));
                let upto = upto.as_ref().unwrap_or(&self.origins.vector);
                turn.effects.head_changed |= self.marks.stop(member, session, upto);
            }
            Input::Doubt(birth) => self.doubt(&mut turn, birth),
            Input::Begins { member, birth } => self.announce_next(&mut turn, member, birth),
            Input::Hold => {
                if let Some(replication) = &mut self.replication {
                    replication.hold_until_ms = Some(now.mono_ms.saturating_add(HOLD_MS));
                }
            }
            Input::Release => self.release_hold(&mut turn),
        }
        turn.effects.head_changed |= self.journal.is_unnoted();
        turn.effects
    }

    fn tick(&mut self, turn: &mut Turn) {
        self.expire_leases(turn, EXPIRIES_PER_TICK);
        self.leave_in_time(turn.now);
        if self.read_schemas(turn.now) {
            self.move_rules(turn);
        }
        let hold_until_ms = self.replication.as_ref().and_then(|replication| replication.hold_until_ms);
        if hold_until_ms.is_some_and(|until_ms| turn.now.mono_ms >= until_ms) {
            // What waited for the hold is settled now, without another acknowledgement.
            self.release_hold(turn);
        } else if self.replication.as_ref().is_some_and(|replication| !replication.is_settled()) {
            self.advance(turn);
        }
    }

    fn release_hold(&mut self, turn: &mut Turn) {
        if let Some(replication) = &mut self.replication {
            replication.hold_until_ms = None;
        }
        self.advance(turn);
    }

    /// Whether a revision is of another space than `current` and may be another replica's. What came since cannot be
    /// told, so requests for it are answered as if it were compacted.
    pub fn is_foreign(&self, at: Revision, current: Revision) -> bool {
        self.state.is_foreign(at, current)
    }

    /// Reads a range, taking `as_of` as the newest revision. What replaced values it needs is told by `past`.
    ///
    /// # Errors
    /// When the revision asked for is compacted or yet to come.
    pub fn range(&self, op: &RangeOp, as_of: Revision, past: &PastValues) -> Result<RangeReply, Refusal> {
        self.state.view(as_of, past).range(op)
    }

    /// Begins to read a range, taking `as_of` as the newest revision, to go on with [`Self::range_on`]. No compaction above
    /// the [revision that is read](RangeWalk::at) must be swept meanwhile.
    ///
    /// # Errors
    /// When the revision asked for is compacted or yet to come.
    pub fn begin_range(&self, op: &RangeOp, as_of: Revision) -> Result<RangeWalk, Refusal> {
        self.state.view(as_of, &PastValues::default()).begin(op)
    }

    /// Looks at the next keys of a range, at most `max` of them. Tells whether these were the last.
    ///
    /// # Errors
    /// As compacted, when all keys were stamped anew since it began.
    pub fn range_on(&self, walk: &mut RangeWalk, max: usize) -> Result<bool, Refusal> {
        if walk.restamped() != self.state.restamped {
            return Err(Refusal::Compacted);
        }
        Ok(walk.go_on(&self.state.index, max))
    }

    /// Evaluates a transaction that only reads, taking `as_of` as the newest revision. Adds to `tally` what was done.
    /// What replaced values it needs is told by `past`.
    ///
    /// # Errors
    /// When a revision it reads at is compacted or yet to come.
    pub fn read_txn(
        &self,
        txn: &Txn,
        as_of: Revision,
        tally: &mut Tally,
        past: &PastValues,
    ) -> Result<TxnReply, Refusal> {
        txn::read(&self.state.view(as_of, past), txn, tally)
    }

    /// Commits with the events that are asked for, and the revision up to which these are all. What lies below
    /// [`Self::compacted`] is gone. Ends before the first commit of which `past` lacks something.
    pub fn events(&self, asked: &EventsAsked<'_>, past: &PastValues) -> (Vec<Commit>, Revision) {
        self.state.history.commits(&self.state.index, asked, past)
    }

    /// Lets the values go from memory that versions up to `durable` have replaced, at most about `max_changes` of them:
    /// readers have them read from the journal (see [`PastValues`]). Tells whether nothing is left.
    pub fn release(&mut self, durable: Revision, max_changes: usize) -> bool {
        self.state.index.release(durable, max_changes)
    }

    /// How many bytes of replaced values wait in memory until they are [released](Self::release).
    pub fn replaced_bytes(&self) -> usize {
        self.state.index.replaced_bytes()
    }

    /// The places of replaced values that a command reads. They must be [given](Self::give_past) before it is handled.
    pub fn reads_past(&self, command: &Command) -> Vec<PastPlace> {
        let Command::Txn(txn) = command else { return vec![] };
        let mut past = PastValues::default();
        txn::read_past(&self.state.view(self.state.revision, &past), txn);
        past.missing()
    }

    /// Gives what the next command reads of the past.
    pub fn give_past(&mut self, past: PastValues) {
        self.state.given = past.into_given();
    }

    /// The hash that etcd's HashKV gives at that revision (none: now), with the revision it was taken at, in one piece.
    ///
    /// # Errors
    /// When the revision is compacted or yet to come.
    pub fn hash_kv(&self, at: Option<Revision>) -> Result<(u32, Revision), Refusal> {
        let mut walk = self.begin_hash(at)?;
        self.hash_on(&mut walk, usize::MAX)?;
        let at = walk.at();
        Ok((walk.finish(), at))
    }

    /// Begins that hash, to go on with [`Self::hash_on`]. No later compaction must be swept meanwhile.
    ///
    /// # Errors
    /// When the revision is compacted or yet to come.
    pub fn begin_hash(&self, at: Option<Revision>) -> Result<HashWalk, Refusal> {
        let State { revision, compacted, .. } = &self.state;
        let at = at.unwrap_or(*revision);
        if at.get() > 0 && (Some(at) < *compacted || self.is_foreign(at, *revision)) {
            return Err(Refusal::Compacted);
        }
        if at > *revision {
            return Err(Refusal::FutureRevision);
        }
        Ok(HashWalk::new(*compacted, at, self.state.restamped))
    }

    /// Looks at about `max` further versions. Tells whether these were the last.
    ///
    /// # Errors
    /// As compacted, when all keys were stamped anew since it began.
    pub fn hash_on(&self, walk: &mut HashWalk, max: usize) -> Result<bool, Refusal> {
        if walk.restamped() != self.state.restamped {
            return Err(Refusal::Compacted);
        }
        Ok(walk.go_on(&self.state.index, max))
    }

    /// The state to store with the next flush.
    pub fn head(&self) -> Head {
        let state = &self.state;
        Head {
            identity: self.identity,
            next_number: self.journal.next_number,
            revision: state.revision,
            compacted: state.compacted,
            vector: self.origins.vector.clone(),
            chain: self.origins.own.chain,
            stamp: self.clock.last(),
            state_hash: state.digest.get(),
            local_hash: state.local_digest.get(),
            versions: (state.swept == state.compacted).then(|| state.index.versions()),
            floor: self.floor().clone(),
            acks: self.membership.acks.counted().iter().map(|(member, ack)| (*member, ack.clone())).collect(),
            origins: self.origin_heads(),
            marks: self.marks.version(),
            sent_to_others: self.marks.rest().clone(),
            sent: self.marks.iter().map(|(member, upto)| (member, upto.cloned())).collect(),
            restamped: state.restamped,
            past: self.membership.past,
            lineage: self.membership.lineage,
        }
    }

    /// What the next flush ends with: one more record, where something is to be noted of others, and the head to store with it.
    pub fn close_group(&mut self) -> (Option<Bytes>, Head) {
        let noted = self.journal.is_unnoted().then(|| {
            let number = self.journal.number();
            let notes = self.journal.note(self.replication.as_ref().map(|replication| &replication.log), number);
            Record::of_notes(number, notes).encode()
        });
        (noted, self.head())
    }

    /// The names of this replica.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// The newest revision; it may not be durable yet.
    pub fn revision(&self) -> Revision {
        self.state.revision
    }

    /// The revision of the last compaction.
    pub fn compacted(&self) -> Option<Revision> {
        self.state.compacted
    }

    /// The number that the next record will have.
    pub fn next_number(&self) -> u64 {
        self.journal.next_number
    }

    /// What it has applied.
    pub fn vector(&self) -> &VersionVector {
        &self.origins.vector
    }

    /// Hash over the replicated state.
    pub fn state_hash(&self) -> u128 {
        self.state.digest.get()
    }

    /// How many versions of client keys there are, deletes included.
    pub fn versions(&self) -> u64 {
        self.state.index.versions()
    }

    /// How many client keys have a value.
    pub fn live_keys(&self) -> usize {
        self.state.index.live()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

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
        let read = |as_of| {
            replica.range(&RangeOp::all(KeyRange::Key(key.clone())), Revision::new(as_of), &PastValues::default())
        };
        assert_eq!(read(2).map(|reply| reply.kvs[0].value.clone()), Ok(Bytes::from_static(b"a")));
        assert_eq!(read(3).map(|reply| reply.kvs[0].value.clone()), Ok(Bytes::from_static(b"b")));
    }
}
