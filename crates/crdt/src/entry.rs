//! Entries (the unit of replication), the records that journal them, and the head that goes with each flush.
//!
//! An **entry** is one committed transaction as its origin made it. A **record** is an entry together with what
//! applying it gave on this replica (revision, create revisions, versions, incarnations) under the replica's own
//! journal number. Records are protobuf, so that fields can be added; the layout is described in `docs/format.md`.

use bytes::Bytes;
use prost::Message;
use xxhash_rust::xxh3::xxh3_64;

use crate::clock::Stamp;
use crate::id::{Birth, ClusterId, Dot, Identity, LeaseId, Origin, ReplicaId};
use crate::index::Incarnation;
use crate::key::{Key, Keyspace};
use crate::revision::Revision;
use crate::vector::VersionVector;

/// The version of the layout of records and heads. A build reads the versions up to its own.
pub const FORMAT: u32 = 1;

/// Length of a chain hash, bytes.
pub const CHAIN_LEN: usize = 16;

/// Hash of an origin's entries up to one of them: each covers the one before. Tells a lost or forked tail.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Chain([u8; CHAIN_LEN]);

impl Chain {
    /// The hash as bytes.
    pub fn as_bytes(&self) -> &[u8; CHAIN_LEN] {
        &self.0
    }

    fn from_wire(bytes: &[u8]) -> Option<Self> {
        Some(Self(bytes.try_into().ok()?))
    }

    /// The hash of the chain when this entry is added to it: over everything of it that travels.
    #[must_use]
    pub fn extend(&self, head: &EntryHead, changes: &[Change]) -> Self {
        let mut hasher = blake3::Hasher::new();
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
            let keyspace = u8::from(change.keyspace == Keyspace::System);
            hasher.update(&[keyspace, kind]);
            hasher.update(&(change.key.len() as u64).to_le_bytes());
            hasher.update(&change.key);
            hasher.update(&lease.to_le_bytes());
            hasher.update(&(value.len() as u64).to_le_bytes());
            hasher.update(value);
        }
        let mut chain = [0; CHAIN_LEN];
        chain.copy_from_slice(&hasher.finalize().as_bytes()[..CHAIN_LEN]);
        Self(chain)
    }
}

/// What names an entry and places it among all others.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EntryHead {
    /// Its name.
    pub dot: Dot,
    /// Its hybrid logical time, above those of everything it depends on.
    pub stamp: Stamp,
    /// What its origin had applied besides its own entries, as the change since its origin's previous entry.
    pub depends: VersionVector,
    /// The chain hash of its origin's previous entry.
    pub previous: Chain,
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

/// One key's part in an entry, with what applying it gave on this replica.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// The position within the entry's transaction.
    pub sub: u32,
    /// Which keyspace the key is of.
    pub keyspace: Keyspace,
    /// Whether it stays on this replica: it is no part of the entry that travels, nor of the state hash.
    pub local: bool,
    /// The key.
    pub key: Key,
    /// What happened to it.
    pub kind: ChangeKind,
    /// Create revision on this replica (client keys; zero otherwise).
    pub create_revision: Revision,
    /// The version number, zero for a delete.
    pub version: i64,
    /// The life of the key that this belongs to.
    pub incarnation: Incarnation,
}

/// What a replica journals per applied entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// This replica's own number of it.
    pub number: u64,
    /// The revision it took here, if it touched client keys.
    pub revision: Option<Revision>,
    /// The entry's name and place. An entry whose changes are all local still has one here, with a `seq` of zero: it
    /// is never sent, so it takes no dot.
    pub head: EntryHead,
    /// Its changes; only those that are still needed once `trimmed`.
    pub changes: Vec<Change>,
    /// Whether changes were dropped by a compaction: then this is no entry to send any more.
    pub trimmed: bool,
}

/// The state of a replica beside its records, replaced with every flush.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Head {
    /// Who the replica is.
    pub identity: Identity,
    /// The number the next record will have.
    pub next_number: u64,
    /// The newest revision.
    pub revision: Revision,
    /// The revision of the last compaction; -1 for none.
    pub compacted: Revision,
    /// What it has applied.
    pub vector: VersionVector,
    /// The chain hash of its own entries.
    pub chain: Chain,
    /// The highest stamp given or seen.
    pub stamp: Stamp,
    /// Hash of the replicated state; see [`crate::digest`].
    pub state_hash: u128,
    /// The same over the keys that stay on this replica.
    pub local_hash: u128,
    /// How many versions of client keys there are; `None` while a compaction is being swept, which changes it.
    pub versions: Option<u64>,
}

/// Why bytes that should be a record or head are none.
#[derive(Debug, thiserror::Error)]
pub enum CodecError {
    /// Not protobuf of this layout.
    #[error("not a record of this format: {0}")]
    Protobuf(#[from] prost::DecodeError),
    /// The checksum at the end is not that of the bytes before it.
    #[error("damaged (checksum)")]
    Checksum,
    /// A field has a value that none can have.
    #[error("a record with an impossible {0}")]
    Field(&'static str),
    /// Written by a newer eddy.
    #[error("format {found} is newer than this build understands ({FORMAT}); start the newer eddy that wrote it")]
    Newer {
        /// The version it says.
        found: u32,
    },
}

mod wire {
    //! The protobuf messages behind the types above.
    use bytes::Bytes;

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Dot {
        #[prost(fixed64, tag = "1")]
        pub replica: u64,
        #[prost(fixed64, tag = "2")]
        pub birth: u64,
        #[prost(uint64, tag = "3")]
        pub seq: u64,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Change {
        /// Keyspace (bit 0), local (bit 1), kind (bits 2 and up: 1 put, 2 delete, 3 expire).
        #[prost(uint32, tag = "1")]
        pub flags: u32,
        #[prost(uint32, tag = "2")]
        pub sub: u32,
        #[prost(bytes = "bytes", tag = "3")]
        pub key: Bytes,
        #[prost(bytes = "bytes", tag = "4")]
        pub value: Bytes,
        #[prost(int64, tag = "5")]
        pub lease: i64,
        #[prost(int64, tag = "6")]
        pub create_revision: i64,
        #[prost(int64, tag = "7")]
        pub version: i64,
        /// Absent when this very record began the incarnation.
        #[prost(message, optional, tag = "8")]
        pub incarnation: Option<Dot>,
        #[prost(fixed64, tag = "9")]
        pub incarnation_stamp: u64,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Record {
        #[prost(uint64, tag = "1")]
        pub number: u64,
        #[prost(int64, tag = "2")]
        pub revision: i64,
        #[prost(message, optional, tag = "3")]
        pub dot: Option<Dot>,
        #[prost(fixed64, tag = "4")]
        pub stamp: u64,
        #[prost(message, repeated, tag = "5")]
        pub depends: Vec<Dot>,
        #[prost(bytes = "bytes", tag = "6")]
        pub previous: Bytes,
        #[prost(message, repeated, tag = "7")]
        pub changes: Vec<Change>,
        #[prost(bool, tag = "8")]
        pub trimmed: bool,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Head {
        #[prost(uint32, tag = "1")]
        pub format: u32,
        #[prost(fixed64, tag = "2")]
        pub cluster: u64,
        #[prost(fixed64, tag = "3")]
        pub replica: u64,
        #[prost(fixed64, tag = "4")]
        pub birth: u64,
        #[prost(uint32, tag = "5")]
        pub ordinal: u32,
        #[prost(uint64, tag = "6")]
        pub next_number: u64,
        #[prost(int64, tag = "7")]
        pub revision: i64,
        #[prost(sint64, tag = "8")]
        pub compacted: i64,
        #[prost(message, repeated, tag = "9")]
        pub vector: Vec<Dot>,
        #[prost(bytes = "bytes", tag = "10")]
        pub chain: Bytes,
        #[prost(fixed64, tag = "11")]
        pub stamp: u64,
        #[prost(bytes = "bytes", tag = "12")]
        pub state_hash: Bytes,
        #[prost(bytes = "bytes", tag = "13")]
        pub local_hash: Bytes,
        #[prost(uint64, optional, tag = "14")]
        pub versions: Option<u64>,
    }
}

/// The field at the end of records and heads: XXH3 of all bytes before it. Field 15 of type fixed64, so that protobuf
/// tools read it as any other.
const CHECKSUM_TAG: u8 = 15 << 3 | 1;

/// Length of the checksum field, bytes.
const CHECKSUM_LEN: usize = 1 + 8;

/// A message with its checksum.
fn seal(message: &impl Message) -> Bytes {
    let mut bytes = Vec::with_capacity(message.encoded_len() + CHECKSUM_LEN);
    message.encode_raw(&mut bytes);
    let sum = xxh3_64(&bytes);
    bytes.push(CHECKSUM_TAG);
    bytes.extend_from_slice(&sum.to_le_bytes());
    bytes.into()
}

/// The message before the checksum.
fn unseal(bytes: &Bytes) -> Result<Bytes, CodecError> {
    let end = bytes.len().checked_sub(CHECKSUM_LEN).ok_or(CodecError::Checksum)?;
    let (message, sum) = bytes.split_at(end);
    if sum[0] != CHECKSUM_TAG || sum[1..] != xxh3_64(message).to_le_bytes() {
        return Err(CodecError::Checksum);
    }
    Ok(bytes.slice(..end))
}

fn dot_to_wire(dot: Dot) -> wire::Dot {
    wire::Dot { replica: dot.origin.replica.get(), birth: dot.origin.birth.get(), seq: dot.seq }
}

fn dot_from_wire(dot: &wire::Dot) -> Dot {
    let origin = Origin { replica: ReplicaId::new(dot.replica), birth: Birth::new(dot.birth) };
    Dot { origin, seq: dot.seq }
}

impl Change {
    fn to_wire(&self, own: Incarnation) -> wire::Change {
        let (kind, value, lease) = match &self.kind {
            ChangeKind::Put { value, lease } => (1, value.clone(), *lease),
            ChangeKind::Delete => (2, Bytes::new(), None),
            ChangeKind::Expire => (3, Bytes::new(), None),
        };
        let elsewhere = self.incarnation != own;
        wire::Change {
            flags: u32::from(self.keyspace == Keyspace::System) | u32::from(self.local) << 1 | kind << 2,
            sub: self.sub,
            key: self.key.clone(),
            value,
            lease: lease.map_or(0, LeaseId::get),
            create_revision: self.create_revision.get(),
            version: self.version,
            incarnation: elsewhere.then(|| dot_to_wire(self.incarnation.dot)),
            incarnation_stamp: if elsewhere { self.incarnation.stamp.get() } else { 0 },
        }
    }

    fn from_wire(wire: wire::Change, own: Incarnation) -> Result<Self, CodecError> {
        let kind = match wire.flags >> 2 {
            1 => ChangeKind::Put { value: wire.value, lease: LeaseId::from_wire(wire.lease) },
            2 => ChangeKind::Delete,
            3 => ChangeKind::Expire,
            _ => return Err(CodecError::Field("kind of change")),
        };
        if wire.key.is_empty() {
            return Err(CodecError::Field("key"));
        }
        Ok(Self {
            sub: wire.sub,
            keyspace: if wire.flags & 1 == 0 { Keyspace::Client } else { Keyspace::System },
            local: wire.flags & 2 != 0,
            key: wire.key,
            kind,
            create_revision: Revision::new(wire.create_revision),
            version: wire.version,
            incarnation: wire
                .incarnation
                .map_or(own, |dot| Incarnation { stamp: Stamp::new(wire.incarnation_stamp), dot: dot_from_wire(&dot) }),
        })
    }
}

impl Record {
    /// The record as the journal keeps it.
    pub fn encode(&self) -> Bytes {
        let own = Incarnation { stamp: self.head.stamp, dot: self.head.dot };
        let wire = wire::Record {
            number: self.number,
            revision: self.revision.map_or(0, Revision::get),
            dot: Some(dot_to_wire(self.head.dot)),
            stamp: self.head.stamp.get(),
            depends: self.head.depends.iter().map(dot_to_wire).collect(),
            previous: Bytes::copy_from_slice(&self.head.previous.0),
            changes: self.changes.iter().map(|change| change.to_wire(own)).collect(),
            trimmed: self.trimmed,
        };
        seal(&wire)
    }

    /// Reads a record back. Keys and values share the memory of `bytes`.
    ///
    /// # Errors
    /// When the bytes are no record.
    pub fn decode(bytes: Bytes) -> Result<Self, CodecError> {
        let wire = wire::Record::decode(unseal(&bytes)?)?;
        let dot = dot_from_wire(&wire.dot.ok_or(CodecError::Field("name"))?);
        let stamp = Stamp::new(wire.stamp);
        let own = Incarnation { stamp, dot };
        Ok(Self {
            number: wire.number,
            revision: (wire.revision != 0).then(|| Revision::new(wire.revision)),
            head: EntryHead {
                dot,
                stamp,
                depends: wire.depends.iter().map(dot_from_wire).collect(),
                previous: Chain::from_wire(&wire.previous).ok_or(CodecError::Field("chain hash"))?,
            },
            changes: wire.changes.into_iter().map(|c| Change::from_wire(c, own)).collect::<Result<_, _>>()?,
            trimmed: wire.trimmed,
        })
    }
}

impl Head {
    /// The head as the journal keeps it.
    pub fn encode(&self) -> Bytes {
        let wire = wire::Head {
            format: FORMAT,
            cluster: self.identity.cluster.get(),
            replica: self.identity.replica.get(),
            birth: self.identity.birth.get(),
            ordinal: self.identity.ordinal.into(),
            next_number: self.next_number,
            revision: self.revision.get(),
            compacted: self.compacted.get(),
            vector: self.vector.iter().map(dot_to_wire).collect(),
            chain: Bytes::copy_from_slice(&self.chain.0),
            stamp: self.stamp.get(),
            state_hash: Bytes::copy_from_slice(&self.state_hash.to_le_bytes()),
            local_hash: Bytes::copy_from_slice(&self.local_hash.to_le_bytes()),
            versions: self.versions,
        };
        seal(&wire)
    }

    /// Reads a head back.
    ///
    /// # Errors
    /// When the bytes are no head, or one of a newer format.
    pub fn decode(bytes: &Bytes) -> Result<Self, CodecError> {
        let wire = wire::Head::decode(unseal(bytes)?)?;
        if wire.format > FORMAT {
            return Err(CodecError::Newer { found: wire.format });
        }
        let hash =
            |bytes: &[u8]| bytes.try_into().map(u128::from_le_bytes).map_err(|_| CodecError::Field("state hash"));
        Ok(Self {
            identity: Identity {
                cluster: ClusterId::new(wire.cluster),
                replica: ReplicaId::new(wire.replica),
                birth: Birth::new(wire.birth),
                ordinal: u16::try_from(wire.ordinal).map_err(|_| CodecError::Field("ordinal"))?,
            },
            next_number: wire.next_number,
            revision: Revision::new(wire.revision),
            compacted: Revision::new(wire.compacted),
            vector: wire.vector.iter().map(dot_from_wire).collect(),
            chain: Chain::from_wire(&wire.chain).ok_or(CodecError::Field("chain hash"))?,
            stamp: Stamp::new(wire.stamp),
            state_hash: hash(&wire.state_hash)?,
            local_hash: hash(&wire.local_hash)?,
            versions: wire.versions,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        let origin = Origin { replica: ReplicaId::new(u64::MAX), birth: Birth::new(9) };
        let own = Incarnation { stamp: Stamp::new(77), dot: Dot { origin, seq: 3 } };
        let change = |sub, kind, incarnation| Change {
            sub,
            keyspace: Keyspace::Client,
            local: sub == 1,
            key: Key::from_static(b"k"),
            kind,
            create_revision: Revision::new(4),
            version: 1,
            incarnation,
        };
        let older = Incarnation { stamp: Stamp::new(5), dot: Dot { origin, seq: 1 } };
        Record {
            number: 12,
            revision: Some(Revision::new(5)),
            head: EntryHead {
                dot: own.dot,
                stamp: own.stamp,
                depends: VersionVector::default(),
                previous: Chain([7; CHAIN_LEN]),
            },
            changes: vec![
                change(0, ChangeKind::Put { value: Bytes::new(), lease: Some(LeaseId::new(-3)) }, own),
                change(1, ChangeKind::Delete, older),
                change(2, ChangeKind::Expire, older),
            ],
            trimmed: false,
        }
    }

    #[test]
    fn records_come_back_as_they_were() {
        assert_eq!(Record::decode(record().encode()).unwrap(), record());
    }

    #[test]
    fn every_cut_and_every_flipped_byte_is_handled() {
        let bytes = record().encode();
        for cut in 0..bytes.len() {
            let cut = Record::decode(bytes.slice(..cut));
            assert!(matches!(cut, Err(CodecError::Checksum)));
        }
        for place in 0..bytes.len() {
            for flip in [1u8, 0x80, 0xff] {
                let mut damaged = bytes.to_vec();
                damaged[place] ^= flip;
                let flipped = Record::decode(damaged.into());
                assert!(matches!(flipped, Err(CodecError::Checksum)), "byte {place}");
            }
        }
    }

    #[test]
    fn a_head_of_a_newer_format_is_refused() {
        let wire = wire::Head { format: FORMAT + 1, ..wire::Head::default() };
        let error = Head::decode(&seal(&wire)).unwrap_err();
        assert!(matches!(error, CodecError::Newer { found } if found == FORMAT + 1));
    }

    #[test]
    fn the_chain_covers_what_travels_and_nothing_else() {
        let record = record();
        let chain = Chain::default().extend(&record.head, &record.changes);
        let mut other = record.clone();
        other.changes[0].create_revision = Revision::new(99);
        other.changes[1].key = Key::from_static(b"local");
        assert_eq!(chain, Chain::default().extend(&other.head, &other.changes));
        other.changes[0].key = Key::from_static(b"other");
        assert_ne!(chain, Chain::default().extend(&other.head, &other.changes));
    }
}
