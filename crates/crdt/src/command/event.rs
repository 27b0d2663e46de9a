//! What watchers are told.

use smallvec::SmallVec;

use crate::command::op::KeyValue;
use crate::words::key::Key;
use crate::words::revision::Revision;

/// What happened to a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EventKind {
    /// It was written, and is this now.
    Put(KeyValue),
    /// It was deleted.
    Delete {
        /// Which key.
        key: Key,
        /// When.
        revision: Revision,
    },
}

/// One change of one key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// What happened.
    pub kind: EventKind,
    /// The key before the change, as far as history goes back.
    pub prev: Option<KeyValue>,
}

impl Event {
    /// The key that changed.
    pub fn key(&self) -> &Key {
        match &self.kind {
            EventKind::Put(kv) => &kv.key,
            EventKind::Delete { key, .. } => key,
        }
    }

    /// The revision at which it changed.
    pub fn revision(&self) -> Revision {
        match &self.kind {
            EventKind::Put(kv) => kv.mod_revision,
            EventKind::Delete { revision, .. } => *revision,
        }
    }

    /// What the key is after the change; none when it was deleted.
    pub fn written(&self) -> Option<&KeyValue> {
        match &self.kind {
            EventKind::Put(kv) => Some(kv),
            EventKind::Delete { .. } => None,
        }
    }
}

/// All changes of one revision, in the order in which the transaction made them. Never split, never merged.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Commit {
    /// The revision.
    pub revision: Revision,
    /// Its events; most revisions have one.
    pub events: SmallVec<[Event; 1]>,
}
