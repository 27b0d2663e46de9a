//! The status of a peer, as operators see it.

use crate::words::id::{Birth, ReplicaId};
use crate::words::key::Place;
use crate::words::revision::Revision;
use crate::words::vector::VersionVector;

/// How far a session is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// The peer has not greeted yet.
    Greeting,
    /// Entries are exchanged.
    Open,
    /// This replica lost a part of its own history and is finding out which.
    Searching,
    /// This replica lost a part of its own history: it has to take a new birth.
    LostTail,
    /// The peer lost a part of its own history and has to take a new birth.
    PeerLostTail,
    /// One of the two is so far behind that it needs a snapshot.
    Snapshot,
}

/// What comparing the states gave last.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Equality {
    /// Never at equal vectors so far.
    #[default]
    Unknown,
    /// Equal.
    Equal,
    /// Different; with the first key that differs once it is found.
    Different(Option<Place>),
}

/// How much went over one session.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SessionTally {
    /// Messages sent.
    pub sent_messages: u64,
    /// Entries sent.
    pub sent_entries: u64,
    /// Bytes of entries sent, as encoded.
    pub sent_entry_bytes: u64,
    /// Messages received.
    pub received_messages: u64,
    /// Entries received that were news.
    pub received_entries: u64,
    /// Entries received that were here already.
    pub duplicates: u64,
    /// Entries that had to wait for what they depend on.
    pub early: u64,
    /// How often this side asked to be sent everything again.
    pub again: u64,
    /// How often that was because the base of a delta was missing.
    pub missing_bases: u64,
}

/// One peer, as seen in its session.
#[derive(Clone, PartialEq, Debug)]
pub struct PeerStatus {
    /// Its member id, once it greeted.
    pub member: Option<ReplicaId>,
    /// The birth of its data dir.
    pub birth: Option<Birth>,
    /// How far the session is.
    pub stage: Stage,
    /// What it is known to have on disk.
    pub vector: VersionVector,
    /// Its newest revision when it was greeted, once it was.
    pub revision: Option<Revision>,
    /// How many of the entries here it is not known to have; less those that were left out since they were written over.
    pub entries_behind: u64,
    /// About how many bytes these are.
    pub bytes_behind: u64,
    /// How many entries it is known to have that are not here.
    pub entries_ahead: u64,
    /// How many bytes are on their way.
    pub in_flight_bytes: usize,
    /// How many bytes of values that it sent are kept as bases of deltas.
    pub kept_bytes: usize,
    /// Whether its state is the same.
    pub equality: Equality,
    /// The last round trip, milliseconds.
    pub round_trip_ms: Option<u64>,
    /// How far its wall clock is ahead of ours, milliseconds.
    pub clock_ahead_ms: Option<i64>,
    /// When something was received last, milliseconds of the monotonic clock.
    pub last_contact_ms: Option<u64>,
    /// The other members that it is connected with.
    pub links: Vec<ReplicaId>,
    /// How much went over the session.
    pub tally: SessionTally,
}
