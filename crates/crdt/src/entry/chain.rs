//! The hash over all entries of an origin: tells a lost or forked tail.
//!
//! XXH3 with 128 bits: it guards against accidents, and a member that lies could as well send other entries from the
//! start.

use xxhash_rust::xxh3::Xxh3;

use crate::entry::change::{Change, ChangeKind};
use crate::entry::record::EntryHead;
use crate::words::chain::Chain;
use crate::words::id::LeaseId;
use crate::words::key::Keyspace;

impl Chain {
    /// The hash of the chain when this entry is added to it: over everything of it that travels. An entry that stands
    /// for others too says itself what the hash is after them.
    #[must_use]
    pub fn extend(&self, head: &EntryHead, changes: &[Change]) -> Self {
        if let Some(resulting) = head.resulting {
            return resulting;
        }
        let mut hasher = Xxh3::new();
        hasher.update(self.as_bytes());
        let dot = head.dot;
        let rules = u64::from(head.rules);
        for number in [dot.origin.replica.get(), dot.origin.birth.get(), dot.seq, head.stamp.get(), rules] {
            hasher.update(&number.to_le_bytes());
        }
        for dep in head.depends.iter() {
            for number in [dep.origin.replica.get(), dep.origin.birth.get(), dep.seq] {
                hasher.update(&number.to_le_bytes());
            }
        }
        for fence in head.depends.fences() {
            // A mark in front: what stands here otherwise begins with a flag below it.
            hasher.update(&[u8::MAX]);
            for number in [fence.replica.get(), fence.before.get(), fence.hash] {
                hasher.update(&number.to_le_bytes());
            }
        }
        for change in changes.iter().filter(|change| !change.local) {
            let (kind, value, lease, version) = match &change.kind {
                ChangeKind::Put { value, lease, version } => (1, &value[..], lease.map_or(0, LeaseId::get), *version),
                ChangeKind::Delete => (2, &[][..], 0, 0),
                ChangeKind::Expire => (3, &[][..], 0, 0),
            };
            let incarnation = change.incarnation;
            // One update for all that has a fixed length: each costs a copy and a branch.
            let mut fixed = [0; 58];
            fixed[0] = u8::from(change.keyspace == Keyspace::System);
            fixed[1] = kind;
            let numbers = [
                change.key.len() as u64,
                lease as u64,
                value.len() as u64,
                version as u64,
                incarnation.stamp.get(),
                incarnation.dot.origin.replica.get(),
                incarnation.dot.origin.birth.get(),
            ];
            for (place, number) in fixed[2..].chunks_exact_mut(8).zip(numbers) {
                place.copy_from_slice(&number.to_le_bytes());
            }
            hasher.update(&fixed);
            hasher.update(&incarnation.dot.seq.to_le_bytes());
            hasher.update(&change.key);
            hasher.update(value);
        }
        Self::new(hasher.digest128().to_le_bytes())
    }
}
