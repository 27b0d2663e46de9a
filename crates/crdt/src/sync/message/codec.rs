//! How messages are written and read.
//!
//! They are protobuf and end in a checksum, as records do. Everything has a bound, and whatever arrives gives a message or a
//! typed error.

use std::sync::Arc;

use bytes::Bytes;
use prost::Message as _;
use xxhash_rust::xxh3::xxh3_64;

use super::{AckBatch, CHAINS_MAX, ENTRY_MAX, Hello, MESSAGE_MAX, Message, PIECES_MAX, Part, Piece, Reason};
use crate::merge::rules::Rules;
use crate::replica::marks::{Ack, Statement};
use crate::sync::wire::{self, Body, DecodeError, WireChain, WireDot};
use crate::words::chain::Chain;
use crate::words::id::{Birth, ClusterId, Dot, Origin, ReplicaId};
use crate::words::key::Place;
use crate::words::revision::Revision;
use crate::words::vector::VersionVector;

/// The most members or origins that a message may name; there are no more revision spaces.
const NAMES_MAX: usize = 1 << 14;

/// The longest text in a refusal that is passed on, characters.
const TEXT_MAX: usize = 512;

/// The field at the end: XXH3 of all bytes before it. Field 15 of type fixed64, as in records.
const CHECKSUM_TAG: u8 = 15 << 3 | 1;

/// Length of the checksum field, bytes.
const CHECKSUM_LEN: usize = 1 + 8;

impl Message {
    /// The message as it is sent.
    pub fn encode(&self) -> Bytes {
        let envelope = wire::Envelope { body: Some(self.to_wire()) };
        let mut bytes = Vec::with_capacity(envelope.encoded_len() + CHECKSUM_LEN);
        envelope.encode_raw(&mut bytes);
        let sum = xxh3_64(&bytes);
        bytes.push(CHECKSUM_TAG);
        bytes.extend_from_slice(&sum.to_le_bytes());
        bytes.into()
    }

    /// Reads a message. Entries and chunks share the memory of `bytes`.
    ///
    /// # Errors
    /// When the bytes are no message, or one that is too long.
    pub fn decode(bytes: Bytes) -> Result<Self, DecodeError> {
        if bytes.len() > ENTRY_MAX {
            return Err(DecodeError::TooLong(bytes.len()));
        }
        let end = bytes.len().checked_sub(CHECKSUM_LEN).ok_or(DecodeError::Checksum)?;
        if bytes[end] != CHECKSUM_TAG || bytes[end + 1..] != xxh3_64(&bytes[..end]).to_le_bytes() {
            return Err(DecodeError::Checksum);
        }
        let body = wire::Envelope::decode(bytes.slice(..end))?.body.ok_or(DecodeError::Field("kind of message"))?;
        let message = Self::from_wire(body)?;
        let may_be_long = match &message {
            Self::Entries { entries, .. } => entries.len() == 1,
            Self::SnapshotChunk(_) => true,
            _ => false,
        };
        if bytes.len() > MESSAGE_MAX && !may_be_long {
            return Err(DecodeError::TooLong(bytes.len()));
        }
        Ok(message)
    }

    /// What it is called in logs.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Hello(_) => "a greeting",
            Self::Entries { .. } => "entries",
            Self::Acks(_) => "acknowledgements",
            Self::Again { .. } => "a request to send again",
            Self::ChainsWanted { .. } => "a request for chain hashes",
            Self::Chains(_) => "chain hashes",
            Self::Hash { .. } => "a state hash",
            Self::Narrow { .. } => "hashes of parts",
            Self::Differs(_) => "a key that differs",
            Self::SnapshotWanted { .. } => "a request for a snapshot",
            Self::SnapshotChunk(_) => "a chunk of a snapshot",
            Self::Ping { .. } => "a ping",
            Self::Pong { .. } => "a pong",
            Self::TooFarBehind { .. } => "a hint to take a snapshot",
            Self::Refuse { .. } => "a refusal",
        }
    }

    fn to_wire(&self) -> Body {
        match self {
            Self::Hello(hello) => Body::Hello(hello.to_wire()),
            Self::Entries { epoch, number, entries, marks, part } => Body::Entries(wire::WireEntries {
                epoch: *epoch,
                number: *number,
                entries: entries.clone(),
                unit: part.map(|part| part.first),
                ends: part.is_some_and(|part| part.ends),
                more: part.is_some_and(|part| part.more),
                marks: *marks,
            }),
            Self::Acks(acks) => Body::Acks(acks.to_wire()),
            Self::Again { epoch, have, whole, floor } => Body::Again(wire::WireAgain {
                epoch: *epoch,
                have: wire::vector_to_wire(have),
                whole: *whole,
                floor: wire::vector_to_wire(floor),
            }),
            Self::ChainsWanted { origin, seqs } => Body::ChainsWanted(wire::WireChainsWanted {
                replica: origin.replica.get(),
                birth: origin.birth.get(),
                seqs: seqs.clone(),
            }),
            Self::Chains(chains) => Body::Chains(wire::WireChains { chains: chains_to_wire(chains) }),
            Self::Hash { at, hash } => Body::Hash(wire::WireStateHash { at: *at, hash: hash.map(hash_to_wire) }),
            Self::Narrow { at, from, pieces, single } => Body::Narrow(wire::WireNarrow {
                at: *at,
                from: from.as_ref().map(place_to_wire),
                pieces: pieces
                    .iter()
                    .map(|p| wire::WirePiece { end: p.end.as_ref().map(place_to_wire), hash: hash_to_wire(p.hash) })
                    .collect(),
                single: *single,
            }),
            Self::Differs(place) => Body::Differs(place_to_wire(place)),
            Self::SnapshotWanted { after } => {
                Body::SnapshotWanted(wire::WireSnapshotWanted { after: after.as_ref().map(place_to_wire) })
            }
            Self::SnapshotChunk(chunk) => Body::SnapshotChunk(chunk.clone()),
            Self::Ping { number, wall_ms } => Body::Ping(wire::WirePing { number: *number, wall_ms: *wall_ms }),
            Self::Pong { number, wall_ms } => Body::Pong(wire::WirePing { number: *number, wall_ms: *wall_ms }),
            Self::TooFarBehind { begins } => {
                Body::TooFarBehind(wire::WireTooFarBehind { begins: wire::vector_to_wire(begins) })
            }
            Self::Refuse { reason, text } => {
                Body::Refuse(wire::WireRefuse { reason: *reason as u32, text: text.clone() })
            }
        }
    }

    fn from_wire(body: Body) -> Result<Self, DecodeError> {
        Ok(match body {
            Body::Hello(hello) => Self::Hello(Box::new(Hello::from_wire(hello)?)),
            Body::Entries(wire) => Self::Entries {
                epoch: wire.epoch,
                number: wire.number,
                marks: wire.marks,
                part: wire.unit.map(|first| Part { first, ends: wire.ends, more: wire.more }),
                entries: wire.entries,
            },
            Body::Acks(wire) => Self::Acks(AckBatch::from_wire(wire)?),
            Body::Again(wire) => Self::Again {
                epoch: wire.epoch,
                have: vector(&wire.have)?,
                whole: wire.whole,
                floor: vector(&wire.floor)?,
            },
            Body::ChainsWanted(wire) => {
                bounded(wire.seqs.len(), CHAINS_MAX, "number of chain hashes")?;
                let origin = Origin { replica: ReplicaId::new(wire.replica), birth: Birth::new(wire.birth) };
                Self::ChainsWanted { origin, seqs: wire.seqs }
            }
            Body::Chains(wire) => Self::Chains(chains_from_wire(wire.chains)?),
            Body::Hash(wire) => {
                Self::Hash { at: wire.at, hash: wire.hash.map(|hash| hash_from_wire(&hash)).transpose()? }
            }
            Body::Narrow(wire) => {
                bounded(wire.pieces.len(), PIECES_MAX, "number of pieces")?;
                let pieces = wire
                    .pieces
                    .into_iter()
                    .map(|piece| Ok(Piece { end: piece.end.map(place_from_wire), hash: hash_from_wire(&piece.hash)? }));
                Self::Narrow {
                    at: wire.at,
                    from: wire.from.map(place_from_wire),
                    pieces: pieces.collect::<Result<_, DecodeError>>()?,
                    single: wire.single,
                }
            }
            Body::Differs(place) => Self::Differs(place_from_wire(place)),
            Body::SnapshotWanted(wire) => Self::SnapshotWanted { after: wire.after.map(place_from_wire) },
            Body::SnapshotChunk(chunk) => Self::SnapshotChunk(chunk),
            Body::Ping(wire) => Self::Ping { number: wire.number, wall_ms: wire.wall_ms },
            Body::Pong(wire) => Self::Pong { number: wire.number, wall_ms: wire.wall_ms },
            Body::TooFarBehind(wire) => Self::TooFarBehind { begins: vector(&wire.begins)? },
            Body::Refuse(wire) => Self::Refuse {
                reason: Reason::from_wire(wire.reason),
                // It goes into our log: one line of a decent length.
                text: wire.text.chars().filter(|c| !c.is_control()).take(TEXT_MAX).collect(),
            },
        })
    }
}

impl Reason {
    fn from_wire(raw: u32) -> Self {
        use Reason::*;
        [Cluster, Version, Identity, UnknownMember, RemovedMember, Fork, Protocol]
            .into_iter()
            .find(|reason| *reason as u32 == raw)
            .unwrap_or(Other)
    }
}

impl Hello {
    fn to_wire(&self) -> wire::WireHello {
        wire::WireHello {
            protocol: self.protocol,
            cluster: self.cluster.get(),
            replica: self.replica.get(),
            birth: self.birth.get(),
            vector: wire::vector_to_wire(&self.vector),
            chains: chains_to_wire(&self.chains),
            begins: wire::vector_to_wire(&self.begins),
            empty: self.empty,
            doubtful: self.doubtful,
            lineage: self.lineage.map(wire::WireOrigin::new),
            revision: self.revision.get(),
            rules: self.rules.encode(),
            founded: self.founded.encode(),
            marks: self.marks,
        }
    }

    fn from_wire(wire: wire::WireHello) -> Result<Self, DecodeError> {
        Ok(Self {
            protocol: wire.protocol,
            cluster: ClusterId::new(wire.cluster),
            replica: ReplicaId::new(wire.replica),
            birth: Birth::new(wire.birth),
            vector: vector(&wire.vector)?,
            chains: chains_from_wire(wire.chains)?,
            begins: vector(&wire.begins)?,
            empty: wire.empty,
            doubtful: wire.doubtful,
            lineage: wire.lineage.as_ref().map(wire::WireOrigin::get),
            revision: Revision::new(wire.revision),
            rules: Rules::read(&wire.rules).ok_or(DecodeError::Field("set of rules"))?,
            founded: Rules::read(&wire.founded).ok_or(DecodeError::Field("set of rules"))?,
            marks: wire.marks,
        })
    }
}

impl AckBatch {
    fn to_wire(&self) -> wire::WireAcks {
        let ack = |ack: &Ack| wire::WireAck {
            origin: Some(wire::WireOrigin::new(ack.member)),
            vector: wire::vector_to_wire(&ack.vector),
            said: Some(said_to_wire(&ack.said)),
        };
        wire::WireAcks {
            epoch: self.epoch,
            number: self.number,
            own: wire::vector_to_wire(&self.own),
            acks: self.acks.iter().map(ack).collect(),
            has_links: self.links.is_some(),
            links: self.links.iter().flatten().map(|member| member.get()).collect(),
            received: self.received,
            said: Some(said_to_wire(&self.said)),
        }
    }

    fn from_wire(wire: wire::WireAcks) -> Result<Self, DecodeError> {
        bounded(wire.acks.len(), NAMES_MAX, "number of acknowledgements")?;
        bounded(wire.links.len(), NAMES_MAX, "number of links")?;
        let origin = |ack: &wire::WireAck| ack.origin.map(|origin| origin.get()).ok_or(DecodeError::Field("origin"));
        let acks = wire.acks.iter().map(|ack| {
            let said = said_from_wire(ack.said.as_ref())?;
            Ok(Ack { member: origin(ack)?, vector: vector(&ack.vector)?, said })
        });
        Ok(Self {
            epoch: wire.epoch,
            number: wire.number,
            own: vector(&wire.own)?,
            said: said_from_wire(wire.said.as_ref())?,
            acks: acks.collect::<Result<_, DecodeError>>()?,
            links: wire.has_links.then(|| wire.links.into_iter().map(ReplicaId::new).collect()),
            received: wire.received,
        })
    }
}

fn said_to_wire(said: &Statement) -> wire::WireSaid {
    let mark = |(member, upto): (&ReplicaId, &Arc<VersionVector>)| wire::WireMark {
        member: member.get(),
        upto: wire::vector_to_wire(upto),
    };
    wire::WireSaid {
        version: said.version,
        is_told: said.upto.is_some(),
        upto: said.upto.iter().flat_map(|upto| upto.iter()).map(mark).collect(),
    }
}

fn said_from_wire(wire: Option<&wire::WireSaid>) -> Result<Statement, DecodeError> {
    let Some(wire) = wire else { return Ok(Statement::default()) };
    bounded(wire.upto.len(), NAMES_MAX, "number of marks")?;
    let marks = wire.upto.iter().map(|mark| Ok((ReplicaId::new(mark.member), Arc::new(vector(&mark.upto)?))));
    let upto = wire.is_told.then(|| marks.collect::<Result<_, DecodeError>>()).transpose()?;
    Ok(Statement { version: wire.version, upto: upto.map(Arc::new) })
}

fn bounded(len: usize, max: usize, what: &'static str) -> Result<(), DecodeError> {
    if len > max { Err(DecodeError::Field(what)) } else { Ok(()) }
}

fn vector(dots: &[WireDot]) -> Result<VersionVector, DecodeError> {
    bounded(dots.len(), NAMES_MAX, "length of a vector")?;
    Ok(wire::vector_from_wire(dots))
}

fn chains_to_wire(chains: &[(Dot, Chain)]) -> Vec<WireChain> {
    chains.iter().map(|(dot, chain)| WireChain::new(*dot, chain)).collect()
}

fn chains_from_wire(chains: Vec<WireChain>) -> Result<Vec<(Dot, Chain)>, DecodeError> {
    bounded(chains.len(), CHAINS_MAX, "number of chain hashes")?;
    let one = |wire: WireChain| Some((wire.dot.get(), Chain::from_wire(&wire.chain)?));
    chains.into_iter().map(|wire| one(wire).ok_or(DecodeError::Field("chain hash"))).collect()
}

fn hash_to_wire(hash: u128) -> Bytes {
    Bytes::copy_from_slice(&hash.to_le_bytes())
}

fn hash_from_wire(bytes: &[u8]) -> Result<u128, DecodeError> {
    Ok(u128::from_le_bytes(bytes.try_into().map_err(|_| DecodeError::Field("hash"))?))
}

fn place_to_wire((keyspace, key): &Place) -> wire::WirePlace {
    wire::WirePlace { keyspace: wire::keyspace_to_wire(*keyspace), key: key.clone() }
}

fn place_from_wire(wire: wire::WirePlace) -> Place {
    (wire::keyspace_from_wire(wire.keyspace), wire.key)
}
