//! What was sent to the peer, and what it has.

use std::collections::{BTreeMap, VecDeque};

use crate::sync::error::SyncError;
use crate::sync::exchange::Tuning;
use crate::words::clock::Now;
use crate::words::id::{Dot, Origin, ReplicaId};
use crate::words::vector::VersionVector;

/// How often a peer may ask for everything again without acknowledging anything in between.
const AGAIN_MAX: u32 = 64;

/// The least that may be on its way without an acknowledgement, bytes before deltas. An entry that was sent cannot be
/// left out any more when its key is written over, even if it never arrived. So a link that dies silently must not
/// swallow much.
const WINDOW_MIN: usize = 128 << 10;

/// How much may be on its way. It doubles whenever it was too little and the peer acknowledges. It shrinks again when
/// it was more than enough. Most likely a link that has just died had little on its way.
#[derive(Debug)]
pub(super) struct FlightLimit {
    pub(super) bytes: usize,
    /// Whether it was full since everything was acknowledged last, or since it grew.
    pub(super) was_full: bool,
}

impl Default for FlightLimit {
    fn default() -> Self {
        Self { bytes: WINDOW_MIN, was_full: false }
    }
}

impl FlightLimit {
    /// Whether more bytes may be on their way than these.
    pub(super) fn is_open(&mut self, in_flight_bytes: usize, max_bytes: usize) -> bool {
        let full = in_flight_bytes >= self.bytes.min(max_bytes);
        self.was_full |= full && self.bytes < max_bytes;
        !full
    }

    /// Something was acknowledged; `emptied` tells whether everything was.
    pub(super) fn acknowledged(&mut self, emptied: bool) {
        if std::mem::take(&mut self.was_full) {
            self.bytes = self.bytes.saturating_mul(2);
        } else if emptied {
            self.bytes = (self.bytes / 2).max(WINDOW_MIN);
        }
    }
}

/// Entries that were sent and not acknowledged.
#[derive(Debug)]
pub(super) struct Flight {
    /// Their names.
    pub(super) dots: Vec<Dot>,
    /// Their weight, bytes.
    pub(super) bytes: usize,
}

#[derive(Debug, Default)]
pub(super) struct Outgoing {
    /// What the peer has on disk, by what it said itself.
    pub(super) theirs: VersionVector,
    /// What it has, or was sent, or sent us itself.
    pub(super) sent: VersionVector,
    pub(super) in_flight: VecDeque<Flight>,
    pub(super) in_flight_bytes: usize,
    pub(super) window: FlightLimit,
    /// The last of the replica's own entries whose offer is known to be on disk. `None`: what the replica says is on
    /// disk.
    pub(super) offered: Option<u64>,
    /// When the peer last acknowledged something, or when nothing was on its way; milliseconds of the monotonic clock.
    pub(super) progress_ms: u64,
    pub(super) epoch: u32,
    /// How often it asked again since it acknowledged something.
    pub(super) agains: u32,
    /// Entries up to here are sent without deltas.
    pub(super) whole_upto: VersionVector,
    /// The other members that the peer is connected with.
    pub(super) links: Vec<ReplicaId>,
    /// What was durable here one forwarding delay ago: others have had time to send it to the peer.
    pub(super) old: VersionVector,
    /// What was durable here more recently, and when that was.
    pub(super) recent: VersionVector,
    pub(super) recent_ms: u64,
    /// What the peer had then.
    pub(super) stood: VersionVector,
    /// Per origin: consecutive checks in which the peer received nothing although entries existed.
    pub(super) stalls: BTreeMap<Origin, usize>,
    /// What the peer was told that members have, in this epoch.
    pub(super) acked: BTreeMap<Origin, VersionVector>,
    /// The number of the last message of entries or acknowledgements in this epoch.
    pub(super) number: u32,
    pub(super) links_told: Vec<ReplicaId>,
    pub(super) own_acks_ms: Option<u64>,
    pub(super) other_acks_ms: Option<u64>,
    /// Whether something may have to be acknowledged or passed on once the interval is over.
    pub(super) own_acks_wait: bool,
    pub(super) other_acks_wait: bool,
    /// Whether entries are left to others for the time being.
    pub(super) entries_wait: bool,
}

/// Whether an interval is over.
pub(super) fn due(last_ms: Option<u64>, interval_ms: u64, now: Now) -> bool {
    last_ms.is_none_or(|at| now.mono_ms >= at.saturating_add(interval_ms))
}

/// The dots of `of` that are above `than`.
pub(super) fn above(of: &VersionVector, than: &VersionVector) -> VersionVector {
    of.iter().filter(|dot| !than.contains(*dot)).collect()
}

impl Outgoing {
    /// The peer said what it has; `durable` is what we said.
    pub(super) fn meet(&mut self, theirs: &VersionVector, durable: &VersionVector, now: Now) {
        self.theirs = theirs.clone();
        self.sent = theirs.clone();
        (self.recent, self.recent_ms, self.progress_ms) = (durable.clone(), now.mono_ms, now.mono_ms);
        self.stood = theirs.clone();
        self.stalls.clear();
    }

    /// The greeting told the peer what this replica has.
    pub(super) fn told(&mut self, own: Origin, durable: &VersionVector) {
        self.acked.insert(own, durable.clone());
    }

    /// The peer has this on disk.
    pub(super) fn acknowledged(&mut self, vector: &VersionVector, now: Now) {
        if self.theirs.covers(vector) {
            return;
        }
        let flights = self.in_flight.len();
        self.theirs.merge(vector);
        self.sent.merge(vector);
        (self.progress_ms, self.agains) = (now.mono_ms, 0);
        while let Some(first) = self.in_flight.front() {
            if !first.dots.iter().all(|dot| self.theirs.contains(*dot)) {
                break;
            }
            self.in_flight_bytes -= first.bytes;
            self.in_flight.pop_front();
        }
        if self.in_flight.len() < flights {
            self.window.acknowledged(self.in_flight.is_empty());
        }
    }

    /// The peer sent that entry, so it has it.
    pub(super) fn seen_from_peer(&mut self, dot: Dot) {
        self.sent.advance(dot);
    }

    /// The peer asks for everything above `have` again.
    pub(super) fn again(&mut self, epoch: u32, have: VersionVector, whole: bool) -> Result<(), SyncError> {
        if epoch <= self.epoch {
            return Ok(());
        }
        self.agains += 1;
        if self.agains > AGAIN_MAX {
            return Err(SyncError::Unexpected("the same request again and again"));
        }
        self.epoch = epoch;
        if whole {
            self.whole_upto.merge(&self.sent);
        }
        self.acked.clear();
        self.number = 0;
        self.links_told.clear();
        (self.own_acks_ms, self.other_acks_ms) = (None, None);
        self.rewind(have);
        Ok(())
    }

    pub(super) fn rewind(&mut self, have: VersionVector) {
        self.sent = have;
        self.sent.merge(&self.theirs);
        self.in_flight.clear();
        self.in_flight_bytes = 0;
    }

    pub(super) fn set_links(&mut self, links: Vec<ReplicaId>) {
        self.links = links;
    }

    pub(super) fn links(&self) -> &[ReplicaId] {
        &self.links
    }

    pub(super) fn theirs(&self) -> &VersionVector {
        &self.theirs
    }

    pub(super) fn in_flight_bytes(&self) -> usize {
        self.in_flight_bytes
    }

    /// When there may be something to do, milliseconds of the monotonic clock.
    pub(super) fn next_ms(&self, tuning: &Tuning, ack_interval_ms: u64) -> Option<u64> {
        let after = |wait: bool, last_ms: Option<u64>, interval_ms: u64| {
            wait.then(|| last_ms.unwrap_or_default().saturating_add(interval_ms))
        };
        [
            after(self.own_acks_wait, self.own_acks_ms, ack_interval_ms),
            after(self.other_acks_wait, self.other_acks_ms, tuning.forward_acks_interval_ms),
            after(self.entries_wait, Some(self.recent_ms), tuning.forward_delay_ms),
            after(!self.in_flight.is_empty(), Some(self.progress_ms), tuning.resend_ms),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Whether there are entries to send now, and the peer takes more.
    pub(super) fn has_news(&self, own: Origin, offered: u64, durable: &VersionVector, max_bytes: usize) -> bool {
        let is_news = |dot: Dot| {
            let seq = if dot.origin == own { dot.seq.min(offered) } else { dot.seq };
            seq > self.sent.get(dot.origin) && !self.comes_another_way(own, dot.origin)
        };
        self.has_room(max_bytes) && durable.iter().any(is_news)
    }

    /// Whether more may be on its way to the peer.
    pub(super) fn has_room(&self, max_bytes: usize) -> bool {
        self.in_flight_bytes < self.window.bytes.min(max_bytes)
    }

    /// Whether the peer is connected with the origin itself.
    pub(super) fn comes_another_way(&self, own: Origin, origin: Origin) -> bool {
        origin.replica != own.replica && self.links.contains(&origin.replica)
    }

    /// Whether entries of an origin that is connected with the peer are forwarded all the same, because none of them
    /// arrive there. One member after the other begins to, a delay apart, until some arrive: a slow peer must not get
    /// everything from everyone.
    pub(super) fn is_forwarded(&self, own: Origin, origin: Origin) -> bool {
        let before_us =
            || self.links.iter().filter(|member| **member < own.replica && **member != origin.replica).count();
        self.stalls.get(&origin).is_some_and(|stalls| *stalls > before_us())
    }

    /// How far entries may be sent: as far as they are durable. Own entries must be offered first. Entries of origins
    /// that are connected with the peer are sent only if they do not arrive there that way.
    pub(super) fn bound(
        &mut self,
        own: Origin,
        offered: u64,
        durable: &VersionVector,
        delay_ms: u64,
        now: Now,
    ) -> VersionVector {
        if now.mono_ms >= self.recent_ms.saturating_add(delay_ms) {
            self.old = std::mem::replace(&mut self.recent, durable.clone());
            self.recent_ms = now.mono_ms;
            let stands = |dot: &Dot| {
                let had = self.stood.get(dot.origin);
                dot.seq > had && self.theirs.get(dot.origin) == had
            };
            let stalls = self.old.iter().filter(stands).map(|dot| dot.origin);
            self.stalls = stalls.map(|origin| (origin, self.stalls.get(&origin).unwrap_or(&0) + 1)).collect();
            self.stood = self.theirs.clone();
        }
        let bound = |dot: Dot| {
            let seq = if dot.origin == own {
                offered
            } else if !self.comes_another_way(own, dot.origin) {
                dot.seq
            } else if self.is_forwarded(own, dot.origin) {
                self.old.get(dot.origin)
            } else {
                0
            };
            Dot { seq: seq.min(dot.seq), ..dot }
        };
        durable.iter().map(bound).filter(|dot| dot.seq > 0).collect()
    }
}
