//! What a key holds, and which of its incarnations that is.

use bytes::Bytes;

use crate::words::clock::Stamp;
use crate::words::id::{Birth, Dot, LeaseId, Origin, ReplicaId};

/// One life of a key, named by the put that began it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Incarnation {
    /// When that put was made.
    pub stamp: Stamp,
    /// The entry it was in.
    pub dot: Dot,
}

impl Incarnation {
    /// No life at all: what has none of its own yet.
    pub const NONE: Self = Self {
        stamp: Stamp::new(0),
        dot: Dot { origin: Origin { replica: ReplicaId::new(0), birth: Birth::new(0) }, seq: 0 },
    };
}

/// What a key that is there holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Live {
    /// The value.
    pub value: Bytes,
    /// The lease it hangs on.
    pub lease: Option<LeaseId>,
    /// etcd's version number: how often it was written in this life, on the longest path.
    pub version: i64,
    /// The present life of the key.
    pub incarnation: Incarnation,
}
