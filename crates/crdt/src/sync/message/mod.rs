//! What replicas say to each other.

mod codec;

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64;

use crate::merge::rules::Rules;
use crate::replica::marks::{Ack, Statement};
use crate::words::chain::Chain;
use crate::words::fence::VectorPart;
use crate::words::id::{Birth, ClusterId, Dot, Origin, ReplicaId};
use crate::words::key::Place;
use crate::words::revision::Revision;
use crate::words::vector::VersionVector;

/// The version of the protocol that this build speaks. A higher one is refused: it changed the meaning of something.
pub const PROTOCOL: u32 = 1;

/// The longest message but those that carry a single entry, bytes.
pub const MESSAGE_MAX: usize = 8 << 20;

/// The longest entry as it travels, bytes: a delete of a million keys is one.
pub const ENTRY_MAX: usize = 256 << 20;

/// The most chain hashes in one message.
pub const CHAINS_MAX: usize = 4096;

/// The most pieces that a range of keys is cut into for comparing.
pub const PIECES_MAX: usize = 64;

/// The first message of each side: the names of the replica, and what it has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hello {
    /// The version of the protocol it speaks.
    pub protocol: u32,
    /// Its cluster.
    pub cluster: ClusterId,
    /// Its member id.
    pub replica: ReplicaId,
    /// The birth of its data dir.
    pub birth: Birth,
    /// What it has on disk.
    pub vector: VersionVector,
    /// Chain hashes of origins: at its vector and some further back.
    pub chains: Vec<(Dot, Chain)>,
    /// What every member is known to have: it cannot send all of these entries any more, and takes none that do not depend
    /// on them.
    pub begins: VersionVector,
    /// Whether it has nothing yet.
    pub empty: bool,
    /// Whether it may have lost something that it had.
    pub doubtful: bool,
    /// The copy of a disk that its state goes back to, see [`crate::Head::lineage`].
    pub lineage: Option<Origin>,
    /// Its newest revision, which tells the revision space it uses.
    pub revision: Revision,
    /// The newest rules of merging that it knows of, in use or declared, whether this build has their engine or not.
    pub rules: Rules,
    /// The rules with which its cluster began.
    pub founded: Rules,
    /// How often its marks have changed, see [`Statement::version`].
    pub marks: u64,
}

/// Why a peer is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Reason {
    /// A reason that this build does not know.
    Other = 0,
    /// It is of another cluster.
    Cluster = 1,
    /// It speaks too new a protocol.
    Version = 2,
    /// It is another member than the one that was called.
    Identity = 3,
    /// It is no member that the refusing replica knows.
    UnknownMember = 4,
    /// It was removed.
    RemovedMember = 5,
    /// Two histories of one origin.
    Fork = 6,
    /// It broke the protocol.
    Protocol = 7,
}

/// A piece of the key space and the hash of what lies in it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Piece {
    /// The place it ends before; `None`: after all keys.
    pub end: Option<Place>,
    /// The sum of the hashes of its keys.
    pub hash: u128,
}

/// Acknowledgements: what members have on disk, as what changed since the message before.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AckBatch {
    /// Which run of messages this belongs to; see [`Message::Again`].
    pub epoch: u32,
    /// Counts 1, 2, 3, ... the messages of acknowledgements and of entries within the epoch: only all that came before
    /// together say what a member has.
    pub number: u32,
    /// Those origins of which the sender has more than before.
    pub own: VersionVector,
    /// What the sender says of its marks.
    pub said: Statement,
    /// The same of other members, under their births.
    pub acks: Vec<Ack>,
    /// The other members that the sender is connected with now, where that changed. It need not be told of what they
    /// have.
    pub links: Option<Vec<ReplicaId>>,
    /// Up to which number all messages of entries and acknowledgements have arrived here, of the run asked for last.
    pub received: u32,
}

/// A part of a unit: of all that the sender had and the receiver lacked, which is applied as one step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// The number of the message with the unit's first part. All entries from there on are parts of it.
    pub first: u32,
    /// Whether it is the last one.
    pub ends: bool,
    /// Whether another unit follows: this one is what the receiver was promised before the link was cut.
    pub more: bool,
}

/// One message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Message {
    /// The first one.
    Hello(Box<Hello>),
    /// Entries in causal order, each encoded by [`crate::sync::entry_wire`].
    Entries {
        /// Which run of entries this belongs to: the number of the last [`Message::Again`] that the sender was sent.
        epoch: u32,
        /// See [`AckBatch::number`].
        number: u32,
        /// The entries.
        entries: Vec<Bytes>,
        /// How often the sender's marks had changed, see [`Statement::version`].
        marks: u64,
        /// Of which unit they are a part. `None`: they may be applied one by one.
        part: Option<Part>,
    },
    /// What members have.
    Acks(AckBatch),
    /// Entries or acknowledgements did not fit what came before: send everything again from here, under this number.
    Again {
        /// The number of the new run.
        epoch: u32,
        /// What need not be sent.
        have: VersionVector,
        /// Whether entries that were sent already are to come without deltas: a base is missing.
        whole: bool,
        /// What the sender knows all members to have: an entry that it lacks and that does not depend on this it refuses.
        floor: VersionVector,
    },
    /// Asks for chain hashes of one origin.
    ChainsWanted {
        /// The origin.
        origin: Origin,
        /// The entries of it.
        seqs: Vec<u64>,
    },
    /// Those that are known of what was asked.
    Chains(Vec<(Dot, Chain)>),
    /// The hash of the replicated state.
    Hash {
        /// [`fingerprint`] of the vector it was taken at.
        at: u64,
        /// The hash; `None`: the same as the receiver told for that vector.
        hash: Option<u128>,
    },
    /// The sender's hashes of a part of its state, to find the first key that differs.
    Narrow {
        /// [`fingerprint`] of the vector they were taken at.
        at: u64,
        /// Where the first piece starts; `None`: before all keys.
        from: Option<Place>,
        /// The pieces, in order.
        pieces: Vec<Piece>,
        /// Whether no piece has more than one key on the sender's side.
        single: bool,
    },
    /// The first key that differs.
    Differs(Place),
    /// Asks for the next chunk of a snapshot.
    SnapshotWanted {
        /// The last place that is there already; `None`: from the beginning.
        after: Option<Place>,
    },
    /// A chunk of a snapshot, encoded by the replica.
    SnapshotChunk(Bytes),
    /// Asks for an answer.
    Ping {
        /// To be given back.
        number: u32,
        /// The sender's wall clock, milliseconds since the Unix epoch.
        wall_ms: u64,
    },
    /// The answer.
    Pong {
        /// As in the question.
        number: u32,
        /// The answering replica's wall clock, milliseconds since the Unix epoch.
        wall_ms: u64,
    },
    /// The receiver lacks entries that the sender has no more: it must start from a snapshot.
    TooFarBehind {
        /// What the sender cannot send the entries of.
        begins: VersionVector,
    },
    /// The sender will not go on.
    Refuse {
        /// Why.
        reason: Reason,
        /// In words.
        text: String,
    },
}

/// Names a version vector in few bytes.
pub fn fingerprint(vector: &VersionVector) -> u64 {
    let numbers =
        vector.parts().map(VectorPart::numbers).flat_map(|(replica, birth, number, _)| [replica, birth, number]);
    xxh3_64(&numbers.flat_map(u64::to_le_bytes).collect::<Vec<_>>())
}
