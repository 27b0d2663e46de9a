//! Chunks of snapshots, and their bytes.

use bytes::Bytes;
use prost::Message;

use crate::entry::{Bases, Change, ChangeKind, CodecError, Entry, EntryHead, Notes, OriginHead, Record};
use crate::words::fence::VectorPart;
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
    /// Who gives it, and under which birth.
    pub giver: Origin,
    /// Whether the giver doubts its disk. Then the receiver doubts what it gets.
    pub doubtful: bool,
    /// The copy of a disk that its state goes back to, see [`crate::Head::lineage`].
    pub lineage: Option<Origin>,
    /// What every member is known to have.
    pub floor: VersionVector,
    /// The giver's newest revision.
    pub revision: Revision,
    /// Settled keys, in order.
    pub keys: Vec<SettledKey>,
    /// Entries of the log, in order; after all keys.
    pub entries: Vec<Entry>,
    /// The changes of these entries, by their place in the entry, that the settled keys contain already. There are
    /// such, because an entry stays in the log until all that it did is settled.
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
struct ChunkDot {
    #[prost(fixed64, tag = "1")]
    replica: u64,
    #[prost(fixed64, tag = "2")]
    birth: u64,
    #[prost(uint64, tag = "3")]
    seq: u64,
    /// In a vector, and set where this is no dot but a fence before that birth: its hash.
    #[prost(fixed64, optional, tag = "4")]
    ended: Option<u64>,
}

#[derive(Clone, PartialEq, Message)]
struct ChunkOrigin {
    #[prost(fixed64, tag = "1")]
    replica: u64,
    #[prost(fixed64, tag = "2")]
    birth: u64,
    #[prost(uint64, tag = "3")]
    before: u64,
    #[prost(bytes = "bytes", tag = "4")]
    chain: Bytes,
    #[prost(message, repeated, tag = "5")]
    deps: Vec<ChunkDot>,
}

#[derive(Clone, PartialEq, Message)]
struct ChunkPlace {
    #[prost(bool, tag = "1")]
    system: bool,
    #[prost(bytes = "bytes", tag = "2")]
    key: Bytes,
}

#[derive(Clone, PartialEq, Message)]
struct ChunkSettled {
    #[prost(message, optional, tag = "1")]
    dot: Option<ChunkDot>,
    #[prost(uint32, tag = "2")]
    place: u32,
}

#[derive(Clone, PartialEq, Message)]
struct ChunkMessage {
    #[prost(message, repeated, tag = "1")]
    base: Vec<ChunkOrigin>,
    #[prost(message, repeated, tag = "2")]
    floor: Vec<ChunkDot>,
    #[prost(int64, tag = "3")]
    revision: i64,
    /// The settled keys as the changes of a record.
    #[prost(bytes = "bytes", tag = "4")]
    keys: Bytes,
    /// Entries, each as a record.
    #[prost(bytes = "bytes", repeated, tag = "5")]
    entries: Vec<Bytes>,
    #[prost(message, optional, tag = "6")]
    next: Option<ChunkPlace>,
    #[prost(message, repeated, tag = "7")]
    settled: Vec<ChunkSettled>,
    #[prost(fixed64, tag = "8")]
    giver: u64,
    #[prost(fixed64, tag = "9")]
    giver_birth: u64,
    #[prost(bool, tag = "10")]
    doubtful: bool,
    #[prost(fixed64, optional, tag = "11")]
    lineage_replica: Option<u64>,
    #[prost(fixed64, optional, tag = "12")]
    lineage_birth: Option<u64>,
}

fn dot_to_wire(dot: Dot) -> ChunkDot {
    part_to_wire(VectorPart::Upto(dot))
}

fn part_to_wire(part: VectorPart) -> ChunkDot {
    let (replica, birth, number, is_fence) = part.numbers();
    let (seq, ended) = if is_fence { (0, Some(number)) } else { (number, None) };
    ChunkDot { replica, birth, seq, ended }
}

fn dot_from_wire(dot: &ChunkDot) -> Dot {
    Dot { origin: Origin { replica: ReplicaId::new(dot.replica), birth: Birth::new(dot.birth) }, seq: dot.seq }
}

fn vector_from_wire(dots: &[ChunkDot]) -> VersionVector {
    let part = |dot: &ChunkDot| {
        VectorPart::from_numbers(dot.replica, dot.birth, dot.ended.unwrap_or(dot.seq), dot.ended.is_some())
    };
    dots.iter().map(part).collect()
}

/// A record that is none of the journal's: it only carries changes.
fn carrier(head: Option<EntryHead>, changes: Vec<Change>) -> Record {
    Record {
        number: 0,
        revision: None,
        head,
        changes,
        outcomes: vec![],
        trimmed: false,
        settled: false,
        until: None,
        bases: Bases::default(),
        notes: Notes::default(),
    }
}

/// A settled key as a change.
pub(super) fn change_of(key: &SettledKey) -> Change {
    Change::new(key.keyspace, key.key.clone(), key.live.put(), key.live.incarnation)
}

fn encode(chunk: &SnapshotChunk) -> Bytes {
    let origin = |origin: &OriginHead| ChunkOrigin {
        replica: origin.origin.replica.get(),
        birth: origin.origin.birth.get(),
        before: origin.before,
        chain: Bytes::copy_from_slice(origin.chain.as_bytes()),
        deps: origin.deps.parts().map(part_to_wire).collect(),
    };
    let keys = chunk.keys.iter().map(change_of).collect();
    let wire = ChunkMessage {
        base: chunk.base.iter().map(origin).collect(),
        floor: chunk.floor.parts().map(part_to_wire).collect(),
        revision: chunk.revision.get(),
        giver: chunk.giver.replica.get(),
        giver_birth: chunk.giver.birth.get(),
        doubtful: chunk.doubtful,
        lineage_replica: chunk.lineage.map(|origin| origin.replica.get()),
        lineage_birth: chunk.lineage.map(|origin| origin.birth.get()),
        keys: carrier(None, keys).encode(),
        entries: chunk.entries.iter().map(|e| carrier(Some(e.head.clone()), e.changes.clone()).encode()).collect(),
        settled: chunk
            .settled
            .iter()
            .map(|(dot, place)| ChunkSettled { dot: Some(dot_to_wire(*dot)), place: *place })
            .collect(),
        next: chunk.next.as_ref().map(|(at, key)| ChunkPlace { system: *at == Keyspace::System, key: key.clone() }),
    };
    wire.encode_to_vec().into()
}

fn decode(bytes: &Bytes) -> Result<SnapshotChunk, CodecError> {
    let wire = ChunkMessage::decode(bytes.clone())?;
    let origin = |origin: ChunkOrigin| {
        Ok(OriginHead {
            origin: Origin { replica: ReplicaId::new(origin.replica), birth: Birth::new(origin.birth) },
            before: origin.before,
            chain: crate::words::chain::Chain::from_wire(&origin.chain).ok_or(CodecError::Field("chain hash"))?,
            deps: vector_from_wire(&origin.deps),
        })
    };
    let key = |change: Change| {
        let ChangeKind::Put { value, lease, version } = change.kind else {
            return Err(CodecError::Field("settled key"));
        };
        let live = Live { value, lease, version, incarnation: change.incarnation };
        Ok(SettledKey { keyspace: change.keyspace, key: change.key, live })
    };
    let settled = |settled: ChunkSettled| {
        Ok((dot_from_wire(&settled.dot.ok_or(CodecError::Field("settled change"))?), settled.place))
    };
    let place = |place: ChunkPlace| (if place.system { Keyspace::System } else { Keyspace::Client }, place.key);
    Ok(SnapshotChunk {
        base: wire.base.into_iter().map(origin).collect::<Result<_, CodecError>>()?,
        giver: Origin { replica: ReplicaId::new(wire.giver), birth: Birth::new(wire.giver_birth) },
        doubtful: wire.doubtful,
        lineage: wire
            .lineage_replica
            .zip(wire.lineage_birth)
            .map(|(replica, birth)| Origin { replica: ReplicaId::new(replica), birth: Birth::new(birth) }),
        floor: vector_from_wire(&wire.floor),
        revision: Revision::new(wire.revision),
        keys: Record::decode(wire.keys)?.changes.into_iter().map(key).collect::<Result<_, _>>()?,
        entries: wire
            .entries
            .into_iter()
            .map(|bytes| Record::decode(bytes)?.entry().ok_or(CodecError::Field("entry")))
            .collect::<Result<_, _>>()?,
        settled: wire.settled.into_iter().map(settled).collect::<Result<_, CodecError>>()?,
        next: wire.next.map(place),
    })
}
