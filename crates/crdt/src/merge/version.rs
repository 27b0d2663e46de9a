//! One version of a key: what one entry did to it, with what its writer had seen.

use std::sync::Arc;

use bytes::Bytes;

use crate::entry::{Change, ChangeKind, EntryHead};
use crate::words::clock::Stamp;
use crate::words::id::Dot;
use crate::words::value::{Incarnation, Live};
use crate::words::vector::VersionVector;

/// One version of a key as its window keeps it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Version {
    /// The entry it was part of.
    pub dot: Dot,
    /// That entry's stamp.
    pub stamp: Stamp,
    /// The number of the rules by which its writer merged: the highest in its past.
    pub rules: u32,
    /// All that its origin had applied besides its own entries.
    pub deps: Arc<VersionVector>,
    /// What was done to the key.
    pub kind: ChangeKind,
    /// The incarnation of the key it belongs to, as its origin computed it; for a delete the one it ended.
    pub incarnation: Incarnation,
}

impl Version {
    /// What a change of an entry did to its key. `deps` is all that the entry's origin had applied besides its own entries.
    pub fn new(head: &EntryHead, deps: Arc<VersionVector>, change: &Change) -> Self {
        Self {
            dot: head.dot,
            stamp: head.stamp,
            rules: head.rules,
            deps,
            kind: change.kind.clone(),
            incarnation: change.incarnation,
        }
    }

    /// Whether this version descends from the entry of that name.
    pub fn descends_from(&self, ancestor: Dot) -> bool {
        if ancestor.origin == self.dot.origin { ancestor.seq < self.dot.seq } else { self.deps.contains(ancestor) }
    }

    /// What this version alone makes of the key.
    pub fn live(&self) -> Option<Live> {
        match &self.kind {
            ChangeKind::Put { value, lease, version } => {
                let (value, incarnation) = (value.clone(), self.incarnation);
                Some(Live { value, lease: *lease, version: *version, incarnation })
            }
            ChangeKind::Delete | ChangeKind::Expire => None,
        }
    }

    /// The value that it gives the key; none where it deletes the key.
    pub fn value(&self) -> Option<&Bytes> {
        match &self.kind {
            ChangeKind::Put { value, .. } => Some(value),
            ChangeKind::Delete | ChangeKind::Expire => None,
        }
    }

    /// The order in which the last writer wins.
    pub fn order(&self) -> (Stamp, Dot) {
        (self.stamp, self.dot)
    }
}

/// The versions among these that no other of them descends from.
pub(crate) fn heads(versions: &[Version]) -> impl Iterator<Item = &Version> {
    versions.iter().enumerate().filter_map(|(i, version)| {
        let below = versions[i + 1..].iter().any(|later| later.descends_from(version.dot));
        (!below).then_some(version)
    })
}
