//! What operators are told: refused entries, clocks that are off, merges that gave something up.

use crate::words::id::{Dot, Origin, ReplicaId};
use crate::words::key::{Key, Keyspace};
use crate::words::revision::Revision;

/// Which rule decided between concurrent versions.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Rule {
    /// A delete took the incarnations it saw with it.
    DeletedIncarnation,
    /// A put outlived a delete that did not see its incarnation, or an expiry that was concurrent with it.
    OutlivedDelete,
    /// Of several incarnations the one created first.
    CreatedFirst,
    /// Of several incarnations the one created last.
    CreatedLast,
    /// Kubernetes objects merged field by field.
    FieldMerge,
    /// The last writer.
    LastWriter,
    /// Of several grants of one lease the longest.
    LongestLease,
    /// Of several births that were announced of one member none.
    ContestedBirth,
}

/// A part of a concurrent version that is not in the outcome.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct GivenUp {
    /// The version.
    pub dot: Dot,
    /// Which part of it, for people: "its whole value", or field paths.
    pub what: String,
}

/// A merge of concurrent versions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MergeReport {
    /// The keyspace.
    pub keyspace: Keyspace,
    /// The key.
    pub key: Key,
    /// The entry whose arrival made the merge necessary.
    pub dot: Dot,
    /// The revision at which clients saw the outcome; `None` when it was what they saw already.
    pub revision: Option<Revision>,
    /// The rule that decided.
    pub rule: Rule,
    /// The parts of the concurrent versions that are not in the outcome.
    pub given_up: Vec<GivenUp>,
}

/// Something that operators are told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Notice {
    /// An unknown entry does not depend on what every member is known to have: refused. Silent corruption, or a member
    /// that lost its disk and does not know.
    BelowFloor {
        /// The entry.
        dot: Dot,
        /// The peer that sent it.
        from: ReplicaId,
    },
    /// An entry came before something it depends on: refused, it will come again.
    TooEarly {
        /// The entry.
        dot: Dot,
        /// The peer that sent it.
        from: ReplicaId,
    },
    /// An entry does not continue what is known of its origin: the origin lost its tail and went on, or was copied.
    Forked {
        /// The entry.
        dot: Dot,
        /// The peer that sent it.
        from: ReplicaId,
    },
    /// A peer knows entries of this very replica and birth that it does not know itself: it lost its tail.
    OwnTailLost {
        /// The entry.
        dot: Dot,
        /// The peer that sent it.
        from: ReplicaId,
    },
    /// An entry was made or sent by a replica that is no member: refused.
    NotAMember {
        /// The member whose entry it is, or that sent it.
        member: ReplicaId,
        /// The peer that sent it.
        from: ReplicaId,
    },
    /// An entry that cannot be one (no changes, a name that none can have): refused.
    Malformed {
        /// The entry.
        dot: Dot,
        /// The peer that sent it.
        from: ReplicaId,
    },
    /// An entry sets rules of merging that this build does not know: refused.
    UnknownRules {
        /// The entry.
        dot: Dot,
        /// The peer that sent it.
        from: ReplicaId,
        /// Their number, if it can be read.
        number: Option<u32>,
    },
    /// An entry is dated ahead of this replica's clock by more than the bound.
    ClockAhead {
        /// Where it comes from.
        origin: Origin,
        /// By how much, milliseconds.
        ahead_ms: u64,
    },
    /// A merge decided between concurrent versions.
    Merged(MergeReport),
    /// This replica was removed from the cluster.
    Removed,
    /// Another member has this replica's revision spaces; it moved to those of this ordinal.
    OrdinalChanged {
        /// The new ordinal.
        ordinal: u16,
    },
    /// There is no revision space left that this replica could go on in: it refuses all that takes a revision.
    SpacesExhausted,
    /// A write that was made before a disk was lost was made again, and the merge gave up some of it.
    Rebased(MergeReport),
}

impl Notice {
    /// Whether it tells that the replica did not take an entry.
    pub fn is_refusal(&self) -> bool {
        match self {
            Self::BelowFloor { .. }
            | Self::TooEarly { .. }
            | Self::Forked { .. }
            | Self::OwnTailLost { .. }
            | Self::NotAMember { .. }
            | Self::Malformed { .. }
            | Self::UnknownRules { .. }
            | Self::SpacesExhausted => true,
            Self::ClockAhead { .. }
            | Self::Merged(_)
            | Self::Removed
            | Self::OrdinalChanged { .. }
            | Self::Rebased(_) => false,
        }
    }
}
