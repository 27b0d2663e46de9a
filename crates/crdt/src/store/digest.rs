//! Hashes of the state: eddy's own, kept up to date with every change, and the one that etcd's HashKV answers.

use bytes::Bytes;
use prost::Message;
use xxhash_rust::xxh3::Xxh3;

use crate::store::crc::Crc;
use crate::store::index::{Content, Index, KeyVersion};
use crate::store::past::Held;
use crate::words::id::LeaseId;
use crate::words::key::{Key, Keyspace};
use crate::words::revision::Revision;

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

/// etcd's `mvccpb.KeyValue`, as its store hashes it, up to its value.
#[derive(Clone, PartialEq, Message)]
struct BeforeValue {
    #[prost(bytes = "bytes", tag = "1")]
    key: Bytes,
    #[prost(int64, tag = "2")]
    create_revision: i64,
    #[prost(int64, tag = "3")]
    mod_revision: i64,
    #[prost(int64, tag = "4")]
    version: i64,
}

/// The rest of it.
#[derive(Clone, PartialEq, Message)]
struct BehindValue {
    #[prost(int64, tag = "6")]
    lease: i64,
}

/// The number of the field between, and its kind: bytes behind their length.
const VALUE_FIELD: u8 = 5 << 3 | 2;

/// Feeds a version as etcd stores it. Of a value that is not in memory its own CRC is enough.
fn feed(whole: &mut Crc, key: &Key, version: &KeyVersion, content: &Content) {
    let before = BeforeValue {
        key: key.clone(),
        create_revision: content.create_revision.get(),
        mod_revision: version.revision.get(),
        version: content.version,
    };
    let mut bytes = before.encode_to_vec();
    let len = match &content.value {
        Held::Here(value) => value.len() as u64,
        Held::Stored { len, .. } => u64::from(*len),
    };
    if len > 0 {
        bytes.push(VALUE_FIELD);
        prost::encoding::encode_varint(len, &mut bytes);
    }
    whole.feed(&bytes);
    match &content.value {
        Held::Here(value) => whole.feed(value),
        Held::Stored { len, crc } => whole.feed_crc(*len, *crc),
    }
    if let Some(lease) = content.lease {
        whole.feed(&BehindValue { lease: lease.get() }.encode_to_vec());
    }
}

/// The hash that etcd 3.7 gives for the same history once it has swept its last compaction. It is a CRC-32C over etcd's
/// key bucket up to `at`. Of what lies at or below `compacted` it leaves out what a compaction at `at` would drop. Does
/// not depend on how far this index is swept. Takes time and memory with the number of keys.
///
/// etcd itself answers another hash at exactly the last ten compacted revisions, until it restarts. It computed that
/// hash while compacting, over versions that are gone afterwards.
pub fn hash_kv(index: &Index, compacted: Option<Revision>, at: Revision) -> u32 {
    // Versions with whether a compaction at `at` keeps them: of each key the newest, unless it is a tombstone.
    let mut stored = Vec::new();
    let mut any_kept = false;
    for (key, versions) in index.iter() {
        let upto = versions.partition_point(|v| v.revision <= at);
        let hidden = versions.partition_point(|v| Some(v.revision) <= compacted);
        for (place, version) in versions.iter().enumerate().take(upto).skip(hidden.saturating_sub(1)) {
            if !version.is_live() && Some(version.revision) <= compacted {
                continue;
            }
            let kept = place + 1 == upto && version.is_live();
            any_kept |= kept;
            stored.push((key, version, kept));
        }
    }
    stored.sort_unstable_by_key(|(_, v, _)| (v.revision, v.sub));

    let mut crc = Crc::default();
    crc.feed(b"key");
    for (key, version, kept) in stored {
        if Some(version.revision) <= compacted && any_kept && !kept {
            continue;
        }
        crc.feed(&version.revision.get().to_be_bytes());
        crc.feed(b"_");
        crc.feed(&i64::from(version.sub).to_be_bytes());
        match &version.content {
            Some(content) => feed(&mut crc, key, version, content),
            None => {
                crc.feed(b"t");
                crc.feed(&BeforeValue { key: key.clone(), ..BeforeValue::default() }.encode_to_vec());
            }
        }
    }
    crc.get()
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
