//! The hash that etcd's HashKV answers, taken over all versions in slices.

use bytes::Bytes;
use prost::Message;

use crate::store::crc::Crc;
use crate::store::index::{Index, KeyVersion};
use crate::store::past::Held;
use crate::store::walk::{self, VersionCursor};
use crate::words::id::LeaseId;
use crate::words::key::Key;
use crate::words::revision::Revision;

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

/// Feeds a version as etcd stores it: its place, a mark if it deletes the key, and what the key was. Of a value that is not in
/// memory its own CRC is enough.
fn feed(whole: &mut Crc, key: &Key, version: &KeyVersion) -> u32 {
    let mut bytes = version.revision.get().to_be_bytes().to_vec();
    bytes.push(b'_');
    bytes.extend(i64::from(version.sub).to_be_bytes());
    let Some(content) = &version.content else {
        bytes.push(b't');
        bytes.extend(BeforeValue { key: key.clone(), ..BeforeValue::default() }.encode_to_vec());
        whole.feed(&bytes);
        return bytes.len() as u32;
    };
    let before = BeforeValue {
        key: key.clone(),
        create_revision: content.create_revision.get(),
        mod_revision: version.revision.get(),
        version: content.version,
    };
    bytes.extend(before.encode_to_vec());
    let len = match &content.value {
        Held::Here(value) => value.len() as u32,
        Held::Stored { len, .. } => *len,
    };
    if len > 0 {
        bytes.push(VALUE_FIELD);
        prost::encoding::encode_varint(len.into(), &mut bytes);
    }
    whole.feed(&bytes);
    match &content.value {
        Held::Here(value) => whole.feed(value),
        Held::Stored { len, crc } => whole.feed_crc(*len, *crc),
    }
    let behind = BehindValue { lease: content.lease.map_or(0, LeaseId::get) }.encode_to_vec();
    whole.feed(&behind);
    (bytes.len() + behind.len()) as u32 + len
}

/// A version as it goes into the hash.
struct Part {
    revision: Revision,
    sub: u32,
    len: u32,
    crc: u32,
    /// Whether a compaction at the hashed revision keeps it: the newest of its key, unless it is a tombstone.
    kept: bool,
}

/// The hash that etcd 3.7 gives for the same history once it has swept its last compaction, in the making. It is a CRC-32C
/// over etcd's key bucket up to `at`. Of what lies at or below `compacted` it leaves out what a compaction at `at` would drop.
/// It does not depend on how far the index was swept before; while it is made no later compaction must be swept.
///
/// etcd itself answers another hash at exactly the last ten compacted revisions, until it restarts. It computed that
/// hash while compacting, over versions that are gone afterwards.
pub struct HashWalk {
    at: Revision,
    compacted: Option<Revision>,
    restamped: Option<Revision>,
    /// Where to go on; `None` at the beginning and at the end.
    behind: Option<VersionCursor>,
    done: bool,
    parts: Vec<Part>,
    any_kept: bool,
    crc: Crc,
}

impl HashWalk {
    /// One that has seen nothing.
    pub fn new(compacted: Option<Revision>, at: Revision, restamped: Option<Revision>) -> Self {
        Self {
            at,
            compacted,
            restamped,
            behind: None,
            done: false,
            parts: Vec::new(),
            any_kept: false,
            crc: Crc::default(),
        }
    }

    /// When all keys were stamped anew.
    pub fn restamped(&self) -> Option<Revision> {
        self.restamped
    }

    /// The last compaction when it began.
    pub fn compacted(&self) -> Option<Revision> {
        self.compacted
    }

    /// The revision up to which is hashed.
    pub fn at(&self) -> Revision {
        self.at
    }

    /// Looks at about `max` versions. Tells whether these were the last.
    pub fn go_on(&mut self, index: &Index, max: usize) -> bool {
        if self.done {
            return true;
        }
        let (span, behind) = ((self.at, self.compacted), self.behind.take());
        self.behind = walk::slice(index, span, behind.as_ref(), max, |key, version, is_last| {
            if version.is_live() || Some(version.revision) > span.1 {
                self.add(key, version, is_last && version.is_live());
            }
        });
        self.done = self.behind.is_none();
        self.done
    }

    fn add(&mut self, key: &Key, version: &KeyVersion, kept: bool) {
        self.any_kept |= kept;
        self.crc.restart();
        let len = feed(&mut self.crc, key, version);
        self.parts.push(Part { revision: version.revision, sub: version.sub, len, crc: self.crc.get(), kept });
    }

    /// The hash, once all was looked at.
    pub fn finish(mut self) -> u32 {
        self.parts.sort_by_key(|part| (part.revision, part.sub));
        self.crc.restart();
        self.crc.feed(b"key");
        for part in &self.parts {
            if Some(part.revision) > self.compacted || !self.any_kept || part.kept {
                self.crc.feed_crc(part.len, part.crc);
            }
        }
        self.crc.get()
    }
}
