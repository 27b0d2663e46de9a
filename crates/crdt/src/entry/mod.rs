//! Entries (the unit of replication), the records that journal them, and the head that goes with each flush.
//!
//! An **entry** is one committed transaction as its origin made it. A **record** is an entry together with what
//! applying it gave on this replica (revision, create revisions, outcomes of merges) under the replica's own journal
//! number. Records are protobuf, so that fields can be added; the layout is described in `docs/format.md`.

mod chain;
mod codec;
mod head;

use bytes::Bytes;

pub use chain::{CHAIN_LEN, Chain};
pub use codec::CodecError;
pub use head::{Head, OriginHead, Past};

use crate::store::index::Incarnation;
use crate::words::clock::Stamp;
use crate::words::id::{Dot, LeaseId};
use crate::words::key::{Key, Keyspace};
use crate::words::revision::Revision;
use crate::words::vector::VersionVector;

/// The version of the layout of records and heads. A build reads the versions up to its own.
pub const FORMAT: u32 = 1;

/// What names an entry and places it among all others.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EntryHead {
    /// Its name.
    pub dot: Dot,
    /// The first `seq` that it stands for: its own, unless entries before it were left out because later ones wrote
    /// over all that they did, and no peer was ever offered them.
    pub first_seq: u64,
    /// Its hybrid logical time, above those of everything it depends on.
    pub stamp: Stamp,
    /// What its origin had applied besides its own entries, as the change since its origin's previous entry.
    pub depends: VersionVector,
    /// The chain hash of its origin's previous entry (the one before `first_seq`).
    pub previous: Chain,
    /// The chain hash up to it, where it cannot be computed because it stands for entries that are left out.
    pub resulting: Option<Chain>,
}

/// One committed transaction as its origin made it: what travels.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Its name and place.
    pub head: EntryHead,
    /// What it did. None of it is local.
    pub changes: Vec<Change>,
}

impl Entry {
    /// About how many bytes it takes to send, without compression.
    pub fn weight(&self) -> usize {
        let change = |change: &Change| {
            let value = if let ChangeKind::Put { value, .. } = &change.kind { value.len() } else { 0 };
            32 + change.key.len() + value
        };
        64 + self.changes.iter().map(change).sum::<usize>()
    }

    /// The last change of each key: what one transaction did to a key in the end is all that counts elsewhere.
    pub fn net(&self) -> Vec<&Change> {
        net(&self.changes)
    }
}

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

    /// The change without what is this replica's own.
    #[must_use]
    pub fn travelling(&self) -> Self {
        Self { sub: 0, create_revision: Revision::default(), applied: Applied::AsIs, ..self.clone() }
    }
}

/// What a replica journals per applied entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// This replica's own number of it.
    pub number: u64,
    /// The revision it took here, if it touched client keys. One whose changes or outcomes are partly
    /// [`Applied::Later`] took the next one too.
    pub revision: Option<Revision>,
    /// The entry's name and place. An entry whose changes are all local still has one here, with a `seq` of zero: it
    /// is never sent, so it takes no dot.
    pub head: EntryHead,
    /// Its changes; only those that are still needed once `trimmed`.
    pub changes: Vec<Change>,
    /// What the keys became that are not simply as the entry's changes say.
    pub outcomes: Vec<Change>,
    /// Whether changes were dropped by a compaction: then this is no entry to send any more.
    pub trimmed: bool,
    /// Whether there were no other members when it was written: nobody ever needs it as an entry.
    pub settled: bool,
    /// Whether it was left out of the log: a later entry stands for it. Clients can still read it as history.
    pub left_out: bool,
}

impl Record {
    /// What happened to keys here, in order.
    pub fn effective(&self) -> impl Iterator<Item = &Change> {
        let at = |applied| self.changes.iter().chain(&self.outcomes).filter(move |change| change.applied == applied);
        at(Applied::AsIs).chain(at(Applied::Later))
    }

    /// The entry in it, as it travels.
    pub fn entry(&self) -> Entry {
        let changes = self.changes.iter().filter(|change| !change.local).map(Change::travelling).collect();
        Entry { head: self.head.clone(), changes }
    }
}

#[cfg(test)]
mod tests;
