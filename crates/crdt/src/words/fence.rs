//! Births that are over and forgotten: a fence stands for all entries of a member's births below it.
//!
//! A replica makes a fence only when it knows that every member has all of these entries. So no member asks for them
//! again. The fence has a hash over the births and how many entries each had. A vector that still names all of them gives
//! the same hash; a vector that names fewer gives another one.

use xxhash_rust::xxh3::xxh3_64;

use crate::words::id::{Birth, Dot, Origin, ReplicaId};

/// All entries of a member's births below one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Fence {
    /// The member.
    pub replica: ReplicaId,
    /// The births before this one are over.
    pub before: Birth,
    /// Over these births and how many entries each has.
    pub hash: u64,
}

/// The hash of a fence that is moved over one more birth; none stood before the first.
pub(crate) fn moved(hash: Option<u64>, last: Dot) -> u64 {
    let numbers = [hash.unwrap_or_default(), last.origin.birth.get(), last.seq];
    xxh3_64(&numbers.map(u64::to_le_bytes).concat())
}

/// A part of a version vector, as it is written down.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VectorPart {
    /// All entries below a fence.
    Ended(Fence),
    /// The entries of an origin up to one.
    Upto(Dot),
}

impl VectorPart {
    /// Its numbers, for a codec: member, birth, sequence number or hash, and whether it is a fence.
    pub fn numbers(self) -> (u64, u64, u64, bool) {
        match self {
            Self::Ended(fence) => (fence.replica.get(), fence.before.get(), fence.hash, true),
            Self::Upto(dot) => (dot.origin.replica.get(), dot.origin.birth.get(), dot.seq, false),
        }
    }

    /// The part of these numbers.
    pub fn from_numbers(replica: u64, birth: u64, number: u64, is_fence: bool) -> Self {
        let (replica, birth) = (ReplicaId::new(replica), Birth::new(birth));
        if is_fence {
            Self::Ended(Fence { replica, before: birth, hash: number })
        } else {
            Self::Upto(Dot { origin: Origin { replica, birth }, seq: number })
        }
    }
}
