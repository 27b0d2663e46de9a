//! What a key holds, and which of its incarnations that is.

use bytes::Bytes;

use crate::words::clock::Stamp;
use crate::words::id::{Dot, LeaseId};

/// An incarnation of a key: from the put that begins it to the delete that ends it. That put names it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Incarnation {
    /// When that put was made.
    pub stamp: Stamp,
    /// The entry it was in.
    pub dot: Dot,
}

/// What a key that is there holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Live {
    /// The value.
    pub value: Bytes,
    /// The lease it hangs on.
    pub lease: Option<LeaseId>,
    /// etcd's version number: how often it was written in this incarnation, on the longest path.
    pub version: i64,
    /// The present incarnation of the key.
    pub incarnation: Incarnation,
}
