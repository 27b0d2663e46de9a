//! What an entry does to one key.

use bytes::Bytes;

use crate::words::id::LeaseId;
use crate::words::key::{Key, Keyspace};
use crate::words::revision::Revision;
use crate::words::value::Incarnation;

/// The last change of each key, in order.
pub fn net(changes: &[Change]) -> Vec<&Change> {
    if changes.len() <= 1 {
        return changes.iter().collect();
    }
    let mut seen = std::collections::BTreeSet::new();
    let mut net: Vec<&Change> = changes.iter().rev().filter(|c| seen.insert((c.keyspace, &c.key))).collect();
    net.reverse();
    net
}

/// What a version is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ChangeKind {
    /// The key was written.
    Put {
        /// The value.
        value: Bytes,
        /// The lease it hangs on.
        lease: Option<LeaseId>,
    },
    /// The key was deleted.
    Delete,
    /// The key was deleted because its lease ran out: weaker than a delete in a merge.
    Expire,
}

/// What a change gave on this replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Applied {
    /// The key is as the change says, at the record's revision.
    #[default]
    AsIs,
    /// The same at the revision after it: another life of the key was ended at the record's own.
    Later,
    /// Nothing: the transaction wrote the key again, or a merge gave something else (which is in the record's outcomes).
    Not,
}

/// One key's part in an entry, with what applying it gave on this replica.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// The position within the revision. Local: it does not travel.
    pub sub: u32,
    /// Which keyspace the key is of.
    pub keyspace: Keyspace,
    /// Whether it stays on this replica: it is no part of the entry that travels, nor of the state hash.
    pub local: bool,
    /// The key.
    pub key: Key,
    /// What happened to it.
    pub kind: ChangeKind,
    /// Create revision on this replica (client keys; zero otherwise). Local: it does not travel.
    pub create_revision: Revision,
    /// The version number, zero for a delete.
    pub version: i64,
    /// The life of the key that this belongs to.
    pub incarnation: Incarnation,
    /// What it gave on this replica. Local: it does not travel.
    pub applied: Applied,
}

impl Change {
    /// A change as it travels.
    pub(crate) fn new(keyspace: Keyspace, key: Key, kind: ChangeKind, version: i64, incarnation: Incarnation) -> Self {
        let (sub, local, create_revision, applied) = (0, false, Revision::default(), Applied::AsIs);
        Self { sub, keyspace, local, key, kind, create_revision, version, incarnation, applied }
    }

    /// The same key deleted, where that ended the given incarnation.
    #[must_use]
    pub(crate) fn deleted(&self, incarnation: Incarnation) -> Self {
        Self { local: self.local, ..Self::new(self.keyspace, self.key.clone(), ChangeKind::Delete, 0, incarnation) }
    }

    /// The change without what is this replica's own.
    #[must_use]
    pub fn travelling(&self) -> Self {
        Self { sub: 0, create_revision: Revision::default(), applied: Applied::AsIs, ..self.clone() }
    }
}
