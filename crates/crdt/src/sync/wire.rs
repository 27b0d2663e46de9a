//! The protobuf messages behind `message` and `entry_wire`.
//!
//! A field that is added later gets a new number and a meaning for its absence; a number is never used again.

use bytes::Bytes;

use crate::sync::delta::DeltaError;
use crate::words::chain::Chain;
use crate::words::fence::VectorPart;
use crate::words::id::{Birth, Dot, Origin, ReplicaId};
use crate::words::key::Keyspace;
use crate::words::vector::VersionVector;

#[derive(Clone, PartialEq, prost::Message)]
pub struct WireDot {
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

impl WireDot {
    pub fn new(dot: Dot) -> Self {
        Self { replica: dot.origin.replica.get(), birth: dot.origin.birth.get(), seq: dot.seq, ended: None }
    }

    fn of_part(part: VectorPart) -> Self {
        let (replica, birth, number, is_fence) = part.numbers();
        let (seq, ended) = if is_fence { (0, Some(number)) } else { (number, None) };
        Self { replica, birth, seq, ended }
    }

    pub fn part(&self) -> VectorPart {
        VectorPart::from_numbers(self.replica, self.birth, self.ended.unwrap_or(self.seq), self.ended.is_some())
    }

    pub fn get(&self) -> Dot {
        let origin = Origin { replica: ReplicaId::new(self.replica), birth: Birth::new(self.birth) };
        Dot { origin, seq: self.seq }
    }
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct WireOrigin {
    #[prost(fixed64, tag = "1")]
    pub replica: u64,
    #[prost(fixed64, tag = "2")]
    pub birth: u64,
}

impl WireOrigin {
    pub fn new(origin: Origin) -> Self {
        Self { replica: origin.replica.get(), birth: origin.birth.get() }
    }

    pub fn get(&self) -> Origin {
        Origin { replica: ReplicaId::new(self.replica), birth: Birth::new(self.birth) }
    }
}

/// A vector as its fences and dots.
pub fn vector_to_wire(vector: &VersionVector) -> Vec<WireDot> {
    vector.parts().map(WireDot::of_part).collect()
}

/// A vector from its fences and dots.
pub fn vector_from_wire(dots: &[WireDot]) -> VersionVector {
    dots.iter().map(WireDot::part).collect()
}

pub fn keyspace_to_wire(keyspace: Keyspace) -> u32 {
    u32::from(keyspace == Keyspace::System)
}

pub fn keyspace_from_wire(bit: u32) -> Keyspace {
    if bit & 1 == 0 { Keyspace::Client } else { Keyspace::System }
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct WireChain {
    #[prost(message, required, tag = "1")]
    pub dot: WireDot,
    #[prost(bytes = "bytes", tag = "2")]
    pub chain: Bytes,
}

impl WireChain {
    pub fn new(dot: Dot, chain: &Chain) -> Self {
        Self { dot: WireDot::new(dot), chain: Bytes::copy_from_slice(chain.as_bytes()) }
    }
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct WireHello {
    #[prost(uint32, tag = "1")]
    pub protocol: u32,
    #[prost(fixed64, tag = "2")]
    pub cluster: u64,
    #[prost(fixed64, tag = "3")]
    pub replica: u64,
    #[prost(fixed64, tag = "4")]
    pub birth: u64,
    #[prost(message, repeated, tag = "5")]
    pub vector: Vec<WireDot>,
    #[prost(message, repeated, tag = "6")]
    pub chains: Vec<WireChain>,
    #[prost(message, repeated, tag = "7")]
    pub begins: Vec<WireDot>,
    #[prost(bool, tag = "8")]
    pub empty: bool,
    #[prost(int64, tag = "9")]
    pub revision: i64,
    #[prost(bytes = "bytes", tag = "10")]
    pub rules: Bytes,
    #[prost(bool, tag = "11")]
    pub doubtful: bool,
    #[prost(uint64, tag = "12")]
    pub marks: u64,
    #[prost(bytes = "bytes", tag = "13")]
    pub founded: Bytes,
    #[prost(message, optional, tag = "14")]
    pub lineage: Option<WireOrigin>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct WireEntries {
    #[prost(uint32, tag = "1")]
    pub epoch: u32,
    #[prost(uint32, tag = "2")]
    pub number: u32,
    #[prost(bytes = "bytes", repeated, tag = "3")]
    pub entries: Vec<Bytes>,
    /// Of a part of a unit, the number of the message with its first part.
    #[prost(uint32, optional, tag = "4")]
    pub unit: Option<u32>,
    /// Whether the unit ends here.
    #[prost(bool, tag = "5")]
    pub ends: bool,
    #[prost(uint64, tag = "6")]
    pub marks: u64,
    /// Whether another unit follows.
    #[prost(bool, tag = "7")]
    pub more: bool,
}

/// Beyond what nothing was sent to a member.
#[derive(Clone, PartialEq, prost::Message)]
pub struct WireMark {
    #[prost(fixed64, tag = "1")]
    pub member: u64,
    #[prost(message, repeated, tag = "2")]
    pub upto: Vec<WireDot>,
}

/// What a replica says of its marks.
#[derive(Clone, PartialEq, prost::Message)]
pub struct WireSaid {
    #[prost(uint64, tag = "1")]
    pub version: u64,
    /// Whether `upto` says anything.
    #[prost(bool, tag = "2")]
    pub is_told: bool,
    #[prost(message, repeated, tag = "3")]
    pub upto: Vec<WireMark>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct WireAck {
    #[prost(message, optional, tag = "1")]
    pub origin: Option<WireOrigin>,
    #[prost(message, repeated, tag = "2")]
    pub vector: Vec<WireDot>,
    #[prost(message, optional, tag = "3")]
    pub said: Option<WireSaid>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct WireAcks {
    #[prost(uint32, tag = "1")]
    pub epoch: u32,
    #[prost(uint32, tag = "2")]
    pub number: u32,
    #[prost(message, repeated, tag = "3")]
    pub acks: Vec<WireAck>,
    /// Whether `links` says anything.
    #[prost(bool, tag = "4")]
    pub has_links: bool,
    #[prost(fixed64, repeated, tag = "5")]
    pub links: Vec<u64>,
    #[prost(message, repeated, tag = "6")]
    pub own: Vec<WireDot>,
    #[prost(uint32, tag = "7")]
    pub received: u32,
    #[prost(message, optional, tag = "8")]
    pub said: Option<WireSaid>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct WireAgain {
    #[prost(uint32, tag = "1")]
    pub epoch: u32,
    #[prost(message, repeated, tag = "2")]
    pub have: Vec<WireDot>,
    #[prost(bool, tag = "3")]
    pub whole: bool,
    /// A build that does not say it takes what depends on nothing.
    #[prost(message, repeated, tag = "4")]
    pub floor: Vec<WireDot>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct WireChainsWanted {
    #[prost(fixed64, tag = "1")]
    pub replica: u64,
    #[prost(fixed64, tag = "2")]
    pub birth: u64,
    #[prost(uint64, repeated, tag = "3")]
    pub seqs: Vec<u64>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct WireChains {
    #[prost(message, repeated, tag = "1")]
    pub chains: Vec<WireChain>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct WireStateHash {
    #[prost(fixed64, tag = "1")]
    pub at: u64,
    /// Absent: the same that the receiver told.
    #[prost(bytes = "bytes", optional, tag = "2")]
    pub hash: Option<Bytes>,
}

/// A key with its keyspace, or nothing: before all keys.
#[derive(Clone, PartialEq, prost::Message)]
pub struct WirePlace {
    #[prost(uint32, tag = "1")]
    pub keyspace: u32,
    #[prost(bytes = "bytes", tag = "2")]
    pub key: Bytes,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct WirePiece {
    /// The key that the piece ends before; absent: after all keys.
    #[prost(message, optional, tag = "1")]
    pub end: Option<WirePlace>,
    #[prost(bytes = "bytes", tag = "2")]
    pub hash: Bytes,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct WireNarrow {
    #[prost(fixed64, tag = "1")]
    pub at: u64,
    #[prost(message, optional, tag = "2")]
    pub from: Option<WirePlace>,
    #[prost(message, repeated, tag = "3")]
    pub pieces: Vec<WirePiece>,
    /// Whether each piece is one key and what follows it up to the next.
    #[prost(bool, tag = "4")]
    pub single: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct WireSnapshotWanted {
    #[prost(message, optional, tag = "1")]
    pub after: Option<WirePlace>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct WirePing {
    #[prost(uint32, tag = "1")]
    pub number: u32,
    #[prost(fixed64, tag = "2")]
    pub wall_ms: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct WireRefuse {
    #[prost(uint32, tag = "1")]
    pub reason: u32,
    #[prost(string, tag = "2")]
    pub text: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct WireTooFarBehind {
    #[prost(message, repeated, tag = "1")]
    pub begins: Vec<WireDot>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Body {
    #[prost(message, tag = "1")]
    Hello(WireHello),
    #[prost(message, tag = "2")]
    Entries(WireEntries),
    #[prost(message, tag = "3")]
    Acks(WireAcks),
    #[prost(message, tag = "4")]
    Again(WireAgain),
    #[prost(message, tag = "5")]
    ChainsWanted(WireChainsWanted),
    #[prost(message, tag = "6")]
    Chains(WireChains),
    #[prost(message, tag = "7")]
    Hash(WireStateHash),
    #[prost(message, tag = "8")]
    Narrow(WireNarrow),
    #[prost(message, tag = "9")]
    Differs(WirePlace),
    #[prost(message, tag = "10")]
    SnapshotWanted(WireSnapshotWanted),
    #[prost(bytes = "bytes", tag = "11")]
    SnapshotChunk(Bytes),
    #[prost(message, tag = "12")]
    Ping(WirePing),
    #[prost(message, tag = "13")]
    Pong(WirePing),
    #[prost(message, tag = "14")]
    Refuse(WireRefuse),
    #[prost(message, tag = "16")]
    TooFarBehind(WireTooFarBehind),
}

/// One message; field 15 is the checksum over all before it.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Envelope {
    #[prost(oneof = "Body", tags = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 16")]
    pub body: Option<Body>,
}

/// An entry as it travels.
#[derive(Clone, PartialEq, prost::Message)]
pub struct WireEntry {
    #[prost(fixed64, tag = "1")]
    pub replica: u64,
    #[prost(fixed64, tag = "2")]
    pub birth: u64,
    #[prost(uint64, tag = "3")]
    pub seq: u64,
    /// The first number that the entry stands for; absent: its own.
    #[prost(uint64, optional, tag = "4")]
    pub first_seq: Option<u64>,
    #[prost(fixed64, tag = "5")]
    pub stamp: u64,
    #[prost(message, repeated, tag = "6")]
    pub depends: Vec<WireDot>,
    #[prost(bytes = "bytes", tag = "7")]
    pub previous: Bytes,
    #[prost(message, repeated, tag = "8")]
    pub changes: Vec<WireChange>,
    /// Of an entry that stands for others too: the chain hash up to it.
    #[prost(bytes = "bytes", optional, tag = "9")]
    pub resulting: Option<Bytes>,
    /// The number of the rules by which its origin merged.
    #[prost(uint32, tag = "10")]
    pub rules: u32,
}

/// One key's part in it.
#[derive(Clone, PartialEq, prost::Message)]
pub struct WireChange {
    /// Keyspace (bit 0), whether `value` is a delta (bit 1), kind (bits 2 and up: 1 put, 2 delete, 3 expire).
    #[prost(uint32, tag = "1")]
    pub flags: u32,
    #[prost(bytes = "bytes", tag = "2")]
    pub key: Bytes,
    #[prost(bytes = "bytes", tag = "3")]
    pub value: Bytes,
    #[prost(int64, optional, tag = "4")]
    pub lease: Option<i64>,
    #[prost(int64, tag = "5")]
    pub version: i64,
    /// Absent when this very entry began the incarnation.
    #[prost(message, optional, tag = "6")]
    pub incarnation: Option<WireIncarnation>,
    /// Of a delta: the hash of its base.
    #[prost(bytes = "bytes", tag = "7")]
    pub base: Bytes,
    /// Of a delta: the length of what it gives.
    #[prost(uint64, tag = "8")]
    pub len: u64,
    /// Of a delta: the hash of what it gives.
    #[prost(fixed64, tag = "9")]
    pub check: u64,
}

/// Which incarnation of a key.
#[derive(Clone, PartialEq, prost::Message)]
pub struct WireIncarnation {
    #[prost(fixed64, tag = "1")]
    pub stamp: u64,
    #[prost(uint64, tag = "2")]
    pub seq: u64,
    /// Absent: of the entry's own origin.
    #[prost(message, optional, tag = "3")]
    pub origin: Option<WireOrigin>,
}

/// Why bytes are no message or no entry.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DecodeError {
    /// Longer than any message may be.
    #[error("a message of {0} bytes")]
    TooLong(usize),
    /// The checksum at the end is not that of the bytes before it.
    #[error("damaged (checksum)")]
    Checksum,
    /// Not protobuf of this layout.
    #[error("not a message of this protocol: {0}")]
    Protobuf(#[from] prost::DecodeError),
    /// A field has a value that none can have.
    #[error("an impossible {0}")]
    Field(&'static str),
    /// A delta that cannot be right.
    #[error(transparent)]
    Delta(#[from] DeltaError),
}
