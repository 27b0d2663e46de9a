//! What was sent to the peer, and what it has.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::entry::Entry;
use crate::replica::log::Log;
use crate::replica::marks::Mark;
use crate::replica::turn::Input;
use crate::sync::error::SyncError;
use crate::sync::exchange::Tuning;
use crate::sync::session::effects::Round;
use crate::sync::session::peer::is_for_earlier_birth;
use crate::words::clock::Now;
use crate::words::id::{Dot, Origin, ReplicaId};
use crate::words::vector::VersionVector;

/// How often a peer may ask for everything again without acknowledging anything in between.
const AGAIN_MAX: u32 = 64;

/// The least that may be on its way without an acknowledgement, bytes before deltas. An entry that was sent cannot be
/// left out any more when its key is written over, even if it never arrived. So a link that dies silently must not
/// swallow much.
const WINDOW_MIN: usize = 128 << 10;

/// How long it stays larger than the least without need, milliseconds.
const WINDOW_UNUSED_MS: u64 = 250;

/// How much may be on its way. It doubles whenever it was too little and the peer acknowledges. It shrinks again when
/// it was more than enough, and after a pause. Most likely a link that has just died had little on its way.
#[derive(Debug)]
pub(super) struct FlightLimit {
    pub(super) bytes: usize,
    /// Whether it was full since everything was acknowledged last, or since it grew.
    pub(super) was_full: bool,
    /// When more than the least was on its way last, milliseconds of the monotonic clock.
    needed_ms: u64,
}

impl Default for FlightLimit {
    fn default() -> Self {
        Self { bytes: WINDOW_MIN, was_full: false, needed_ms: 0 }
    }
}

impl FlightLimit {
    /// Whether more bytes may be on their way than these.
    pub(super) fn is_open(&mut self, in_flight_bytes: usize, max_bytes: usize, now: Now) -> bool {
        if in_flight_bytes >= WINDOW_MIN {
            self.needed_ms = now.mono_ms;
        } else if now.mono_ms >= self.needed_ms.saturating_add(WINDOW_UNUSED_MS) {
            self.bytes = WINDOW_MIN;
        }
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

/// How long it may say nothing at all while [much](SILENT) waits for it: then the link may be dead, and all of that be written
/// over.
const SILENT_MS: u64 = 250;

/// How much may wait for a peer that takes little.
const STUCK: Waiting = Waiting { entries: 10_000, bytes: 16 << 20 };

/// How much may wait for one that says nothing at all.
const SILENT: Waiting = Waiting { entries: 2_500, bytes: 4 << 20 };

/// What waits to be streamed.
#[derive(Clone, Copy, Default)]
struct Waiting {
    entries: u64,
    /// About how much memory they take together, bytes: one entry may be as large as thousands of others.
    bytes: u64,
}

impl Waiting {
    fn exceeds(self, limit: Self) -> bool {
        self.entries > limit.entries || self.bytes > limit.bytes
    }
}

/// Entries that were sent and not acknowledged.
#[derive(Debug)]
pub(super) struct Flight {
    /// Their names.
    pub(super) dots: Vec<Dot>,
    /// Their weight, bytes.
    pub(super) bytes: usize,
    /// Of a part of a unit, the number of its message: the peer tells that it has arrived before it can apply it.
    pub(super) part: Option<u32>,
}

/// All that the peer lacks of what was here at one moment, on its way to it.
#[derive(Debug)]
pub(super) struct UnitSent {
    /// What was not sent yet.
    pub(super) entries: VecDeque<Arc<Entry>>,
    /// The number of the message with its first part.
    pub(super) first: u32,
    /// What was here.
    pub(super) target: VersionVector,
    /// Whether it ends at the peer's mark, and what is above that comes in another one.
    pub(super) more: bool,
}

#[derive(Debug, Default)]
pub(super) struct Outgoing {
    /// What the peer has on disk, by what it said itself.
    pub(super) theirs: VersionVector,
    /// What it has, or was sent, or sent us itself.
    pub(super) sent: VersionVector,
    /// Whether the peer is to be sent a unit next: it has asked for what it lacks.
    pub(super) unit_due: bool,
    pub(super) unit: Option<UnitSent>,
    pub(super) in_flight: VecDeque<Flight>,
    pub(super) in_flight_bytes: usize,
    pub(super) window: FlightLimit,
    /// Which change of the marks is on disk. `None`: all of them.
    pub(super) marks_on_disk: Option<u64>,
    /// Whether the replica was told that this session streams, and not that it does no more.
    pub(super) streams: bool,
    /// Whether entries may be sent as they become durable: the peer was sent all that was here when that began.
    pub(super) streams_now: bool,
    /// What was on disk when something was sent last.
    pub(super) reached: VersionVector,
    /// Whether the peer is given a snapshot, which tells of all that is here while it is read.
    pub(super) gives_snapshot: bool,
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
    /// Under which number the peer was told whole what members say of their marks, in this epoch.
    pub(super) said: BTreeMap<Origin, u64>,
    /// Up to which message the peer was told that all have arrived.
    pub(super) received_told: u32,
    pub(super) own_acks_ms: Option<u64>,
    pub(super) other_acks_ms: Option<u64>,
    /// Whether something may have to be acknowledged or passed on once the interval is over.
    pub(super) own_acks_wait: bool,
    pub(super) other_acks_wait: bool,
    /// Whether entries are left to others for the time being.
    pub(super) entries_wait: bool,
}

impl UnitSent {
    /// What is sent next of it, about that many bytes.
    pub(super) fn take(&mut self, max_bytes: usize) -> Vec<Arc<Entry>> {
        let (mut taken, mut bytes) = (vec![], 0);
        while let Some(entry) = self.entries.front() {
            let weight = entry.weight();
            if bytes > 0 && bytes + weight > max_bytes {
                break;
            }
            bytes += weight;
            taken.extend(self.entries.pop_front());
        }
        taken
    }
}

/// Whether an interval is over.
pub(super) fn due(last_ms: Option<u64>, interval_ms: u64, now: Now) -> bool {
    last_ms.is_none_or(|at| now.mono_ms >= at.saturating_add(interval_ms))
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
        self.land(flights, |theirs, flight| flight.dots.iter().all(|dot| theirs.contains(*dot)));
    }

    /// The peer has all messages up to that number, though it may not be able to apply them yet.
    pub(super) fn arrived(&mut self, number: u32, now: Now) {
        let flights = self.in_flight.len();
        self.land(flights, |_, flight| flight.part.is_some_and(|part| part <= number));
        if self.in_flight.len() < flights {
            self.progress_ms = now.mono_ms;
        }
    }

    /// Takes what has arrived out of what is on its way.
    fn land(&mut self, flights: usize, has_landed: impl Fn(&VersionVector, &Flight) -> bool) {
        while let Some(first) = self.in_flight.front() {
            if !has_landed(&self.theirs, first) {
                break;
            }
            self.in_flight_bytes -= first.bytes;
            self.in_flight.pop_front();
        }
        if self.in_flight.len() < flights {
            self.window.acknowledged(self.in_flight.is_empty());
        }
    }

    /// Whether the peer has asked for what it lacks. Before that it is sent nothing.
    pub(super) fn is_asked(&self) -> bool {
        self.epoch > 0
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
        self.said.clear();
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
        (self.unit_due, self.unit) = (self.is_asked(), None);
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
    pub(super) fn has_news(&self, own: Origin, durable: &VersionVector, max_bytes: usize) -> bool {
        let is_news = |(dot, sent): (Dot, u64)| dot.seq > sent && !self.comes_another_way(own, dot.origin);
        self.is_asked()
            && self.has_room(max_bytes)
            && (self.unit_due
                || self.unit.is_some()
                || durable.get(own) > self.sent.get(own)
                || self.sent.along(durable).any(is_news))
    }

    /// What the peer may be sent all of now; `None` while nothing may be sent. Where a stream has ended, that is what was
    /// here then, until the peer has it. Only then a stream begins, and that with all that is here. (Were more sent each time
    /// that a link comes and goes, each time would leave another state to be kept for the peer.) A mark at which no unit can
    /// end any more is passed over, and one that was made for an earlier birth of the peer: that had what it was made for, which
    /// was lost with its disk. Some may have left since for what the peer had beyond it.
    pub(super) fn may_send(&mut self, round: &mut Round<'_>, peer: Origin, session: u64) -> Option<VersionVector> {
        let (replica, durable) = (round.replica, round.durable);
        let member = peer.replica;
        // What is on its way must have arrived before it is told what the peer lacks: a slow peer would be sent by each of the
        // others what all of them send it.
        let is_on_its_way = self.unit.is_none() && !self.in_flight.is_empty();
        let stream = Input::Stream { member, session };
        match replica.marks().of(member) {
            Mark::Streams { sessions, since, from, .. } if sessions.contains(&session) => {
                if !self.streams {
                    // It waits for the replica to note that it streams no more.
                    return None;
                }
                if self.marks_on_disk.is_some_and(|on_disk| on_disk < since) || !durable.covers(&from) {
                    return None;
                }
                if !self.streams_now && is_on_its_way {
                    return None;
                }
                if !std::mem::replace(&mut self.streams_now, true) {
                    self.unit_due = true;
                }
                Some(durable.clone())
            }
            Mark::Upto(upto)
                if !self.streams
                    && !self.theirs.covers(&upto)
                    && !is_for_earlier_birth(&upto, peer)
                    && replica.log().is_none_or(|log| log.can_end_at(&upto)) =>
            {
                if !durable.covers(&upto) || is_on_its_way {
                    return None;
                }
                if self.unit.is_none() && !self.sent.covers(&upto) {
                    self.unit_due = true;
                }
                Some(VersionVector::clone(&upto))
            }
            // It waits for the replica to note that it streams.
            Mark::Upto(_) | Mark::Streams { .. } if self.streams => None,
            Mark::Upto(_) | Mark::Streams { .. } => {
                (self.streams, self.streams_now) = (true, false);
                round.effects.inputs.push(stream);
                None
            }
        }
    }

    /// What the replica is told when nothing is streamed any more.
    pub(super) fn stop(&self, member: ReplicaId, session: u64) -> Input {
        Input::Stop { member, session, upto: (!self.gives_snapshot).then(|| self.reached.clone()) }
    }

    /// Whether the peer takes so little of what is streamed to it that it is better to wait: what is written over
    /// meanwhile need never be sent.
    pub(super) fn is_stuck(&self, round: &Round<'_>, own: Origin, heard_ms: Option<u64>) -> bool {
        if self.unit.is_some() || self.unit_due {
            return false;
        }
        let waiting = self.waiting(round.replica.log(), own, round.durable);
        let heard_ms = self.progress_ms.max(heard_ms.unwrap_or_default());
        let is_silent = round.now.mono_ms >= heard_ms.saturating_add(SILENT_MS);
        waiting.exceeds(STUCK) || (is_silent && waiting.exceeds(SILENT))
    }

    /// What waits to be streamed to the peer.
    fn waiting(&self, log: Option<&Log>, own: Origin, durable: &VersionVector) -> Waiting {
        let mut waiting = Waiting::default();
        for (Dot { origin, seq }, sent) in self.sent.along(durable) {
            if seq > sent && !self.comes_another_way(own, origin) {
                waiting.entries += seq - sent;
                waiting.bytes += log.map_or(0, |log| log.memory_beyond(origin, sent));
            }
        }
        waiting
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

    /// How far entries are sent: as far as they are durable. Entries of origins
    /// that are connected with the peer are sent only if they do not arrive there that way.
    pub(super) fn bound(&mut self, own: Origin, durable: &VersionVector, delay_ms: u64, now: Now) -> VersionVector {
        if now.mono_ms >= self.recent_ms.saturating_add(delay_ms) {
            self.old = std::mem::replace(&mut self.recent, durable.clone());
            self.recent_ms = now.mono_ms;
            let stands = |dot: &Dot| {
                let had = self.stood.get(dot.origin);
                dot.seq > had && self.theirs.get(dot.origin) == had
            };
            let stalls: Vec<Origin> = self.old.iter().filter(stands).map(|dot| dot.origin).collect();
            // A peer that lacks what it was sent from here, too, or what most others send it, is slow with everything: more
            // would make it slower.
            let lacks_most = stalls.len() > 1 && 2 * stalls.len() > self.links.len();
            let is_slow = lacks_most || self.theirs.get(own) < self.old.get(own);
            let stalled = |origin| self.stalls.get(&origin).unwrap_or(&0) + usize::from(!is_slow);
            self.stalls = stalls.into_iter().map(|origin| (origin, stalled(origin))).collect();
            self.stood = self.theirs.clone();
        }
        let bound = |dot: Dot| {
            let seq = if dot.origin == own || !self.comes_another_way(own, dot.origin) {
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
