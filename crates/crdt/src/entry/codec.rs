//! Records and heads as bytes.

use std::sync::Arc;

use bytes::Bytes;
use prost::Message;
use prost::encoding::{decode_varint, encode_varint};
use xxhash_rust::xxh3::xxh3_64;

use crate::entry::change::{Applied, Change, ChangeKind, is_version_number};
use crate::entry::record::{Bases, Below, EntryHead, Notes, Record};
use crate::words::chain::Chain;
use crate::words::clock::Stamp;
use crate::words::fence::VectorPart;
use crate::words::id::{Birth, Dot, LeaseId, Origin, ReplicaId};
use crate::words::key::Keyspace;
use crate::words::revision::Revision;
use crate::words::value::Incarnation;
use crate::words::vector::VersionVector;

/// The version of the layout of records and heads. A build reads the versions up to its own.
pub const FORMAT: u32 = 1;

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
    /// Written by an eddy from before the first release.
    #[error("written by an eddy from before the first release, which this build does not read")]
    Unreleased,
}

pub(super) mod wire {
    //! The protobuf messages behind the types of this module.
    use bytes::Bytes;

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct StoredDot {
        #[prost(fixed64, tag = "1")]
        pub replica: u64,
        #[prost(fixed64, tag = "2")]
        pub birth: u64,
        #[prost(uint64, tag = "3")]
        pub seq: u64,
        /// In a vector, and set where this is no dot but a fence before that birth: its hash.
        #[prost(fixed64, optional, tag = "4")]
        pub ended: Option<u64>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct StoredChange {
        /// Keyspace (bit 0), local (bit 1), kind (bits 2 and 3: 1 put, 2 delete, 3 expire). Applied (from bit 4 on: 0 at
        /// the record's revision, 1 at the next one, 2 not at all, 3 and more one less than so many after the record's).
        #[prost(uint32, tag = "1")]
        pub flags: u32,
        #[prost(uint32, tag = "2")]
        pub sub: u32,
        #[prost(bytes = "bytes", tag = "3")]
        pub key: Bytes,
        #[prost(bytes = "bytes", tag = "4")]
        pub value: Bytes,
        #[prost(int64, optional, tag = "5")]
        pub lease: Option<i64>,
        #[prost(int64, optional, tag = "6")]
        pub create_revision: Option<i64>,
        /// Of a put.
        #[prost(int64, tag = "7")]
        pub version: i64,
        /// Absent when this very record began the incarnation.
        #[prost(message, optional, tag = "8")]
        pub incarnation: Option<StoredDot>,
        #[prost(fixed64, tag = "9")]
        pub incarnation_stamp: u64,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct StoredRecord {
        #[prost(uint64, tag = "1")]
        pub number: u64,
        #[prost(int64, optional, tag = "2")]
        pub revision: Option<i64>,
        /// Absent where the record holds no entry; then so are fields 4 to 6, 10, 11 and 16.
        #[prost(message, optional, tag = "3")]
        pub dot: Option<StoredDot>,
        #[prost(fixed64, tag = "4")]
        pub stamp: u64,
        #[prost(message, repeated, tag = "5")]
        pub depends: Vec<StoredDot>,
        #[prost(bytes = "bytes", tag = "6")]
        pub previous: Bytes,
        #[prost(message, repeated, tag = "7")]
        pub changes: Vec<StoredChange>,
        #[prost(bool, tag = "8")]
        pub trimmed: bool,
        #[prost(message, repeated, tag = "9")]
        pub outcomes: Vec<StoredChange>,
        /// Absent where it stands for itself alone.
        #[prost(uint64, optional, tag = "10")]
        pub first_seq: Option<u64>,
        #[prost(bytes = "bytes", optional, tag = "11")]
        pub resulting: Option<Bytes>,
        #[prost(bool, tag = "12")]
        pub settled: bool,
        // Tag 13 said of a trimmed record that its entry was left out; journals of before have it.
        #[prost(uint64, optional, tag = "14")]
        pub until: Option<u64>,
        #[prost(uint32, tag = "16")]
        pub rules: u32,
        /// Empty where there is nothing to say, as field 18.
        #[prost(bytes = "bytes", tag = "17")]
        pub bases: Bytes,
        #[prost(bytes = "bytes", tag = "18")]
        pub notes: Bytes,
    }
}

/// The field at the end of records and heads: XXH3 of all bytes before it. Field 15 of type fixed64, so that protobuf
/// tools read it as any other.
const CHECKSUM_TAG: u8 = 15 << 3 | 1;

/// Length of the checksum field, bytes.
const CHECKSUM_LEN: usize = 1 + 8;

/// A message with its checksum.
pub(super) fn seal(message: &impl Message) -> Bytes {
    let mut bytes = Vec::with_capacity(message.encoded_len() + CHECKSUM_LEN);
    message.encode_raw(&mut bytes);
    let sum = xxh3_64(&bytes);
    bytes.push(CHECKSUM_TAG);
    bytes.extend_from_slice(&sum.to_le_bytes());
    bytes.into()
}

/// The message before the checksum.
pub(super) fn unseal(bytes: &Bytes) -> Result<Bytes, CodecError> {
    let end = bytes.len().checked_sub(CHECKSUM_LEN).ok_or(CodecError::Checksum)?;
    let (message, sum) = bytes.split_at(end);
    if sum[0] != CHECKSUM_TAG || sum[1..] != xxh3_64(message).to_le_bytes() {
        return Err(CodecError::Checksum);
    }
    Ok(bytes.slice(..end))
}

pub(super) fn dot_to_wire(dot: Dot) -> wire::StoredDot {
    part_to_wire(VectorPart::Upto(dot))
}

fn part_to_wire(part: VectorPart) -> wire::StoredDot {
    let (replica, birth, number, is_fence) = part.numbers();
    let (seq, ended) = if is_fence { (0, Some(number)) } else { (number, None) };
    wire::StoredDot { replica, birth, seq, ended }
}

pub(super) fn vector_to_wire(vector: &VersionVector) -> Vec<wire::StoredDot> {
    vector.parts().map(part_to_wire).collect()
}

pub(super) fn vector_from_wire(parts: &[wire::StoredDot]) -> VersionVector {
    let part = |part: &wire::StoredDot| {
        VectorPart::from_numbers(part.replica, part.birth, part.ended.unwrap_or(part.seq), part.ended.is_some())
    };
    parts.iter().map(part).collect()
}

pub(super) fn dot_from_wire(dot: &wire::StoredDot) -> Dot {
    let origin = Origin { replica: ReplicaId::new(dot.replica), birth: Birth::new(dot.birth) };
    Dot { origin, seq: dot.seq }
}

/// Stands in the place of [`Applied::after`] where a change is not applied. Higher values of that are one higher there.
const NOT_APPLIED: u32 = 2;

pub(super) fn chain_from_wire(bytes: &[u8]) -> Result<Chain, CodecError> {
    Chain::from_wire(bytes).ok_or(CodecError::Field("chain hash"))
}

impl Change {
    fn to_wire(&self, own: Option<Incarnation>) -> wire::StoredChange {
        let (kind, value, lease, version) = match &self.kind {
            ChangeKind::Put { value, lease, version } => (1, value.clone(), *lease, *version),
            ChangeKind::Delete => (2, Bytes::new(), None, 0),
            ChangeKind::Expire => (3, Bytes::new(), None, 0),
        };
        let applied = match self.applied.map(|applied| applied.after) {
            Some(after) if after < NOT_APPLIED => after,
            Some(after) => after + 1,
            None => NOT_APPLIED,
        };
        let elsewhere = Some(self.incarnation) != own;
        wire::StoredChange {
            flags: u32::from(self.keyspace == Keyspace::System) | u32::from(self.local) << 1 | kind << 2 | applied << 4,
            sub: self.applied.map_or(0, |applied| applied.sub),
            key: self.key.clone(),
            value,
            lease: lease.map(LeaseId::get),
            create_revision: self.applied.and_then(|applied| applied.create_revision).map(Revision::get),
            version,
            incarnation: elsewhere.then(|| dot_to_wire(self.incarnation.dot)),
            incarnation_stamp: if elsewhere { self.incarnation.stamp.get() } else { 0 },
        }
    }

    fn from_wire(wire: wire::StoredChange, own: Option<Incarnation>) -> Result<Self, CodecError> {
        let kind = match wire.flags >> 2 & 3 {
            1 => {
                let lease = wire.lease.map(LeaseId::new);
                ChangeKind::Put { value: wire.value, lease, version: wire.version }
            }
            2 => ChangeKind::Delete,
            3 => ChangeKind::Expire,
            _ => return Err(CodecError::Field("kind of change")),
        };
        let create_revision = wire.create_revision.map(Revision::new);
        let applied = match wire.flags >> 4 {
            NOT_APPLIED => None,
            after => Some(Applied { sub: wire.sub, create_revision, after: after - u32::from(after > NOT_APPLIED) }),
        };
        if wire.key.is_empty() {
            return Err(CodecError::Field("key"));
        }
        if !is_version_number(wire.version) {
            return Err(CodecError::Field("version number"));
        }
        let named = wire
            .incarnation
            .map(|dot| Incarnation { stamp: Stamp::new(wire.incarnation_stamp), dot: dot_from_wire(&dot) });
        Ok(Self {
            keyspace: if wire.flags & 1 == 0 { Keyspace::Client } else { Keyspace::System },
            local: wire.flags & 2 != 0,
            key: wire.key,
            kind,
            incarnation: named.or(own).ok_or(CodecError::Field("incarnation"))?,
            applied,
        })
    }
}

/// What lies below a version, as one number.
const NO_BASE: u64 = 0;
const NOT_THERE: u64 = 1;

impl Bases {
    /// Writes it in few bytes.
    pub(super) fn pack(&self, out: &mut Vec<u8>) {
        encode_varint(self.none.len() as u64, out);
        self.none.iter().for_each(|place| encode_varint((*place).into(), out));
        encode_varint(self.below.len() as u64, out);
        for (place, below) in &self.below {
            encode_varint((*place).into(), out);
            match below {
                Below::NoBase => encode_varint(NO_BASE, out),
                Below::Base(None) => encode_varint(NOT_THERE, out),
                // Numbers begin with one.
                Below::Base(Some(number)) => encode_varint(number.saturating_add(NOT_THERE), out),
            }
        }
    }

    fn packed(&self) -> Bytes {
        let mut packed = vec![];
        self.pack(&mut packed);
        packed.into()
    }

    fn from_packed(mut packed: &[u8]) -> Result<Self, CodecError> {
        let bases = Self::unpack(&mut packed)?;
        if packed.is_empty() { Ok(bases) } else { Err(CodecError::Field("bases")) }
    }

    /// Reads back what was written so, and leaves what follows.
    pub(super) fn unpack(packed: &mut &[u8]) -> Result<Self, CodecError> {
        let place = |packed: &mut &[u8]| u32::try_from(decode_varint(packed)?).map_err(|_| CodecError::Field("bases"));
        let mut bases = Self::default();
        for _ in 0..decode_varint(packed)? {
            bases.none.insert(place(packed)?);
        }
        for _ in 0..decode_varint(packed)? {
            let place = place(packed)?;
            let below = match decode_varint(packed)? {
                NO_BASE => Below::NoBase,
                NOT_THERE => Below::Base(None),
                number => Below::Base(Some(number - NOT_THERE)),
            };
            bases.below.insert(place, below);
        }
        Ok(bases)
    }
}

impl Notes {
    /// How many have left, and these; then what is said of bases. Each number is written as what it is above the one before.
    fn packed(&self) -> Bytes {
        let mut packed = Vec::with_capacity(4 + 3 * self.left.len() + 8 * self.bases.len());
        encode_varint(self.left.len() as u64, &mut packed);
        let mut before = 0;
        for number in &self.left {
            encode_varint(number - std::mem::replace(&mut before, *number), &mut packed);
        }
        before = 0;
        for (number, bases) in &self.bases {
            encode_varint(number - std::mem::replace(&mut before, *number), &mut packed);
            bases.pack(&mut packed);
        }
        packed.into()
    }

    fn from_packed(mut packed: &[u8]) -> Result<Self, CodecError> {
        const FIELD: CodecError = CodecError::Field("notes");
        let next = |before: u64, packed: &mut &[u8]| before.checked_add(decode_varint(packed)?).ok_or(FIELD);
        let mut notes = Self::default();
        let mut number = 0;
        for _ in 0..decode_varint(&mut packed)? {
            number = next(number, &mut packed)?;
            notes.left.insert(number);
        }
        number = 0;
        while !packed.is_empty() {
            number = next(number, &mut packed)?;
            notes.bases.insert(number, Arc::new(Bases::unpack(&mut packed)?));
        }
        Ok(notes)
    }
}

impl EntryHead {
    /// The incarnation of the keys that the entry creates.
    fn own(&self) -> Incarnation {
        Incarnation { stamp: self.stamp, dot: self.dot }
    }
}

impl Record {
    /// The record as the journal keeps it.
    pub fn encode(&self) -> Bytes {
        let head = self.head.as_ref();
        let own = head.map(EntryHead::own);
        let changes = |changes: &[Change]| changes.iter().map(|change| change.to_wire(own)).collect();
        let chain = |chain: Chain| Bytes::copy_from_slice(chain.as_bytes());
        let wire = wire::StoredRecord {
            number: self.number,
            revision: self.revision.map(Revision::get),
            dot: head.map(|head| dot_to_wire(head.dot)),
            stamp: head.map_or(0, |head| head.stamp.get()),
            depends: head.map(|head| vector_to_wire(&head.depends)).unwrap_or_default(),
            previous: head.map(|head| chain(head.previous)).unwrap_or_default(),
            changes: changes(&self.changes),
            trimmed: self.trimmed,
            outcomes: changes(&self.outcomes),
            first_seq: head.map(|head| head.first_seq).filter(|first| head.is_some_and(|head| *first != head.dot.seq)),
            resulting: head.and_then(|head| head.resulting).map(chain),
            settled: self.settled,
            until: self.until,
            rules: head.map_or(0, |head| head.rules),
            bases: if self.bases == Bases::default() { Bytes::new() } else { self.bases.packed() },
            notes: if self.notes.is_empty() { Bytes::new() } else { self.notes.packed() },
        };
        seal(&wire)
    }

    /// Reads a record back. Keys and values share the memory of `bytes`.
    ///
    /// # Errors
    /// When the bytes are no record.
    pub fn decode(bytes: Bytes) -> Result<Self, CodecError> {
        let wire = wire::StoredRecord::decode(unseal(&bytes)?)?;
        let head = match wire.dot.map(|dot| dot_from_wire(&dot)) {
            Some(dot) => Some(EntryHead {
                dot,
                first_seq: wire.first_seq.unwrap_or(dot.seq),
                stamp: Stamp::new(wire.stamp),
                rules: wire.rules,
                depends: vector_from_wire(&wire.depends),
                previous: chain_from_wire(&wire.previous)?,
                resulting: wire.resulting.map(|bytes| chain_from_wire(&bytes)).transpose()?,
            }),
            None => None,
        };
        let own = head.as_ref().map(EntryHead::own);
        let changes = |changes: Vec<wire::StoredChange>| {
            changes.into_iter().map(|c| Change::from_wire(c, own)).collect::<Result<Vec<_>, _>>()
        };
        Ok(Self {
            number: wire.number,
            revision: wire.revision.map(Revision::new),
            head,
            changes: changes(wire.changes)?,
            outcomes: changes(wire.outcomes)?,
            trimmed: wire.trimmed,
            settled: wire.settled,
            until: wire.until,
            bases: if wire.bases.is_empty() { Bases::default() } else { Bases::from_packed(&wire.bases)? },
            notes: if wire.notes.is_empty() { Notes::default() } else { Notes::from_packed(&wire.notes)? },
        })
    }
}
