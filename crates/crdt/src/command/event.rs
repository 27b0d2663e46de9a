//! What watchers are told.

use smallvec::SmallVec;

use crate::command::op::KeyValue;
use crate::words::revision::Revision;

/// What happened to a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EventKind {
    /// It was written.
    Put,
    /// It was deleted; the event's key-value holds only the key and the revision.
    Delete,
}

/// One change of one key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// What happened.
    pub kind: EventKind,
    /// The key after the change.
    pub kv: KeyValue,
    /// The key before the change, as far as history goes back.
    pub prev: Option<KeyValue>,
}

/// All changes of one revision, in the order in which the transaction made them. Never split, never merged.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Commit {
    /// The revision.
    pub revision: Revision,
    /// Its events; most revisions have one.
    pub events: SmallVec<[Event; 1]>,
}
