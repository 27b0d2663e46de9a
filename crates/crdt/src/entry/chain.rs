//! The hash over all entries of an origin: tells a lost or forked tail.
//!
//! XXH3 with 128 bits: it guards against accidents, and a member that lies could as well send other entries from the
//! start.

use xxhash_rust::xxh3::Xxh3;

use crate::entry::{Change, ChangeKind, EntryHead};
use crate::words::id::LeaseId;
use crate::words::key::Keyspace;

/// Length of a chain hash, bytes.
pub const CHAIN_LEN: usize = 16;

/// Hash of an origin's entries up to one of them: each covers the one before. Tells a lost or forked tail.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Chain([u8; CHAIN_LEN]);

impl Chain {
    /// The hash as bytes.
    pub fn as_bytes(&self) -> &[u8; CHAIN_LEN] {
        &self.0
    }

    /// Reads a hash back; `None` when it has another length.
    pub fn from_wire(bytes: &[u8]) -> Option<Self> {
        Some(Self(bytes.try_into().ok()?))
    }

    /// The hash of the chain when this entry is added to it: over everything of it that travels. An entry that stands
    /// for others too says itself what the hash is after them.
    #[must_use]
    pub fn extend(&self, head: &EntryHead, changes: &[Change]) -> Self {
        if let Some(resulting) = head.resulting {
            return resulting;
        }
        let mut hasher = Xxh3::new();
        hasher.update(&self.0);
        let dot = head.dot;
        for number in [dot.origin.replica.get(), dot.origin.birth.get(), dot.seq, head.stamp.get()] {
            hasher.update(&number.to_le_bytes());
        }
        for dep in head.depends.iter() {
            for number in [dep.origin.replica.get(), dep.origin.birth.get(), dep.seq] {
                hasher.update(&number.to_le_bytes());
            }
        }
        for change in changes.iter().filter(|change| !change.local) {
            let (kind, value, lease) = match &change.kind {
                ChangeKind::Put { value, lease } => (1, &value[..], lease.map_or(0, LeaseId::get)),
                ChangeKind::Delete => (2, &[][..], 0),
                ChangeKind::Expire => (3, &[][..], 0),
            };
            let life = change.incarnation;
            // One update for all that has a fixed length: each costs a copy and a branch.
            let mut fixed = [0; 58];
            fixed[0] = u8::from(change.keyspace == Keyspace::System);
            fixed[1] = kind;
            let numbers = [
                change.key.len() as u64,
                lease as u64,
                value.len() as u64,
                change.version as u64,
                life.stamp.get(),
                life.dot.origin.replica.get(),
                life.dot.origin.birth.get(),
            ];
            for (place, number) in fixed[2..].chunks_exact_mut(8).zip(numbers) {
                place.copy_from_slice(&number.to_le_bytes());
            }
            hasher.update(&fixed);
            hasher.update(&life.dot.seq.to_le_bytes());
            hasher.update(&change.key);
            hasher.update(value);
        }
        Self(hasher.digest128().to_le_bytes())
    }
}
