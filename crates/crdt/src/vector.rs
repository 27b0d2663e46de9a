//! Version vectors: what a replica has applied.

use std::collections::BTreeMap;

use crate::id::{Dot, Origin};

/// For each origin the highest `seq` applied. An origin's entries are applied in order, so this says everything.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct VersionVector {
    highest: BTreeMap<Origin, u64>,
}

impl VersionVector {
    /// The highest `seq` of that origin; zero when none is known.
    pub fn get(&self, origin: Origin) -> u64 {
        self.highest.get(&origin).copied().unwrap_or(0)
    }

    /// Whether the entry of that name is covered.
    pub fn contains(&self, dot: Dot) -> bool {
        dot.seq <= self.get(dot.origin)
    }

    /// Whether everything that `other` covers is covered.
    pub fn covers(&self, other: &Self) -> bool {
        other.highest.iter().all(|(origin, seq)| *seq <= self.get(*origin))
    }

    /// Covers that entry, and all of its origin before it.
    pub fn advance(&mut self, dot: Dot) {
        let seq = self.highest.entry(dot.origin).or_default();
        *seq = (*seq).max(dot.seq);
    }

    /// Covers everything that `other` covers.
    pub fn merge(&mut self, other: &Self) {
        for dot in other.iter() {
            self.advance(dot);
        }
    }

    /// What both cover.
    #[must_use]
    pub fn meet(&self, other: &Self) -> Self {
        let shared = self.highest.iter().map(|(origin, seq)| (*origin, (*seq).min(other.get(*origin))));
        Self { highest: shared.filter(|(_, seq)| *seq > 0).collect() }
    }

    /// Forgets an origin.
    pub fn remove(&mut self, origin: Origin) {
        self.highest.remove(&origin);
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
        self.highest.iter().map(|(origin, seq)| Dot { origin: *origin, seq: *seq })
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
