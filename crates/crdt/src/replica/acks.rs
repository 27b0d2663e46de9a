//! What every member is known to have.
//!
//! An acknowledgement counts only once everything in it is known here: only then are all entries, and all members, known
//! that its sender knew. Until then it waits; of each member at most two wait, the oldest (so that a steady stream of them
//! cannot starve) and the newest.

use std::collections::BTreeMap;

use crate::replica::marks::Statement;
use crate::store::system::AnnouncedBirth;
use crate::words::fence::Fence;
use crate::words::id::{Birth, Origin, ReplicaId};
use crate::words::vector::VersionVector;

/// Durable vectors of members. Each is of one birth: what a member had before it lost its disk says nothing of what it has.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Acks {
    counted: BTreeMap<Origin, VersionVector>,
    /// What those said of their marks that counted, with it or later.
    said: BTreeMap<Origin, Statement>,
    pending: BTreeMap<Origin, Vec<(VersionVector, Statement)>>,
}

/// Most members whose acknowledgements wait: as many as there can be members.
const PENDING_MAX: usize = 4096;

impl Acks {
    /// Those that were counted before.
    pub fn restored(counted: impl IntoIterator<Item = (Origin, VersionVector)>) -> Self {
        Self { counted: counted.into_iter().collect(), ..Self::default() }
    }

    /// Takes note of what a member has on disk. Tells whether that counts at once and is news.
    pub fn note(&mut self, member: Origin, vector: VersionVector, said: &Statement, own: &VersionVector) -> bool {
        if vector.is_empty() {
            return false;
        }
        if own.covers(&vector) {
            return self.count(member, &vector, said);
        }
        if self.pending.len() >= PENDING_MAX && !self.pending.contains_key(&member) {
            return false;
        }
        let pending = self.pending.entry(member).or_default();
        match pending.as_mut_slice() {
            [] => pending.push((vector, said.clone())),
            // What it said before stands: its words come by several ways, and an older one can come later.
            [(oldest, of_oldest)] if oldest.covers(&vector) => {
                of_oldest.follow(said);
            }
            [oldest] => {
                let (mut newest, mut of_newest) = oldest.clone();
                newest.merge(&vector);
                of_newest.follow(said);
                pending.push((newest, of_newest));
            }
            [_, (newest, of_newest), ..] => {
                newest.merge(&vector);
                of_newest.follow(said);
            }
        }
        false
    }

    /// What a member said of its marks holds for what it had before, too: a mark that was made later says no less.
    fn count(&mut self, member: Origin, vector: &VersionVector, said: &Statement) -> bool {
        let says_more = self.said.entry(member).or_default().follow(said);
        let counted = self.counted.entry(member).or_default();
        let news = !counted.covers(vector);
        counted.merge(vector);
        news || says_more
    }

    /// Counts what waited and is covered by now. Tells whether anything was news.
    pub fn ripen(&mut self, own: &VersionVector) -> bool {
        let mut news = false;
        let pending = std::mem::take(&mut self.pending);
        for (member, vectors) in pending {
            let (ripe, unripe): (Vec<_>, Vec<_>) = vectors.into_iter().partition(|(vector, _)| own.covers(vector));
            for (vector, said) in ripe {
                news |= self.count(member, &vector, &said);
            }
            if !unripe.is_empty() {
                self.pending.insert(member, unripe);
            }
        }
        news
    }

    /// Drops what does not count: what was acknowledged under births that are over. What waits may count yet, when the
    /// entry that it waits for announces its birth.
    pub fn retain(&mut self, may_count: impl Fn(Origin) -> bool, may_wait: impl Fn(Origin) -> bool) {
        self.counted.retain(|member, _| may_count(*member));
        self.said.retain(|member, _| may_count(*member));
        self.pending.retain(|member, _| may_wait(*member));
    }

    /// Lets a fence stand for the births below it, in what covers all of them.
    pub fn raise(&mut self, fence: Fence) {
        for vector in self.counted.values_mut().filter(|vector| vector.covers_fence(fence)) {
            vector.raise(fence);
        }
    }

    /// What counts.
    pub fn counted(&self) -> &BTreeMap<Origin, VersionVector> {
        &self.counted
    }

    /// What one said of its marks.
    pub fn said(&self, member: Origin) -> Option<&Statement> {
        self.said.get(&member)
    }

    /// What counts of a member. Where its birth was not announced, nothing does if it has told under several.
    pub fn of(&self, member: ReplicaId, birth: Option<AnnouncedBirth>) -> Option<&VersionVector> {
        self.counted.get(&self.origin_of(member, birth)?)
    }

    /// Under which birth a member's acknowledgements count.
    pub fn origin_of(&self, member: ReplicaId, birth: Option<AnnouncedBirth>) -> Option<Origin> {
        match birth {
            Some(AnnouncedBirth::One(birth)) => Some(Origin { replica: member, birth }),
            Some(AnnouncedBirth::Contested) => None,
            None => {
                let first = Origin { replica: member, birth: Birth::new(u64::MIN) };
                let mut births = self.counted.range(first..).take_while(|(origin, _)| origin.replica == member);
                let only = births.next().map(|(origin, _)| *origin);
                only.filter(|_| births.next().is_none())
            }
        }
    }

    /// What all these members, under these births, have.
    pub fn floor(&self, members: impl IntoIterator<Item = (ReplicaId, Option<AnnouncedBirth>)>) -> VersionVector {
        let mut floor: Option<VersionVector> = None;
        for (member, birth) in members {
            let Some(ack) = self.of(member, birth) else { return VersionVector::default() };
            floor = Some(floor.map_or_else(|| ack.clone(), |floor| floor.meet(ack)));
        }
        floor.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::id::Dot;

    fn vector(seqs: &[(u64, u64)]) -> VersionVector {
        let origin = |replica| Origin { replica: ReplicaId::new(replica), birth: Birth::new(1) };
        seqs.iter().map(|(replica, seq)| Dot { origin: origin(*replica), seq: *seq }).collect()
    }

    /// A member's acknowledgement waited for an entry. An older one, passed on by a third replica, took its place, and
    /// the newer was never repeated. Keys stayed unsettled until that member acknowledged something else.
    #[test]
    fn an_older_acknowledgement_that_comes_later_takes_no_ones_place() {
        let member = Origin { replica: ReplicaId::new(7), birth: Birth::new(1) };
        let mut acks = Acks::default();
        let own = vector(&[(1, 1)]);
        for ack in [&[(1, 2), (2, 1)][..], &[(1, 2)], &[(1, 2), (3, 1)], &[(2, 1)], &[(1, 3)]] {
            assert!(!acks.note(member, vector(ack), &Statement::default(), &own), "{ack:?} waits");
        }
        assert!(acks.ripen(&vector(&[(1, 2), (2, 1)])), "the first is covered");
        assert_eq!(acks.counted()[&member], vector(&[(1, 2), (2, 1)]));
        assert!(acks.ripen(&vector(&[(1, 3), (2, 1), (3, 1)])));
        assert_eq!(acks.counted()[&member], vector(&[(1, 3), (2, 1), (3, 1)]));
    }
}
