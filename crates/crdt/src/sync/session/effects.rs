//! What a session wants done, and what it looks at.

use bytes::Bytes;

use crate::replica::Replica;
use crate::replica::turn::Input;
use crate::sync::message::Message;
use crate::words::clock::Now;
use crate::words::id::{Birth, Dot, ReplicaId};
use crate::words::key::Place;
use crate::words::revision::Revision;
use crate::words::vector::VersionVector;

/// What a session wants done, in this order.
#[derive(Debug, Default)]
pub struct SessionEffects {
    /// What to give to the replica.
    pub inputs: Vec<Input>,
    /// What to send.
    pub messages: Vec<Message>,
    /// What the process should know.
    pub events: Vec<SessionEvent>,
}

/// What the process around a session should know.
#[derive(Clone, PartialEq, Debug)]
pub enum SessionEvent {
    /// The peer is the member that it should be.
    Met {
        /// The member.
        member: ReplicaId,
        /// The birth of its data dir.
        birth: Birth,
        /// Whether it has nothing yet.
        empty: bool,
        /// Its newest revision.
        revision: Revision,
        /// The rules of merging that it follows.
        rules: u32,
    },
    /// Peers know another, or a longer, history of this very replica than it does itself. The replica must take a new
    /// birth and write again what it wrote after `agreed`. Nothing is exchanged in this session any more.
    LostTail {
        /// The member that knows more.
        member: ReplicaId,
        /// The last entry that both surely know alike, if there is one. Below the beginning of the peer's log nothing
        /// can be compared. Then this is no higher than what this replica knew that all members had.
        agreed: Option<Dot>,
        /// The last one that the peer has.
        theirs: u64,
    },
    /// The peer has lost its tail in the same way; it will come back under a new birth.
    PeerLostTail(ReplicaId),
    /// This replica lacks what all others have forgotten, or what it once had itself. It must begin anew from a
    /// snapshot, which this peer can give.
    SnapshotNeeded {
        /// The member that can give it.
        member: ReplicaId,
    },
    /// The peer lacks what is not kept here any more, or what it once had: it needs a snapshot.
    PeerNeedsSnapshot(ReplicaId),
    /// The peer asks for the next chunk of a snapshot: answer with [`Message::SnapshotChunk`], once the replica has
    /// handled the [`Input::Hold`] that comes with this.
    SnapshotWanted {
        /// The last place that the peer has already; `None`: from the beginning.
        after: Option<Place>,
    },
    /// A chunk of the snapshot that was asked for.
    SnapshotChunk(Bytes),
    /// Equal vectors, different states: one of the two is corrupt.
    HashDiffers(ReplicaId),
    /// The first key that is different.
    KeyDiffers {
        /// The member that was compared with.
        member: ReplicaId,
        /// The key.
        place: Place,
    },
    /// The peer's wall clock is off by more than is tolerated.
    ClockOff {
        /// The member.
        member: ReplicaId,
        /// How far it is ahead of ours, milliseconds.
        ahead_ms: i64,
    },
    /// It is right again.
    ClockRight(ReplicaId),
}

/// One call of a session: what it looks at, and what it has led to so far.
pub(super) struct Round<'a> {
    /// The replica.
    pub(super) replica: &'a Replica,
    /// What the replica has on disk.
    pub(super) durable: &'a VersionVector,
    /// What the clocks say.
    pub(super) now: Now,
    /// What it has led to.
    pub(super) effects: SessionEffects,
}
