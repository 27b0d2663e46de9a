//! etcd's revision, local to a replica, and which replica's it is.
//!
//! A revision is `space * 2^32 + counter`. Each space belongs to one replica, so a revision of one replica is never
//! mistaken for one of another. Otherwise a compare could succeed that must not, and a watch could miss events. The
//! first member has ordinal 0 and starts in space 0: a single eddy counts 1, 2, 3 as etcd does.

use std::fmt;

/// Bits of the counter within a space.
pub const COUNTER_BITS: u32 = 32;

/// How many replicas can own spaces: a space belongs to the replica whose ordinal is the space modulo this.
pub const SPACES: u64 = 4096;

/// A position in a replica's history. Revision 1 is the empty store, as in etcd.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(i64);

impl Revision {
    /// The revision of an empty store in space 0.
    pub const FIRST: Self = Self(1);

    /// Wraps a revision as clients write it; zero and negative numbers are the caller's business.
    pub const fn new(raw: i64) -> Self {
        Self(raw)
    }

    /// The number that clients see.
    pub const fn get(self) -> i64 {
        self.0
    }

    /// The first revision that a replica of this ordinal takes in its first space.
    pub const fn first_of(ordinal: u16) -> Self {
        Self(((ordinal as i64) << COUNTER_BITS) + 1)
    }

    /// The first revision of a space.
    pub const fn first_in(space: u64) -> Self {
        Self(((space as i64) << COUNTER_BITS) + 1)
    }

    /// The last revision of a space.
    pub const fn last_in(space: u64) -> Self {
        Self(((space as i64) << COUNTER_BITS) | ((1 << COUNTER_BITS) - 1))
    }

    /// The space this revision lies in.
    pub const fn space(self) -> u64 {
        (self.0 as u64) >> COUNTER_BITS
    }

    /// The position within the space.
    pub const fn counter(self) -> u64 {
        (self.0 as u64) & ((1 << COUNTER_BITS) - 1)
    }

    /// The revision after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// The revision that many after this one.
    #[must_use]
    pub const fn after(self, revisions: u32) -> Self {
        Self(self.0.saturating_add(revisions as i64))
    }

    /// The revision before this one.
    #[must_use]
    pub const fn prev(self) -> Self {
        Self(self.0 - 1)
    }
}

impl fmt::Debug for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.space() == 0 || self.0 < 0 {
            write!(f, "r{}", self.0)
        } else {
            write!(f, "r{}:{}", self.space(), self.counter())
        }
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_replica_counts_as_etcd_does() {
        assert_eq!(Revision::first_of(0), Revision::FIRST);
        assert_eq!(Revision::FIRST.next().get(), 2);
    }

    #[test]
    fn a_revision_says_whose_it_is() {
        let revision = Revision::first_of(5).next();
        assert_eq!((revision.space(), revision.counter()), (5, 2));
        assert_eq!(Revision::last_in(5).next(), Revision::first_in(6).prev());
        assert!(revision > Revision::new((5 << 32) - 1));
    }
}
