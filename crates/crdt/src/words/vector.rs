//! Version vectors: what a replica has applied.

use std::cmp::Ordering;

use crate::words::fence::{Fence, VectorPart, moved};
use crate::words::id::{Birth, Dot, Origin, ReplicaId};

/// For each origin the highest `seq` applied. An origin's entries are applied in order, so this says everything.
///
/// Births of a member that are over can be forgotten: a [`Fence`] stands for all their entries then. So a vector that
/// names them all covers the same as one that has the fence instead, and each is found to cover the other.
///
/// Vectors are copied, compared and united for every entry and every message, and are as long as the cluster is large.
/// A sorted list does that in one pass over memory that lies together.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct VersionVector {
    /// One of each origin, in their order; none that a fence stands for.
    highest: Vec<Dot>,
    /// At most one of each member, in their order.
    fences: Vec<Fence>,
}

/// What counts as the highest `seq` of a birth that a fence stands for: all of them are covered.
const ALL: u64 = u64::MAX;

impl VersionVector {
    fn find(&self, origin: Origin) -> Result<usize, usize> {
        self.highest.binary_search_by_key(&origin, |dot| dot.origin)
    }

    /// The highest `seq` of that origin; zero when none is known, the highest that there can be when all are covered
    /// because that birth is forgotten.
    pub fn get(&self, origin: Origin) -> u64 {
        if self.has_forgotten(origin) {
            return ALL;
        }
        self.find(origin).map_or(0, |at| self.highest[at].seq)
    }

    /// Whether the entry of that name is covered.
    pub fn contains(&self, dot: Dot) -> bool {
        dot.seq <= self.get(dot.origin)
    }

    /// Whether a fence stands for that birth.
    pub fn has_forgotten(&self, origin: Origin) -> bool {
        !self.fences.is_empty() && self.fence(origin.replica).is_some_and(|fence| origin.birth < fence.before)
    }

    /// The fence over a member's births.
    pub fn fence(&self, replica: ReplicaId) -> Option<Fence> {
        self.fences.binary_search_by_key(&replica, |fence| fence.replica).ok().map(|at| self.fences[at])
    }

    /// All fences, in order of the members.
    pub fn fences(&self) -> impl Iterator<Item = Fence> + '_ {
        self.fences.iter().copied()
    }

    /// Of one member, the births with their highest `seq`, in order.
    pub fn of(&self, replica: ReplicaId) -> impl Iterator<Item = Dot> + '_ {
        let from = self.highest.partition_point(|dot| dot.origin.replica < replica);
        self.highest[from..].iter().copied().take_while(move |dot| dot.origin.replica == replica)
    }

    /// The fence that would stand before a birth of a member, by the births that are named.
    fn fence_before(&self, replica: ReplicaId, before: Birth) -> Option<Fence> {
        let stands = self.fence(replica).map(|fence| fence.hash);
        let over = self.of(replica).take_while(|dot| dot.origin.birth < before);
        let hash = over.fold(stands, |hash, dot| Some(moved(hash, dot)))?;
        Some(Fence { replica, before, hash })
    }

    /// Whether all that a fence stands for is covered.
    pub fn covers_fence(&self, fence: Fence) -> bool {
        match self.fence(fence.replica) {
            Some(ours) if ours.before >= fence.before => true,
            _ => self.fence_before(fence.replica, fence.before).is_some_and(|ours| ours.hash == fence.hash),
        }
    }

    /// Each origin that `other` names, with its highest `seq` there and [here](Self::get). One pass over both, where to ask for each
    /// would be a search for each.
    pub fn along<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = (Dot, u64)> + 'a {
        let mut ours = self.highest.iter().peekable();
        other.iter().map(move |dot| {
            while ours.next_if(|our| our.origin < dot.origin).is_some() {}
            let seq = ours.peek().filter(|our| our.origin == dot.origin).map_or(0, |our| our.seq);
            (dot, if self.has_forgotten(dot.origin) { ALL } else { seq })
        })
    }

    /// Whether everything that `other` covers is covered.
    pub fn covers(&self, other: &Self) -> bool {
        other.fences.iter().all(|fence| self.covers_fence(*fence)) && self.along(other).all(|(dot, seq)| dot.seq <= seq)
    }

    /// Covers that entry, and all of its origin before it.
    pub fn advance(&mut self, dot: Dot) {
        match self.find(dot.origin) {
            Ok(at) => self.highest[at].seq = self.highest[at].seq.max(dot.seq),
            Err(_) if self.has_forgotten(dot.origin) => {}
            Err(at) => self.highest.insert(at, dot),
        }
    }

    /// Covers nothing of that entry's origin any more from the entry on.
    pub fn cut(&mut self, dot: Dot) {
        if self.contains(dot) {
            self.remove(dot.origin);
            if let Some(seq) = dot.seq.checked_sub(1).filter(|seq| *seq > 0) {
                self.advance(Dot { seq, ..dot });
            }
        }
    }

    /// Lets a fence stand for what is below it. All of that is covered from then on.
    pub fn raise(&mut self, fence: Fence) {
        match self.fences.binary_search_by_key(&fence.replica, |fence| fence.replica) {
            Ok(at) if self.fences[at].before >= fence.before => return,
            Ok(at) => self.fences[at] = fence,
            Err(at) => self.fences.insert(at, fence),
        }
        self.highest.retain(|dot| dot.origin.replica != fence.replica || dot.origin.birth >= fence.before);
    }

    /// Forgets the births of a member before one: a fence stands for all their entries. Tells which, if any are named.
    pub fn forget(&mut self, replica: ReplicaId, before: Birth) -> Option<Fence> {
        let fence = self.fence_before(replica, before)?;
        self.raise(fence);
        Some(fence)
    }

    /// Covers everything that `other` covers.
    pub fn merge(&mut self, other: &Self) {
        for fence in &other.fences {
            self.raise(*fence);
        }
        let mut at = 0;
        for dot in &other.highest {
            while self.highest.get(at).is_some_and(|our| our.origin < dot.origin) {
                at += 1;
            }
            if self.highest.get(at).is_some_and(|our| our.origin == dot.origin) {
                self.highest[at].seq = self.highest[at].seq.max(dot.seq);
            } else if !self.has_forgotten(dot.origin) {
                self.highest.insert(at, *dot);
            }
        }
    }

    /// What both cover. Births that one of them names are named.
    #[must_use]
    pub fn meet(&self, other: &Self) -> Self {
        let mut highest = Vec::with_capacity(self.highest.len().min(other.highest.len()));
        let (mut ours, mut theirs) = (self.highest.iter().peekable(), other.highest.iter().peekable());
        loop {
            let order = match (ours.peek(), theirs.peek()) {
                (Some(our), Some(their)) => our.origin.cmp(&their.origin),
                (Some(_), None) if !other.fences.is_empty() => Ordering::Less,
                (None, Some(_)) if !self.fences.is_empty() => Ordering::Greater,
                _ => break,
            };
            let our = if order == Ordering::Greater { None } else { ours.next() };
            let their = if order == Ordering::Less { None } else { theirs.next() };
            highest.extend(match (our, their) {
                (Some(our), Some(their)) => Some(Dot { seq: our.seq.min(their.seq), ..*our }),
                (Some(dot), None) => Some(*dot).filter(|dot| other.has_forgotten(dot.origin)),
                (None, their) => their.copied().filter(|dot| self.has_forgotten(dot.origin)),
            });
        }
        highest.retain(|dot: &Dot| dot.seq > 0);
        let lower = |fence: &Fence| {
            Some(if other.fence(fence.replica)?.before < fence.before { other.fence(fence.replica)? } else { *fence })
        };
        Self { highest, fences: self.fences.iter().filter_map(lower).collect() }
    }

    /// Leaves out an origin.
    pub fn remove(&mut self, origin: Origin) {
        if let Ok(at) = self.find(origin) {
            self.highest.remove(at);
        }
    }

    /// Whether nothing is covered.
    pub fn is_empty(&self) -> bool {
        self.highest.is_empty() && self.fences.is_empty()
    }

    /// How many origins are named.
    pub fn len(&self) -> usize {
        self.highest.len()
    }

    /// Origins with their highest `seq`, in a fixed order. Those that are forgotten are not among them.
    pub fn iter(&self) -> impl Iterator<Item = Dot> + '_ {
        self.highest.iter().copied()
    }

    /// All of it, to be written down: fences first.
    pub fn parts(&self) -> impl Iterator<Item = VectorPart> + '_ {
        self.fences().map(VectorPart::Ended).chain(self.iter().map(VectorPart::Upto))
    }

    /// What of this is not in `than`.
    #[must_use]
    pub fn above(&self, than: &Self) -> Self {
        let fences =
            self.fences().filter(|ours| than.fence(ours.replica).is_none_or(|fence| fence.before < ours.before));
        Self { highest: self.iter().filter(|dot| !than.contains(*dot)).collect(), fences: fences.collect() }
    }
}

impl FromIterator<Dot> for VersionVector {
    fn from_iter<T: IntoIterator<Item = Dot>>(dots: T) -> Self {
        let mut vector = Self::default();
        for dot in dots {
            vector.advance(dot);
        }
        vector
    }
}

impl FromIterator<VectorPart> for VersionVector {
    fn from_iter<T: IntoIterator<Item = VectorPart>>(parts: T) -> Self {
        let mut vector = Self::default();
        vector.extend(parts);
        vector
    }
}

impl Extend<VectorPart> for VersionVector {
    fn extend<T: IntoIterator<Item = VectorPart>>(&mut self, parts: T) {
        for part in parts {
            match part {
                VectorPart::Ended(fence) => self.raise(fence),
                VectorPart::Upto(dot) => self.advance(dot),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::id::{Birth, ReplicaId};

    /// All vectors of three origins with numbers up to two.
    fn vectors() -> impl Iterator<Item = VersionVector> {
        let origin = |n| Origin { replica: ReplicaId::new(1 + n / 2), birth: Birth::new(1 + n % 2) };
        (0..27u64).map(move |code| {
            let dots = (0..3u64).map(|n| Dot { origin: origin(n), seq: code / 3u64.pow(n as u32) % 3 });
            dots.filter(|dot| dot.seq > 0).collect()
        })
    }

    #[test]
    fn what_is_asked_of_two_vectors_is_true_of_each_origin() {
        let dots: Vec<Dot> = vectors().flat_map(|vector| vector.iter().collect::<Vec<_>>()).collect();
        for (a, b) in vectors().flat_map(|a| vectors().map(move |b| (a.clone(), b))) {
            assert_eq!(a.covers(&b), b.iter().all(|dot| a.contains(dot)), "{a:?} {b:?}");
            assert!(a.along(&b).eq(b.iter().map(|dot| (dot, a.get(dot.origin)))), "{a:?} {b:?}");
            let (met, mut both) = (a.meet(&b), a.clone());
            both.merge(&b);
            for dot in dots.iter().copied() {
                assert_eq!(met.contains(dot), a.contains(dot) && b.contains(dot), "{a:?} {b:?}");
                assert_eq!(both.contains(dot), a.contains(dot) || b.contains(dot), "{a:?} {b:?}");
            }
            assert!(met.iter().all(|dot| dot.seq > 0));
            assert!(met.iter().map(|dot| dot.origin).is_sorted() && both.iter().map(|dot| dot.origin).is_sorted());
        }
    }

    #[test]
    fn an_origin_that_is_removed_is_as_if_never_seen() {
        for vector in vectors() {
            for dot in vector.iter() {
                let mut without = vector.clone();
                without.remove(dot.origin);
                assert_eq!((without.get(dot.origin), without.len()), (0, vector.len() - 1));
                without.advance(dot);
                assert_eq!(without, vector);
            }
        }
    }

    /// Whatever is forgotten of two vectors of the same entries, each covers the other, and others as before.
    #[test]
    fn a_fence_stands_for_just_what_was_named() {
        let (one, two) = (ReplicaId::new(1), ReplicaId::new(2));
        let forgotten = |vector: &VersionVector, code: u64| {
            let mut vector = vector.clone();
            for (replica, births) in [(one, code % 4), (two, code / 4)] {
                vector.forget(replica, Birth::new(births));
            }
            vector
        };
        for (a, b) in vectors().flat_map(|a| vectors().map(move |b| (a.clone(), b))) {
            for code in 0..16 {
                let less = forgotten(&a, code);
                assert!(a.covers(&less) && less.covers(&a));
                assert!(a.meet(&less).covers(&a) && a.covers(&less.meet(&a)));
                // Two that have forgotten the same have all of the other's, or a fence finds that they have not.
                let (also, over) = (forgotten(&b, code), |dot: Dot| less.has_forgotten(dot.origin));
                assert!(less.along(&b).eq(b.iter().map(|dot| (dot, less.get(dot.origin)))), "{less:?} {b:?}");
                let is_alike = |dot: Dot| !over(dot) || b.get(dot.origin) == a.get(dot.origin);
                let none_more = b.iter().all(is_alike);
                let has_all = a.iter().all(|dot| b.contains(dot));
                assert_eq!(b.covers(&less), has_all && a.iter().all(is_alike) && none_more, "{b:?} {less:?}");
                let mut united = b.clone();
                united.merge(&less);
                assert!(a.iter().chain(b.iter()).all(|dot| united.contains(dot)), "{also:?}");
            }
        }
    }

    #[test]
    fn what_is_above_and_its_parts_make_it_whole_again() {
        for (mut a, mut b) in vectors().flat_map(|a| vectors().map(move |b| (a.clone(), b))) {
            b.merge(&a);
            assert_eq!(a.parts().collect::<VersionVector>(), a);
            b.forget(ReplicaId::new(1), Birth::new(2));
            let news = b.above(&a);
            a.merge(&news);
            assert_eq!(a, b);
        }
    }
}
