//! What every member is known to have.
//!
//! An acknowledgement counts only once everything in it is known here: only then are all entries, and all members, known
//! that its sender knew. Until then it waits; of each member at most two wait, the oldest (so that a steady stream of them
//! cannot starve) and the newest.

use std::collections::BTreeMap;

use crate::id::ReplicaId;
use crate::vector::VersionVector;

/// Durable vectors of members.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Acks {
    counted: BTreeMap<ReplicaId, VersionVector>,
    pending: BTreeMap<ReplicaId, Vec<VersionVector>>,
}

/// Most members of whom acknowledgements wait: as many as there can be members.
const PENDING_MAX: usize = 4096;

impl Acks {
    /// Those that were counted before.
    pub fn restored(counted: impl IntoIterator<Item = (ReplicaId, VersionVector)>) -> Self {
        Self { counted: counted.into_iter().collect(), pending: BTreeMap::new() }
    }

    /// Takes note of what a member has on disk. Tells whether that counts at once and is news.
    pub fn note(&mut self, member: ReplicaId, vector: VersionVector, own: &VersionVector) -> bool {
        if own.covers(&vector) {
            return self.count(member, &vector);
        }
        if self.pending.len() >= PENDING_MAX && !self.pending.contains_key(&member) {
            return false;
        }
        let pending = self.pending.entry(member).or_default();
        pending.truncate(if pending.first().is_some_and(|first| !vector.covers(first)) { 0 } else { 1 });
        pending.push(vector);
        false
    }

    fn count(&mut self, member: ReplicaId, vector: &VersionVector) -> bool {
        let counted = self.counted.entry(member).or_default();
        let news = !counted.covers(vector);
        counted.merge(vector);
        news
    }

    /// Counts what waited and is covered by now. Tells whether anything was news.
    pub fn ripen(&mut self, own: &VersionVector) -> bool {
        let mut news = false;
        let pending = std::mem::take(&mut self.pending);
        for (member, vectors) in pending {
            let (ripe, unripe): (Vec<_>, Vec<_>) = vectors.into_iter().partition(|vector| own.covers(vector));
            for vector in ripe {
                news |= self.count(member, &vector);
            }
            if !unripe.is_empty() {
                self.pending.insert(member, unripe);
            }
        }
        news
    }

    /// What counts.
    pub fn counted(&self) -> &BTreeMap<ReplicaId, VersionVector> {
        &self.counted
    }

    /// What all these members have.
    pub fn floor(&self, members: impl IntoIterator<Item = ReplicaId>) -> VersionVector {
        let mut floor: Option<VersionVector> = None;
        for member in members {
            let Some(ack) = self.counted.get(&member) else { return VersionVector::default() };
            floor = Some(floor.map_or_else(|| ack.clone(), |floor| floor.meet(ack)));
        }
        floor.unwrap_or_default()
    }
}
