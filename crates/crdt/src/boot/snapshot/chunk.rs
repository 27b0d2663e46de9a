//! Chunks of snapshots, and their bytes.

use bytes::Bytes;
use prost::Message;

use crate::entry::{Change, ChangeKind, CodecError, Entry, EntryHead, OriginHead, Record};
use crate::words::id::{Birth, Dot, Origin, ReplicaId};
use crate::words::key::{Key, Keyspace, Place};
use crate::words::revision::Revision;
use crate::words::value::Live;
use crate::words::vector::VersionVector;

/// A key as it is settled.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SettledKey {
    /// The keyspace.
    pub keyspace: Keyspace,
    /// The key.
    pub key: Key,
    /// What it holds.
    pub live: Live,
}

/// A part of a snapshot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SnapshotChunk {
    /// Where the giver's log begins, origin by origin: what the settled keys rest on. The same in all chunks.
    pub base: Vec<OriginHead>,
    /// What every member is known to have.
    pub floor: VersionVector,
    /// The giver's newest revision.
    pub revision: Revision,
    /// Settled keys, in order.
    pub keys: Vec<SettledKey>,
    /// Entries of the log, in order; after all keys.
    pub entries: Vec<Entry>,
    /// Which changes of these entries, by their place in it, the settled keys contain already: an entry stays in the log
    /// until all that it did is settled.
    pub settled: Vec<(Dot, u32)>,
    /// Where the next chunk goes on; `None` when this is the last.
    pub next: Option<Place>,
}

impl SnapshotChunk {
    /// The chunk as it travels.
    pub fn encode(&self) -> Bytes {
        encode(self)
    }

    /// Reads a chunk back.
    ///
    /// # Errors
    /// When the bytes are none.
    pub fn decode(bytes: &Bytes) -> Result<Self, CodecError> {
        decode(bytes)
    }
}

#[derive(Clone, PartialEq, Message)]
struct WireDot {
    #[prost(fixed64, tag = "1")]
    replica: u64,
    #[prost(fixed64, tag = "2")]
    birth: u64,
    #[prost(uint64, tag = "3")]
    seq: u64,
}

#[derive(Clone, PartialEq, Message)]
struct WireOrigin {
    #[prost(message, optional, tag = "1")]
    dot: Option<WireDot>,
    #[prost(bytes = "bytes", tag = "2")]
    chain: Bytes,
    #[prost(message, repeated, tag = "3")]
    deps: Vec<WireDot>,
}

#[derive(Clone, PartialEq, Message)]
struct WirePlace {
    #[prost(bool, tag = "1")]
    system: bool,
    #[prost(bytes = "bytes", tag = "2")]
    key: Bytes,
}

#[derive(Clone, PartialEq, Message)]
struct WireSettled {
    #[prost(message, optional, tag = "1")]
    dot: Option<WireDot>,
    #[prost(uint32, tag = "2")]
    place: u32,
}

#[derive(Clone, PartialEq, Message)]
struct WireChunk {
    #[prost(message, repeated, tag = "1")]
    base: Vec<WireOrigin>,
    #[prost(message, repeated, tag = "2")]
    floor: Vec<WireDot>,
    #[prost(int64, tag = "3")]
    revision: i64,
    /// The settled keys as the changes of a record.
    #[prost(bytes = "bytes", tag = "4")]
    keys: Bytes,
    /// Entries, each as a record.
    #[prost(bytes = "bytes", repeated, tag = "5")]
    entries: Vec<Bytes>,
    #[prost(message, optional, tag = "6")]
    next: Option<WirePlace>,
    #[prost(message, repeated, tag = "7")]
    settled: Vec<WireSettled>,
}

fn dot_to_wire(dot: Dot) -> WireDot {
    WireDot { replica: dot.origin.replica.get(), birth: dot.origin.birth.get(), seq: dot.seq }
}

fn dot_from_wire(dot: &WireDot) -> Dot {
    Dot { origin: Origin { replica: ReplicaId::new(dot.replica), birth: Birth::new(dot.birth) }, seq: dot.seq }
}

fn vector_from_wire(dots: &[WireDot]) -> VersionVector {
    dots.iter().map(dot_from_wire).collect()
}

/// A record that is none of the journal's: it only carries changes.
fn carrier(head: EntryHead, changes: Vec<Change>) -> Record {
    Record {
        number: 0,
        revision: None,
        head,
        changes,
        outcomes: vec![],
        trimmed: false,
        settled: false,
        left_out: false,
    }
}

/// The head of a record that is no entry.
pub(super) fn no_entry() -> EntryHead {
    let nobody = Origin { replica: ReplicaId::new(0), birth: Birth::new(0) };
    EntryHead {
        dot: Dot { origin: nobody, seq: 0 },
        first_seq: 0,
        stamp: Default::default(),
        depends: VersionVector::default(),
        previous: Default::default(),
        resulting: None,
    }
}

/// A settled key as the change of a record.
pub(super) fn change_of(key: &SettledKey, sub: u32) -> Change {
    let SettledKey { keyspace, key, live } = key;
    let kind = ChangeKind::Put { value: live.value.clone(), lease: live.lease };
    Change { sub, ..Change::new(*keyspace, key.clone(), kind, live.version, live.incarnation) }
}

fn encode(chunk: &SnapshotChunk) -> Bytes {
    let origin = |origin: &OriginHead| WireOrigin {
        dot: Some(dot_to_wire(origin.dot)),
        chain: Bytes::copy_from_slice(origin.chain.as_bytes()),
        deps: origin.deps.iter().map(dot_to_wire).collect(),
    };
    let keys = chunk.keys.iter().map(|key| change_of(key, 0)).collect();
    let wire = WireChunk {
        base: chunk.base.iter().map(origin).collect(),
        floor: chunk.floor.iter().map(dot_to_wire).collect(),
        revision: chunk.revision.get(),
        keys: carrier(no_entry(), keys).encode(),
        entries: chunk.entries.iter().map(|e| carrier(e.head.clone(), e.changes.clone()).encode()).collect(),
        settled: chunk
            .settled
            .iter()
            .map(|(dot, place)| WireSettled { dot: Some(dot_to_wire(*dot)), place: *place })
            .collect(),
        next: chunk.next.as_ref().map(|(at, key)| WirePlace { system: *at == Keyspace::System, key: key.clone() }),
    };
    wire.encode_to_vec().into()
}

fn decode(bytes: &Bytes) -> Result<SnapshotChunk, CodecError> {
    let wire = WireChunk::decode(bytes.clone())?;
    let origin = |origin: WireOrigin| {
        Ok(OriginHead {
            dot: dot_from_wire(&origin.dot.ok_or(CodecError::Field("origin"))?),
            chain: crate::words::chain::Chain::from_wire(&origin.chain).ok_or(CodecError::Field("chain hash"))?,
            deps: vector_from_wire(&origin.deps),
        })
    };
    let key = |change: Change| {
        let ChangeKind::Put { value, lease } = change.kind else { return Err(CodecError::Field("settled key")) };
        let live = Live { value, lease, version: change.version, incarnation: change.incarnation };
        Ok(SettledKey { keyspace: change.keyspace, key: change.key, live })
    };
    let settled = |settled: WireSettled| {
        Ok((dot_from_wire(&settled.dot.ok_or(CodecError::Field("settled change"))?), settled.place))
    };
    let place = |place: WirePlace| (if place.system { Keyspace::System } else { Keyspace::Client }, place.key);
    Ok(SnapshotChunk {
        base: wire.base.into_iter().map(origin).collect::<Result<_, CodecError>>()?,
        floor: vector_from_wire(&wire.floor),
        revision: Revision::new(wire.revision),
        keys: Record::decode(wire.keys)?.changes.into_iter().map(key).collect::<Result<_, _>>()?,
        entries: wire
            .entries
            .into_iter()
            .map(|bytes| Record::decode(bytes).map(|record| record.entry()))
            .collect::<Result<_, _>>()?,
        settled: wire.settled.into_iter().map(settled).collect::<Result<_, CodecError>>()?,
        next: wire.next.map(place),
    })
}
