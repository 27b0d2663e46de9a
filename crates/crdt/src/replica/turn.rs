//! What goes into the machine, and what comes out of it.

use std::sync::Arc;

use bytes::Bytes;
use smallvec::SmallVec;

use crate::command::event::Commit;
use crate::command::notice::Notice;
use crate::command::op::Command;
use crate::command::reply::{Refusal, Reply};
use crate::command::tally::Tally;
use crate::entry::Entry;
use crate::replica::marks::Ack;
use crate::replica::prepared::Prepared;
use crate::words::clock::Now;
use crate::words::id::{Birth, ReplicaId};
use crate::words::key::{Key, Keyspace};
use crate::words::value::Live;
use crate::words::vector::VersionVector;

/// What the machine is told.
#[derive(Clone, Debug)]
pub enum Input {
    /// A client's command, or the process's own.
    Client(Command),
    /// Time has passed: leases may have run out, a hold may be over. See [`Replica::next_tick_ms`].
    Tick,
    /// Entries from a peer, in an order in which what they depend on comes first. Known ones are ignored; those whose
    /// dependencies are missing, and those that cannot be right, are refused with a notice.
    Entries {
        /// The peer that sent them; another replica may have made them.
        from: ReplicaId,
        /// Its birth, and those under which entries of it were known when it was greeted. When entries of another birth
        /// of it have come since, the peer has lost its disk. These entries are then from before, and others may have
        /// settled what they do not depend on.
        births: Arc<[Birth]>,
        /// The entries.
        entries: Vec<Entry>,
        /// With what was prepared for it, where they are one step: all or none of them are applied, and who reads sees
        /// all or none. What one of them depends on may come behind it then.
        together: Option<Prepared>,
    },
    /// What members have on disk.
    Acks {
        /// What is durable here.
        own: VersionVector,
        /// What the others have, as they said or as it was passed on.
        acks: Vec<Ack>,
    },
    /// A session streams entries to a member from now on. To be durable before the first of them is sent.
    Stream {
        /// The member.
        member: ReplicaId,
        /// The number of the session, which no other has.
        session: u64,
    },
    /// That session streams no more. Nothing is sent to the member beyond what is here.
    Stop {
        /// The member.
        member: ReplicaId,
        /// The number of the session.
        session: u64,
        /// What was on disk when it sent something last. `None`: all that is here may have been sent.
        upto: Option<VersionVector>,
    },
    /// What is on disk may be less than what peers know of this replica. The replica goes on under this birth, which
    /// must never have been used.
    Doubt(Birth),
    /// A member begins, under that birth, with what this replica has. To be durable before it is given anything.
    Begins {
        /// Which.
        member: ReplicaId,
        /// Its birth.
        birth: Birth,
    },
    /// A peer reads a snapshot: nothing is settled for a minute, so that its parts fit together.
    Hold,
    /// No peer reads a snapshot any more: what could not be settled meanwhile is.
    Release,
}

/// How long [`Input::Hold`] holds without [`Input::Release`], milliseconds.
pub const HOLD_MS: u64 = 60_000;

/// What an input leads to. The state has changed already. None of this may leave the process before the records and the
/// head are durable; [`Replica`](crate::Replica) says in which order.
#[derive(Debug, Default)]
pub struct Effects {
    /// The answer to a command.
    pub reply: Option<Result<Reply, Refusal>>,
    /// Records to journal, under consecutive numbers.
    pub records: SmallVec<[Bytes; 1]>,
    /// What watchers are to be told, in order.
    pub commits: SmallVec<[Commit; 1]>,
    /// Whether the head changed although there may be no record: it is to be stored all the same.
    pub head_changed: bool,
    /// What was done, also for an answer that refuses.
    pub tally: Tally,
    /// Whether all earlier revisions count as compacted from now on: watches are to be cancelled so.
    pub leapt: bool,
    /// What an operator should hear of.
    pub notices: Vec<Notice>,
}

/// One input on its way through the machine: when it is handled, and what it has led to so far.
pub(crate) struct Turn {
    /// What the clocks say.
    pub(crate) now: Now,
    /// What it has led to.
    pub(crate) effects: Effects,
    /// Keys that an entry has let run out although their lease is kept alive here: to be written again as they were.
    pub(crate) revived: Vec<(Keyspace, Key, Live)>,
}

impl Turn {
    /// A turn that has led to nothing.
    pub(crate) fn new(now: Now) -> Self {
        Self { now, effects: Effects::default(), revived: vec![] }
    }
}
