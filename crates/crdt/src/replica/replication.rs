//! What is kept for the sake of other members.

use std::collections::{BTreeMap, BTreeSet};

use crate::entry::{Change, ChangeKind};
use crate::merge::rules::FIRST;
use crate::merge::windows::Windows;
use crate::replica::log::Log;
use crate::replica::origins::{OriginState, Origins};
use crate::store::system::SystemKey;
use crate::words::id::Origin;
use crate::words::key::{Key, Keyspace};
use crate::words::vector::VersionVector;

/// About how much is settled in one turn: so many keys of which nothing is unsettled any more.
pub(crate) const SETTLE_PACE: usize = 1024;

/// What is kept for the sake of other members.
#[derive(Debug, Default)]
pub(crate) struct Replication {
    /// Entries that a member may lack.
    pub(crate) log: Log,
    /// Where the log begins: nothing up to there is in it.
    pub(crate) base: VersionVector,
    /// What is known of each origin up to where its part of the log begins.
    pub(crate) begins: BTreeMap<Origin, OriginState>,
    /// What every member is known to have.
    pub(crate) floor: VersionVector,
    /// The unsettled versions.
    pub(crate) windows: Windows,
    /// Keys that the floor lets settle and rules hold, see [`Self::floor_of_rules`].
    pub(crate) held: BTreeSet<(Keyspace, Key)>,
    /// Those that are to be looked at again.
    pub(crate) to_settle: BTreeSet<(Keyspace, Key)>,
    /// Up to which entries it was settled what the floor lets settle.
    pub(crate) settled_upto: VersionVector,
    /// Whether entries are left in the log that may go, because one turn had taken out enough.
    pub(crate) may_shorten: bool,
    /// Up to which entries it was looked what they let leave.
    pub(crate) looked_upto: VersionVector,
    /// Keys with some versions that came after they were looked at for that.
    pub(crate) grown: BTreeSet<(Keyspace, Key)>,
    /// When such keys were looked at last, by the monotonic clock.
    pub(crate) looked_ms: u64,
    /// Until when nothing is settled, by the monotonic clock: a peer reads a snapshot.
    pub(crate) hold_until_ms: Option<u64>,
}

impl Replication {
    /// All that was applied so far is settled, and nothing is kept of it.
    pub(crate) fn after(own: Origin, origins: &Origins) -> Self {
        let mut begins = origins.others.clone();
        begins.insert(own, origins.own.clone());
        let all = || origins.vector.clone();
        Self { base: all(), floor: all(), settled_upto: all(), begins, ..Self::default() }
    }

    /// The floor that every member has reached, raised to cover what the entries under it depend on. A member that has an entry has
    /// what it depends on, too. `reached` can still lack that: a member's own entry counts at once, but what the entry depends on
    /// counts only when the member acknowledges it.
    ///
    /// A version that left lies below the one that stands for it, so both come under the floor together. A start may put the
    /// first one back into its window; it must not wait there while the second has settled.
    pub(crate) fn with_its_past(&self, reached: VersionVector) -> VersionVector {
        let mut all = reached;
        let above = all.above(&self.floor);
        // A fence is raised here when its time has come here.
        self.deps_of(&above).flat_map(VersionVector::iter).for_each(|dot| all.advance(dot));
        all
    }

    /// What the newest entry of each origin depends on, of the log's entries that a vector covers.
    pub(crate) fn deps_of<'a>(&'a self, vector: &'a VersionVector) -> impl Iterator<Item = &'a VersionVector> {
        vector.iter().filter_map(|top| self.log.newest_upto(top)).map(|logged| &*logged.deps)
    }

    /// What somebody has who told that it has these entries: all that they depend on, too.
    pub(crate) fn told_with(&self, told: &VersionVector) -> VersionVector {
        let mut all = told.clone();
        let is_all_told = |origin: Origin| told.get(origin) >= self.base.get(origin);
        let begins = self.begins.iter().filter(|(origin, _)| is_all_told(**origin)).map(|(_, state)| &*state.deps);
        begins.chain(self.deps_of(told)).flat_map(VersionVector::iter).for_each(|dot| all.advance(dot));
        all
    }

    /// How far a key must not settle yet although the floor lets it, if it is held: its window holds rules that were forgotten,
    /// and something that was merged by them is unsettled. What is settled does not count, though it be in the log still: it may lie
    /// there behind what declared the rules, which cannot settle without the delete where one step brought both.
    pub(crate) fn floor_of_rules(
        &self,
        keyspace: Keyspace,
        key: &[u8],
        floor: &VersionVector,
    ) -> Option<VersionVector> {
        if keyspace == Keyspace::Client {
            return None;
        }
        let Some(SystemKey::Rules(number)) = SystemKey::decode(key) else { return None };
        let versions = self.windows.get(keyspace, key)?.window.versions();
        let mut deletes = versions.iter().filter(|version| version.kind == ChangeKind::Delete).peekable();
        deletes.peek()?;
        // Lower ones leave the book first: it has no holes.
        let first = SystemKey::Rules(FIRST).encode();
        let lowest = self.windows.keys_behind(Keyspace::System, Some(&first)).next();
        let waits_for_lower = lowest.is_some_and(|lowest| lowest[..] < *key);
        let is_open = |change: &Change, dot| self.windows.holds(change.keyspace, &change.key, dot);
        if !waits_for_lower && !self.log.has_below(number + 1, is_open) {
            return None;
        }
        let mut lower = floor.clone();
        deletes.for_each(|version| lower.cut(version.dot));
        Some(lower)
    }

    /// Whether a record must stay whole, or the change in it that is the base of a window must.
    pub(crate) fn retains(&self, number: u64) -> bool {
        self.log.by_number(number).is_some() || self.windows.rests_on(number)
    }
}
