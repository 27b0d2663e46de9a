//! Version vectors: what a replica has applied.

use std::cmp::Ordering;

use crate::words::id::{Dot, Origin};

/// For each origin the highest `seq` applied. An origin's entries are applied in order, so this says everything.
///
/// Vectors are copied, compared and united for every entry and every message, and are as long as the cluster is large.
/// A sorted list does that in one pass over memory that lies together.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct VersionVector {
    /// One of each origin, in their order.
    highest: Vec<Dot>,
}

impl VersionVector {
    fn find(&self, origin: Origin) -> Result<usize, usize> {
        self.highest.binary_search_by_key(&origin, |dot| dot.origin)
    }

    /// The highest `seq` of that origin; zero when none is known.
    pub fn get(&self, origin: Origin) -> u64 {
        self.find(origin).map_or(0, |at| self.highest[at].seq)
    }

    /// Whether the entry of that name is covered.
    pub fn contains(&self, dot: Dot) -> bool {
        dot.seq <= self.get(dot.origin)
    }

    /// Whether everything that `other` covers is covered.
    pub fn covers(&self, other: &Self) -> bool {
        let mut ours = self.highest.iter().peekable();
        other.highest.iter().all(|dot| {
            while ours.next_if(|our| our.origin < dot.origin).is_some() {}
            let seq = ours.peek().filter(|our| our.origin == dot.origin).map_or(0, |our| our.seq);
            dot.seq <= seq
        })
    }

    /// Covers that entry, and all of its origin before it.
    pub fn advance(&mut self, dot: Dot) {
        match self.find(dot.origin) {
            Ok(at) => self.highest[at].seq = self.highest[at].seq.max(dot.seq),
            Err(at) => self.highest.insert(at, dot),
        }
    }

    /// Covers everything that `other` covers.
    pub fn merge(&mut self, other: &Self) {
        let mut at = 0;
        for dot in &other.highest {
            while self.highest.get(at).is_some_and(|our| our.origin < dot.origin) {
                at += 1;
            }
            match self.highest.get_mut(at) {
                Some(our) if our.origin == dot.origin => our.seq = our.seq.max(dot.seq),
                _ => self.highest.insert(at, *dot),
            }
        }
    }

    /// What both cover.
    #[must_use]
    pub fn meet(&self, other: &Self) -> Self {
        let mut highest = Vec::with_capacity(self.highest.len().min(other.highest.len()));
        let (mut ours, mut theirs) = (self.highest.iter().peekable(), other.highest.iter().peekable());
        while let (Some(our), Some(their)) = (ours.peek(), theirs.peek()) {
            let order = our.origin.cmp(&their.origin);
            if order == Ordering::Equal {
                highest.push(Dot { origin: our.origin, seq: our.seq.min(their.seq) });
            }
            if order != Ordering::Greater {
                ours.next();
            }
            if order != Ordering::Less {
                theirs.next();
            }
        }
        highest.retain(|dot| dot.seq > 0);
        Self { highest }
    }

    /// Forgets an origin.
    pub fn remove(&mut self, origin: Origin) {
        if let Ok(at) = self.find(origin) {
            self.highest.remove(at);
        }
    }

    /// Whether nothing is covered.
    pub fn is_empty(&self) -> bool {
        self.highest.is_empty()
    }

    /// How many origins there are.
    pub fn len(&self) -> usize {
        self.highest.len()
    }

    /// Origins with their highest `seq`, in a fixed order.
    pub fn iter(&self) -> impl Iterator<Item = Dot> + '_ {
        self.highest.iter().copied()
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
}
