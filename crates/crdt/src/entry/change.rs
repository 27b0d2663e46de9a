//! What an entry does to one key.

use bytes::Bytes;

use crate::words::id::LeaseId;
use crate::words::key::{Key, Keyspace};
use crate::words::revision::Revision;
use crate::words::value::{Incarnation, Live};

/// The last change of each key, in order.
pub fn net<'a>(changes: impl IntoIterator<Item = &'a Change>) -> Vec<&'a Change> {
    let mut net: Vec<_> = changes.into_iter().collect();
    if net.len() > 1 {
        let mut seen = std::collections::BTreeSet::new();
        net.reverse();
        net.retain(|change| seen.insert((change.keyspace, &change.key)));
        net.reverse();
    }
    net
}

/// Whether a key can have that version number: not below zero, and with more numbers above it than a key can be written. One
/// that a peer made up must not make the next write overflow.
pub(crate) fn is_version_number(version: i64) -> bool {
    (0..=i64::MAX / 2).contains(&version)
}

/// What was done to a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ChangeKind {
    /// The key was written.
    Put {
        /// The value.
        value: Bytes,
        /// The lease it hangs on.
        lease: Option<LeaseId>,
        /// How often the key was written in this incarnation, counted from 1.
        version: i64,
    },
    /// The key was deleted.
    Delete,
    /// The key was deleted because its lease ran out: weaker than a delete in a merge.
    Expire,
}

impl Live {
    /// The put that makes a key hold this.
    pub(crate) fn put(&self) -> ChangeKind {
        ChangeKind::Put { value: self.value.clone(), lease: self.lease, version: self.version }
    }
}

/// How a replica shows a change in its own history.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Applied {
    /// The position within the revision, counted from 0.
    pub sub: u32,
    /// When the incarnation began, by this replica's revisions; `None` for a delete and for system keys.
    pub create_revision: Option<Revision>,
    /// How many revisions after the record's it stands. Not 0 where one incarnation of the key was ended first, and where the
    /// keys of a step have a revision each.
    pub after: u32,
}

/// One key's part in an entry, with what applying it gave on this replica.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// Which keyspace the key is of.
    pub keyspace: Keyspace,
    /// Whether it stays on this replica: it is no part of the entry that travels, nor of the state hash.
    pub local: bool,
    /// The key.
    pub key: Key,
    /// What happened to it.
    pub kind: ChangeKind,
    /// The incarnation of the key that this belongs to; of a delete the one that it ended.
    pub incarnation: Incarnation,
    /// How this replica shows it. `None` where it does not: the transaction wrote the key again, a merge gave something
    /// else, or the change is on its way between replicas.
    pub applied: Option<Applied>,
}

impl Change {
    /// A change as it travels.
    pub(crate) fn new(keyspace: Keyspace, key: Key, kind: ChangeKind, incarnation: Incarnation) -> Self {
        Self { keyspace, local: false, key, kind, incarnation, applied: None }
    }

    /// The change without what is this replica's own.
    #[must_use]
    pub fn travelling(&self) -> Self {
        Self { applied: None, ..self.clone() }
    }
}
