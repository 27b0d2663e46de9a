//! What can be asked of a replica beside the keys of clients: what peers are told, and what operators look at.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use crate::command::member::Member;
use crate::command::notice::MergeReport;
use crate::command::op::Alarm;
use crate::command::reply::LeaseStatus;
use crate::entry::{ChangeKind, Entry};
use crate::merge::book::RuleBook;
use crate::merge::windows::{KeyWindow, Windows};
use crate::replica::Replica;
use crate::replica::log::Log;
use crate::replica::marks::{Marks, Statement};
use crate::store::system::{AnnouncedBirth, SystemKey};
use crate::words::chain::Chain;
use crate::words::clock::Now;
use crate::words::id::{Dot, LeaseId, Origin, ReplicaId};
use crate::words::key::Keyspace;
use crate::words::vector::VersionVector;

/// A peer lacks entries that are not kept any more because every member had them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("it lacks entries that are not kept any more; it needs a snapshot")]
pub struct BelowFloor;

impl Replica {
    /// All members, also those that were removed, in order of id.
    pub fn members(&self) -> impl Iterator<Item = &Member> {
        self.membership.members.iter()
    }

    /// What every member is known to have on disk.
    pub fn floor(&self) -> &VersionVector {
        self.replication.as_ref().map_or(&self.origins.vector, |replication| &replication.floor)
    }

    /// Durable vectors of members, as far as they count: all that is in them is known here.
    pub fn acks(&self) -> &BTreeMap<Origin, VersionVector> {
        self.membership.acks.counted()
    }

    /// The durable vector of a member under its present birth, as far as it counts.
    pub fn ack_of(&self, member: ReplicaId) -> Option<&VersionVector> {
        self.membership.acks.of(member, self.membership.members.birth_of(member))
    }

    /// How many system keys there are.
    pub fn system_len(&self) -> usize {
        self.state.system.len()
    }

    /// The birth under which a member goes on, if it was announced: a first one need not be.
    pub fn birth_of(&self, member: ReplicaId) -> Option<AnnouncedBirth> {
        self.membership.members.birth_of(member)
    }

    /// The chain hash of every origin up to its newest entry here.
    pub fn chains(&self) -> impl Iterator<Item = (Dot, Chain)> + '_ {
        self.origins.vector.iter().map(|dot| {
            let state = self.origins.get(self.identity.origin(), dot.origin);
            (dot, state.map(|state| state.chain).unwrap_or_default())
        })
    }

    /// The chain hash up to an entry that is in the log, or is the last one before it.
    pub fn chain_at(&self, dot: Dot) -> Option<Chain> {
        if let Some(logged) = self.log().and_then(|log| log.get(dot)) {
            return (logged.entry.head.dot == dot).then_some(logged.chain);
        }
        let state = self.origins.get(self.identity.origin(), dot.origin)?;
        if dot.seq == self.origins.vector.get(dot.origin) {
            return Some(state.chain);
        }
        let replication = self.replication.as_ref().filter(|kept| dot.seq == kept.base.get(dot.origin))?;
        Some(replication.begins.get(&dot.origin).map(|state| state.chain).unwrap_or_default())
    }

    /// Entries that `have` lacks and that are durable here, each after all that it depends on, until about `max_bytes`.
    ///
    /// # Errors
    /// When `have` lacks something that is not kept any more because every member had it. Then its owner needs a
    /// snapshot.
    pub fn entries_for(
        &self,
        have: &VersionVector,
        durable: &VersionVector,
        max_bytes: usize,
    ) -> Result<Vec<Arc<Entry>>, BelowFloor> {
        if !self.has_told(have, self.log_base()) {
            return Err(BelowFloor);
        }
        Ok(self.log().map(|log| log.missing(have, durable, max_bytes)).unwrap_or_default())
    }

    /// How many entries up to `upto` a replica lacks that has `have`. What was left out because it was written over is sent to
    /// nobody and does not count.
    pub fn count_for(&self, have: &VersionVector, upto: &VersionVector) -> u64 {
        let begins = self.log_base();
        let of_origin = |newest: Dot| {
            let (has, begin) = (have.get(newest.origin), begins.get(newest.origin).min(newest.seq));
            let kept = || self.log().map_or(0, |log| log.count_between(newest.origin, has.max(begin), newest.seq));
            // The last one may stand for more than is asked about.
            if has >= newest.seq { 0 } else { (begin.saturating_sub(has) + kept()).max(1) }
        };
        upto.iter().map(of_origin).sum()
    }

    /// Whether one that told that it has these entries has all of `what`: it may not have told yet what they depend on.
    pub(crate) fn has_told(&self, told: &VersionVector, what: &VersionVector) -> bool {
        let with_past = || self.replication.as_ref().map(|replication| replication.told_with(told));
        told.covers(what) || with_past().is_some_and(|told| told.covers(what))
    }

    /// Whether a replica that has `have`, and knows that all have `floor`, takes what it lacks of the log. It refuses what
    /// does not depend on the floor. An origin's first entry that it lacks decides: the later ones depend on more. A floor that
    /// is not covered here is nonsense: this replica has acknowledged what a peer knows all to have.
    pub(crate) fn is_taken_by(&self, have: &VersionVector, floor: &VersionVector) -> bool {
        let Some(log) = self.log().filter(|_| self.origins.vector.covers(floor)) else { return true };
        let lacking = self.origins.vector.iter().filter(|newest| !have.contains(*newest));
        let firsts = lacking.filter_map(|newest| log.of(newest.origin, have.get(newest.origin) + 1).next());
        firsts.into_iter().all(|logged| {
            let mut seen = VersionVector::clone(&logged.deps);
            seen.advance(logged.entry.head.dot);
            seen.covers(floor)
        })
    }

    /// How far entries may have been sent to members.
    pub fn marks(&self) -> &Marks {
        &self.marks
    }

    /// What this replica says of its marks.
    pub fn said(&self) -> Statement {
        let own = self.identity.replica;
        self.marks.said(self.membership.counting().into_iter().filter(|member| *member != own))
    }

    /// What a member said of its marks, as far as it counts.
    pub fn said_of(&self, member: Origin) -> Option<&Statement> {
        self.membership.acks.said(member)
    }

    /// How many entries are kept because some member may lack them.
    pub fn log_len(&self) -> usize {
        self.log().map_or(0, Log::len)
    }

    /// How many keys have versions that some member may lack.
    pub fn windows_len(&self) -> usize {
        self.windows().map_or(0, Windows::len)
    }

    /// The unsettled versions of all keys; `None` in a cluster of one.
    pub fn windows(&self) -> Option<&Windows> {
        self.replication.as_ref().map(|replication| &replication.windows)
    }

    /// A key's unsettled versions.
    pub(crate) fn window(&self, keyspace: Keyspace, key: &[u8]) -> Option<&KeyWindow> {
        self.windows()?.get(keyspace, key)
    }

    /// The entries that some member may lack; `None` in a cluster of one.
    pub fn log(&self) -> Option<&Log> {
        self.replication.as_ref().map(|replication| &replication.log)
    }

    /// How concurrent writes are merged, and were.
    pub fn rules(&self) -> &RuleBook {
        &self.rules
    }

    /// The members that declared rules wait for: those that are not known to have the declaration.
    pub fn lack_declared(&self) -> impl Iterator<Item = &Member> {
        let declared = self.rules.declared().map(|rules| SystemKey::Rules(rules.number).encode());
        let open = declared.and_then(|key| self.window(Keyspace::System, &key));
        let dots: Vec<Dot> = open.into_iter().flat_map(|open| open.window.versions()).map(|v| v.dot).collect();
        self.members().filter(move |member| {
            let acked = self.ack_of(member.id);
            let has = |dot: &Dot| acked.is_some_and(|vector| vector.contains(*dot));
            !member.removed && member.id != self.identity.replica && !dots.iter().all(has)
        })
    }

    /// The newest merge engine of this build.
    pub fn engine(&self) -> u32 {
        self.engine
    }

    /// The newest merges that decided something, oldest first.
    pub fn recent_merges(&self) -> impl Iterator<Item = &MergeReport> {
        self.merges.iter()
    }

    /// The bytes of that hash (XXH3, 128 bits) among what this replica knows of a key: its value, and those of its
    /// unsettled versions.
    pub fn value_by_hash(&self, keyspace: Keyspace, key: &[u8], hash: u128) -> Option<Bytes> {
        let of = |value: &Bytes| xxhash_rust::xxh3::xxh3_128(value) == hash;
        let present = self.state.recorded(keyspace, key).map(|recorded| recorded.live.value);
        if let Some(value) = present.filter(of) {
            return Some(value);
        }
        let window = &self.window(keyspace, key)?.window;
        let versions = window.versions().iter().rev().filter_map(|version| match &version.kind {
            ChangeKind::Put { value, .. } => Some(value),
            ChangeKind::Delete | ChangeKind::Expire => None,
        });
        versions.chain(window.base().map(|live| &live.value)).find(|value| of(value)).cloned()
    }

    /// Alarms that are raised, in a fixed order.
    pub fn alarms(&self) -> impl Iterator<Item = Alarm> + '_ {
        self.state.alarms.iter().copied()
    }

    /// Alarms that stop writes here: all but those of other members. Clients see every alarm, as in etcd. There any
    /// alarm stops all members. Here each member has its own disk to fill, and the others go on without it.
    pub fn alarms_that_stop(&self) -> impl Iterator<Item = Alarm> + '_ {
        let elsewhere = |member| member != self.identity.replica && self.membership.members.is_present(member);
        self.alarms().filter(move |alarm| !elsewhere(alarm.member))
    }

    /// Keeps a lease alive without a turn in the queue; `None` when it takes one. See
    /// [`crate::store::lease::Leases::renew_in_passing`].
    pub fn renew_in_passing(&self, now: Now, id: LeaseId) -> Option<i64> {
        self.state.leases.renew_in_passing(now, id, self.replication.is_some())
    }

    /// What is known of a lease.
    pub fn lease(&self, now: Now, id: LeaseId) -> Option<LeaseStatus> {
        self.state.leases.status(now, id)
    }

    /// All leases with the milliseconds that are left of each, in order of id.
    pub fn leases(&self, now: Now) -> impl Iterator<Item = (LeaseId, u64)> + '_ {
        self.state.leases.iter(now)
    }

    /// When the next [`Input::Tick`](crate::Input::Tick) has something to do, milliseconds of the monotonic clock. Then
    /// a lease runs out, a hold for a reader of a snapshot is over, or there is more to settle than one turn does.
    pub fn next_tick_ms(&self) -> Option<u64> {
        let replication = self.replication.as_ref();
        let hold = replication.and_then(|replication| replication.hold_until_ms);
        let settles =
            replication.is_some_and(|replication| replication.hold_until_ms.is_none() && !replication.is_settled());
        let looks = self.next_look_ms().into_iter().chain(self.next_schemas_ms());
        let deadlines = self.next_lease_deadline_ms().into_iter().chain(hold).chain(looks);
        deadlines.chain(settles.then_some(0)).min()
    }

    /// When the next lease runs out, milliseconds of the monotonic clock.
    pub fn next_lease_deadline_ms(&self) -> Option<u64> {
        self.state.leases.next_deadline_ms()
    }
}
