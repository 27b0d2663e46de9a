//! The head: the state of a replica beside its records, replaced with every flush.

use bytes::Bytes;
use prost::Message;
use prost::encoding::{decode_varint, encode_varint};

use crate::entry::codec::{self, CodecError, FORMAT, wire};
use crate::words::chain::Chain;
use crate::words::clock::Stamp;
use crate::words::fence::VectorPart;
use crate::words::id::{Birth, ClusterId, Dot, Identity, Origin, ReplicaId};
use crate::words::revision::Revision;
use crate::words::vector::VersionVector;

/// Where the log of an origin's entries begins.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OriginHead {
    /// The origin.
    pub origin: Origin,
    /// How many of its entries lie before the log.
    pub before: u64,
    /// The chain hash up to it.
    pub chain: Chain,
    /// All that its origin had applied then besides its own entries.
    pub deps: VersionVector,
}

impl OriginHead {
    /// Its last entry before the log, if there is one.
    pub fn last(&self) -> Option<Dot> {
        (self.before > 0).then_some(Dot { origin: self.origin, seq: self.before })
    }
}

/// How far a replica may trust that no peer knows more of it than it does itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u32)]
pub enum Past {
    /// It began from what a member had, or nobody has ever heard of it under another birth.
    #[default]
    Known = 0,
    /// It began with the first entry of the cluster, without asking anyone. If peers know another birth of it, it had a
    /// disk that is lost.
    Founded = 1,
    /// Its disk may be an older copy, or lack its end: it may have acknowledged, and told others, what is not here.
    Doubtful = 2,
}

/// The state of a replica beside its records, replaced with every flush.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Head {
    /// The names of the replica.
    pub identity: Identity,
    /// The number the next record will have.
    pub next_number: u64,
    /// The newest revision.
    pub revision: Revision,
    /// The revision of the last compaction.
    pub compacted: Option<Revision>,
    /// What it has applied.
    pub vector: VersionVector,
    /// The chain hash of its own entries.
    pub chain: Chain,
    /// The highest stamp given or seen.
    pub stamp: Stamp,
    /// Hash of the replicated state; see [`crate::store::digest`].
    pub state_hash: u128,
    /// The same over the keys that stay on this replica.
    pub local_hash: u128,
    /// How many versions of client keys there are; `None` while a compaction is being swept, which changes it.
    pub versions: Option<u64>,
    /// What every member is known to have.
    pub floor: VersionVector,
    /// Durable vectors of members, as far as they count.
    pub acks: Vec<(Origin, VersionVector)>,
    /// Where the log begins, origin by origin, in order.
    pub origins: Vec<OriginHead>,
    /// How often the marks have changed.
    pub marks: u64,
    /// How far entries may have been sent to members that are not named below.
    pub sent_to_others: VersionVector,
    /// The same for members; `None` where any may have been sent.
    pub sent: Vec<(ReplicaId, Option<VersionVector>)>,
    /// Keys that were last written before this revision show it as create and mod revision.
    pub restamped: Option<Revision>,
    /// Whether peers may know more of this replica than it does.
    pub past: Past,
    /// The copy of a disk that its state goes back to, named by the birth under which that was first doubted.
    pub lineage: Option<Origin>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct StoredAck {
    #[prost(fixed64, tag = "1")]
    member: u64,
    #[prost(bytes = "bytes", tag = "2")]
    vector: Bytes,
    #[prost(fixed64, tag = "3")]
    birth: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct StoredOrigin {
    #[prost(fixed64, tag = "1")]
    replica: u64,
    #[prost(fixed64, tag = "2")]
    birth: u64,
    #[prost(uint64, tag = "3")]
    before: u64,
    #[prost(bytes = "bytes", tag = "4")]
    chain: Bytes,
    #[prost(bytes = "bytes", tag = "5")]
    deps: Bytes,
}

#[derive(Clone, PartialEq, prost::Message)]
struct StoredHead {
    #[prost(uint32, tag = "1")]
    format: u32,
    #[prost(fixed64, tag = "2")]
    cluster: u64,
    #[prost(fixed64, tag = "3")]
    replica: u64,
    #[prost(fixed64, tag = "4")]
    birth: u64,
    #[prost(uint32, tag = "5")]
    ordinal: u32,
    #[prost(uint64, tag = "6")]
    next_number: u64,
    #[prost(int64, tag = "7")]
    revision: i64,
    #[prost(int64, optional, tag = "8")]
    compacted: Option<i64>,
    #[prost(message, repeated, tag = "9")]
    vector: Vec<wire::StoredDot>,
    #[prost(bytes = "bytes", tag = "10")]
    chain: Bytes,
    #[prost(fixed64, tag = "11")]
    stamp: u64,
    #[prost(bytes = "bytes", tag = "12")]
    state_hash: Bytes,
    #[prost(bytes = "bytes", tag = "13")]
    local_hash: Bytes,
    #[prost(uint64, optional, tag = "14")]
    versions: Option<u64>,
    #[prost(bytes = "bytes", tag = "16")]
    floor: Bytes,
    #[prost(message, repeated, tag = "17")]
    acks: Vec<StoredAck>,
    #[prost(message, repeated, tag = "18")]
    origins: Vec<StoredOrigin>,
    #[prost(uint64, tag = "19")]
    marks: u64,
    #[prost(int64, optional, tag = "20")]
    restamped: Option<i64>,
    #[prost(uint32, tag = "21")]
    past: u32,
    #[prost(bytes = "bytes", tag = "22")]
    sent_to_others: Bytes,
    #[prost(message, repeated, tag = "23")]
    sent: Vec<StoredMark>,
    // What notes say now. Heads that have them are refused.
    #[prost(bytes = "bytes", tag = "24")]
    noted_bases: Bytes,
    #[prost(uint64, repeated, tag = "25")]
    noted_left: Vec<u64>,
    #[prost(fixed64, optional, tag = "26")]
    lineage_replica: Option<u64>,
    #[prost(fixed64, optional, tag = "27")]
    lineage_birth: Option<u64>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct StoredMark {
    #[prost(fixed64, tag = "1")]
    member: u64,
    #[prost(bytes = "bytes", optional, tag = "2")]
    upto: Option<Bytes>,
}

/// A vector that lies below another one. First the differences to it: one varint each, most of them a byte. Then what
/// it names beside that: births that the other one has forgotten, and fences that the other one has moved on.
fn below(top: &VersionVector, vector: &VersionVector) -> Bytes {
    let mut bytes = Vec::with_capacity(top.len());
    for fence in top.fences() {
        bytes.push(u8::from(vector.fence(fence.replica) == Some(fence)));
    }
    for (dot, seq) in vector.along(top) {
        encode_varint(dot.seq.saturating_sub(seq), &mut bytes);
    }
    let is_beside = |part: &VectorPart| match part {
        VectorPart::Ended(fence) => top.fence(fence.replica) != Some(*fence),
        VectorPart::Upto(dot) => top.has_forgotten(dot.origin),
    };
    for (replica, birth, number, is_fence) in vector.parts().filter(is_beside).map(VectorPart::numbers) {
        bytes.push(u8::from(is_fence));
        for number in [replica, birth, number] {
            encode_varint(number, &mut bytes);
        }
    }
    bytes.into()
}

/// The vector that [`below`] wrote so. What it would not have written is refused: it could not be written back.
fn from_below(top: &VersionVector, written: &[u8]) -> Result<VersionVector, CodecError> {
    const FIELD: CodecError = CodecError::Field("vector");
    let flag = |bytes: &mut &[u8]| match bytes.split_off_first() {
        Some(0) => Ok(false),
        Some(1) => Ok(true),
        _ => Err(FIELD),
    };
    let mut bytes = written;
    let mut vector = VersionVector::default();
    for fence in top.fences() {
        if flag(&mut bytes)? {
            vector.raise(fence);
        }
    }
    for dot in top.iter() {
        let missing = decode_varint(&mut bytes)?;
        let seq = dot.seq.checked_sub(missing).ok_or(FIELD)?;
        if seq > 0 {
            vector.advance(Dot { seq, ..dot });
        }
    }
    while !bytes.is_empty() {
        let is_fence = flag(&mut bytes)?;
        let mut number = || decode_varint(&mut bytes);
        vector.extend([VectorPart::from_numbers(number()?, number()?, number()?, is_fence)]);
    }
    if below(top, &vector) == written { Ok(vector) } else { Err(FIELD) }
}

impl Head {
    /// The head as the journal keeps it. Its vectors must lie below its own.
    pub fn encode(&self) -> Bytes {
        let origins = self.origins.iter().map(|origin| StoredOrigin {
            replica: origin.origin.replica.get(),
            birth: origin.origin.birth.get(),
            before: origin.before,
            chain: Bytes::copy_from_slice(origin.chain.as_bytes()),
            deps: below(&self.vector, &origin.deps),
        });
        let acks = self.acks.iter().map(|(origin, ack)| StoredAck {
            member: origin.replica.get(),
            vector: below(&self.vector, ack),
            birth: origin.birth.get(),
        });
        let sent = self.sent.iter().map(|(member, upto)| StoredMark {
            member: member.get(),
            upto: upto.as_ref().map(|upto| below(&self.vector, upto)),
        });
        codec::seal(&StoredHead {
            format: FORMAT,
            cluster: self.identity.cluster.get(),
            replica: self.identity.replica.get(),
            birth: self.identity.birth.get(),
            ordinal: self.identity.ordinal.into(),
            next_number: self.next_number,
            revision: self.revision.get(),
            compacted: self.compacted.map(Revision::get),
            vector: codec::vector_to_wire(&self.vector),
            chain: Bytes::copy_from_slice(self.chain.as_bytes()),
            stamp: self.stamp.get(),
            state_hash: Bytes::copy_from_slice(&self.state_hash.to_le_bytes()),
            local_hash: Bytes::copy_from_slice(&self.local_hash.to_le_bytes()),
            versions: self.versions,
            floor: below(&self.vector, &self.floor),
            acks: acks.collect(),
            origins: origins.collect(),
            marks: self.marks,
            sent_to_others: below(&self.vector, &self.sent_to_others),
            sent: sent.collect(),
            restamped: self.restamped.map(Revision::get),
            past: self.past as u32,
            lineage_replica: self.lineage.map(|origin| origin.replica.get()),
            lineage_birth: self.lineage.map(|origin| origin.birth.get()),
            noted_bases: Bytes::new(),
            noted_left: vec![],
        })
    }

    /// Reads a head back.
    ///
    /// # Errors
    /// When the bytes are no head, or one of a newer format.
    pub fn decode(bytes: &Bytes) -> Result<Self, CodecError> {
        let wire = StoredHead::decode(codec::unseal(bytes)?)?;
        if wire.format > FORMAT {
            return Err(CodecError::Newer { found: wire.format });
        }
        if !wire.noted_bases.is_empty() || !wire.noted_left.is_empty() {
            return Err(CodecError::Unreleased);
        }
        let hash =
            |bytes: &[u8]| bytes.try_into().map(u128::from_le_bytes).map_err(|_| CodecError::Field("state hash"));
        let vector = codec::vector_from_wire(&wire.vector);
        let origin = |origin: StoredOrigin| {
            Ok(OriginHead {
                origin: Origin { replica: ReplicaId::new(origin.replica), birth: Birth::new(origin.birth) },
                before: origin.before,
                chain: codec::chain_from_wire(&origin.chain)?,
                deps: from_below(&vector, &origin.deps)?,
            })
        };
        let ack = |ack: StoredAck| {
            let origin = Origin { replica: ReplicaId::new(ack.member), birth: Birth::new(ack.birth) };
            Ok((origin, from_below(&vector, &ack.vector)?))
        };
        let sent = |mark: StoredMark| {
            let upto = mark.upto.map(|upto| from_below(&vector, &upto)).transpose()?;
            Ok((ReplicaId::new(mark.member), upto))
        };
        Ok(Self {
            identity: Identity {
                cluster: ClusterId::new(wire.cluster),
                replica: ReplicaId::new(wire.replica),
                birth: Birth::new(wire.birth),
                ordinal: u16::try_from(wire.ordinal).map_err(|_| CodecError::Field("ordinal"))?,
            },
            next_number: wire.next_number,
            revision: Revision::new(wire.revision),
            compacted: wire.compacted.map(Revision::new),
            chain: codec::chain_from_wire(&wire.chain)?,
            stamp: Stamp::new(wire.stamp),
            state_hash: hash(&wire.state_hash)?,
            local_hash: hash(&wire.local_hash)?,
            versions: wire.versions,
            floor: from_below(&vector, &wire.floor)?,
            acks: wire.acks.into_iter().map(ack).collect::<Result<_, CodecError>>()?,
            origins: wire.origins.into_iter().map(origin).collect::<Result<_, CodecError>>()?,
            marks: wire.marks,
            sent_to_others: from_below(&vector, &wire.sent_to_others)?,
            sent: wire.sent.into_iter().map(sent).collect::<Result<_, CodecError>>()?,
            restamped: wire.restamped.map(Revision::new),
            past: match wire.past {
                0 => Past::Known,
                1 => Past::Founded,
                2 => Past::Doubtful,
                _ => return Err(CodecError::Field("past")),
            },
            lineage: wire
                .lineage_replica
                .zip(wire.lineage_birth)
                .map(|(replica, birth)| Origin { replica: ReplicaId::new(replica), birth: Birth::new(birth) }),
            vector,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_of_a_newer_format_is_refused() {
        let wire = StoredHead { format: FORMAT + 1, ..StoredHead::default() };
        let error = Head::decode(&codec::seal(&wire)).unwrap_err();
        assert!(matches!(error, CodecError::Newer { found } if found == FORMAT + 1));
    }
}
