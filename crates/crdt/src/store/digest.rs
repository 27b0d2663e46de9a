//! The hash of the state, kept up to date with every change.

use xxhash_rust::xxh3::Xxh3;

use crate::words::id::LeaseId;
use crate::words::key::Keyspace;

/// A hash over a set of keys that can be changed key by key: the sum of the hashes of its elements. Equal version
/// vectors with different digests mean that replicas hold different states.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Digest(u128);

impl Digest {
    /// Wraps a stored value.
    pub const fn new(raw: u128) -> Self {
        Self(raw)
    }

    /// The value, for storing and comparing.
    pub const fn get(self) -> u128 {
        self.0
    }

    /// Adds a key.
    pub fn add(&mut self, keyspace: Keyspace, key: &[u8], value: &[u8], version: i64, lease: Option<LeaseId>) {
        self.0 = self.0.wrapping_add(element(keyspace, key, value, version, lease));
    }

    /// Takes a key away that was added with the same arguments.
    pub fn remove(&mut self, keyspace: Keyspace, key: &[u8], value: &[u8], version: i64, lease: Option<LeaseId>) {
        self.0 = self.0.wrapping_sub(element(keyspace, key, value, version, lease));
    }
}

pub(crate) fn element(keyspace: Keyspace, key: &[u8], value: &[u8], version: i64, lease: Option<LeaseId>) -> u128 {
    let mut hasher = Xxh3::new();
    hasher.update(&[u8::from(keyspace == Keyspace::System)]);
    hasher.update(&(key.len() as u64).to_le_bytes());
    hasher.update(key);
    hasher.update(&version.to_le_bytes());
    hasher.update(&lease.map_or(0, LeaseId::get).to_le_bytes());
    hasher.update(value);
    hasher.digest128()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_depends_on_the_set_and_not_on_the_way_to_it() {
        let (mut a, mut b) = (Digest::default(), Digest::default());
        a.add(Keyspace::Client, b"x", b"1", 1, None);
        a.add(Keyspace::Client, b"y", b"2", 1, None);
        b.add(Keyspace::Client, b"y", b"2", 1, None);
        b.add(Keyspace::Client, b"z", b"", 4, LeaseId::from_wire(3));
        b.add(Keyspace::Client, b"x", b"1", 1, None);
        b.remove(Keyspace::Client, b"z", b"", 4, LeaseId::from_wire(3));
        assert_eq!(a, b);
    }

    #[test]
    fn every_part_of_a_key_counts() {
        let one = |keyspace, key: &[u8], value: &[u8], version, lease| element(keyspace, key, value, version, lease);
        let base = one(Keyspace::Client, b"ab", b"c", 1, None);
        assert_ne!(base, one(Keyspace::System, b"ab", b"c", 1, None));
        assert_ne!(base, one(Keyspace::Client, b"a", b"bc", 1, None));
        assert_ne!(base, one(Keyspace::Client, b"ab", b"c", 2, None));
        assert_ne!(base, one(Keyspace::Client, b"ab", b"c", 1, LeaseId::from_wire(1)));
    }
}
