//! What operators are told: refused entries, clocks that are off, merges that gave something up.

use std::fmt;

use crate::words::clock::Stamp;
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
    /// Of changes of users and roles the one that takes rights away.
    FewerRights,
}

/// What a version says where another one stands now.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Said {
    /// That nothing is there.
    Nothing,
    /// This, as JSON; cut where it is long.
    Text(String),
    /// It is not repeated: a whole value, or one of a Secret.
    Untold,
}

impl Said {
    /// The longest text that is repeated, bytes.
    const TEXT_MAX: usize = 64;

    /// A field's text; `None`: it is not there.
    pub fn of(text: Option<&str>) -> Self {
        match text {
            None => Self::Nothing,
            Some(text) if text.len() <= Self::TEXT_MAX => Self::Text(text.to_owned()),
            Some(text) => Self::Text(format!("{}... ({} bytes)", cut(text, Self::TEXT_MAX), text.len())),
        }
    }
}

/// The beginning of a text, of at most so many bytes.
fn cut(text: &str, max: usize) -> &str {
    let end = (0..=max).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    &text[..end]
}

/// Which part of a version was given up.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Part {
    /// All that it wrote.
    Value,
    /// Its delete.
    Delete,
    /// Its expiry.
    Expiry,
    /// A field of the object that it wrote, as in `.spec.replicas`.
    Field(String),
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Value => "its whole value",
            Self::Delete => "its delete",
            Self::Expiry => "its expiry",
            Self::Field(path) => path,
        })
    }
}

/// What stands where a part of a version was given up.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Stands {
    /// The version that wrote it.
    pub dot: Dot,
    /// When.
    pub stamp: Stamp,
    /// What it says there.
    pub said: Said,
}

/// A loss: a part of a concurrent version that is not in the outcome.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct GivenUp {
    /// The version.
    pub dot: Dot,
    /// Which part of it.
    pub part: Part,
    /// When it was written.
    pub stamp: Stamp,
    /// What it says there.
    pub said: Said,
    /// What stands there instead; `None` when that is older than all of them.
    pub stands: Option<Stands>,
}

/// Losses as they are told: so many of them, and how many there are beyond.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Losses {
    /// The first of them.
    pub told: Vec<GivenUp>,
    /// How many more there are.
    pub more: usize,
}

impl Losses {
    /// How many are told of one merge.
    pub const TOLD_MAX: usize = 20;

    /// The longest name of a field, bytes: those of elements are their keys.
    const FIELD_MAX: usize = 256;

    /// Cuts what is too much for a report.
    pub fn of(mut all: Vec<GivenUp>) -> Self {
        let more = all.len().saturating_sub(Self::TOLD_MAX);
        all.truncate(Self::TOLD_MAX);
        for given in &mut all {
            if let Part::Field(path) = &mut given.part
                && path.len() > Self::FIELD_MAX
            {
                *path = format!("{}...", cut(path, Self::FIELD_MAX));
            }
        }
        Self { told: all, more }
    }

    /// Whether nothing was given up.
    pub fn is_empty(&self) -> bool {
        self.told.is_empty()
    }
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
    /// What it gave up and no merge before: each loss is told once.
    pub given_up: Losses,
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
