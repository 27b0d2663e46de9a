//! What is sent to the peer: entries it lacks, and who has what.

use std::collections::{BTreeMap, VecDeque};

use crate::replica::Replica;
use crate::sync::error::SyncError;
use crate::sync::exchange::Tuning;
use crate::sync::message::{Acks, Message};
use crate::sync::session::{Peer, Session, SessionEvent, Turn};
use crate::sync::status::{SessionTally, Stage};
use crate::words::clock::Now;
use crate::words::id::{Dot, Origin, ReplicaId};
use crate::words::vector::VersionVector;

/// How often a peer may ask for everything again without acknowledging anything in between.
const AGAIN_MAX: u32 = 64;

/// The least that may be on its way without an acknowledgement, bytes before deltas. What was sent into nothing cannot be
/// left out any more when it is written over, so a link that dies silently must not swallow much.
const WINDOW_MIN: usize = 128 << 10;

/// How much may be on its way: twice as much whenever that was too little and the peer acknowledges, less again when
/// it was more than enough. Most likely a link that has just died had little on its way.
#[derive(Debug)]
struct Window {
    bytes: usize,
    /// Whether it was full since everything was acknowledged last, or since it grew.
    was_full: bool,
}

impl Default for Window {
    fn default() -> Self {
        Self { bytes: WINDOW_MIN, was_full: false }
    }
}

impl Window {
    /// So many bytes are on their way; whether more may be.
    fn is_open(&mut self, in_flight_bytes: usize, max_bytes: usize) -> bool {
        let full = in_flight_bytes >= self.bytes.min(max_bytes);
        self.was_full |= full && self.bytes < max_bytes;
        !full
    }

    /// Something was acknowledged; `emptied` tells whether everything was.
    fn acknowledged(&mut self, emptied: bool) {
        if std::mem::take(&mut self.was_full) {
            self.bytes = self.bytes.saturating_mul(2);
        } else if emptied {
            self.bytes = (self.bytes / 2).max(WINDOW_MIN);
        }
    }
}

/// Entries that were sent and not acknowledged.
#[derive(Debug)]
struct Flight {
    /// Their names.
    dots: Vec<Dot>,
    /// Their weight, bytes.
    bytes: usize,
}

#[derive(Debug, Default)]
pub(super) struct Outgoing {
    /// What the peer has on disk, by what it said itself.
    theirs: VersionVector,
    /// What it has, or was sent, or sent us itself.
    sent: VersionVector,
    in_flight: VecDeque<Flight>,
    in_flight_bytes: usize,
    window: Window,
    /// Up to which of the replica's own entries the mark that they were offered is on disk, where that may be less than
    /// what the replica says.
    offered: Option<u64>,
    /// When something was sent into nothing, or acknowledged, last; milliseconds of the monotonic clock.
    progress_ms: u64,
    epoch: u32,
    /// How often it asked again since it acknowledged something.
    agains: u32,
    /// Entries up to here are sent without deltas.
    whole_upto: VersionVector,
    /// With whom else the peer is connected.
    links: Vec<ReplicaId>,
    /// What was durable here at a time that is long enough ago for others to have told the peer.
    old: VersionVector,
    /// What was durable here more recently, and when that was.
    recent: VersionVector,
    recent_ms: u64,
    /// What the peer had then.
    stood: VersionVector,
    /// Of whose entries it has got none for so many of these times, though there are some.
    stalls: BTreeMap<Origin, usize>,
    /// What the peer was told that members have, in this epoch.
    acked: BTreeMap<Origin, VersionVector>,
    /// The number of the last message of entries or acknowledgements in this epoch.
    number: u32,
    links_told: Vec<ReplicaId>,
    own_acks_ms: Option<u64>,
    other_acks_ms: Option<u64>,
    /// Whether something may have to be acknowledged or passed on once the interval is over.
    own_acks_wait: bool,
    other_acks_wait: bool,
    /// Whether entries are left to others for the time being.
    entries_wait: bool,
}

/// Whether an interval is over.
fn due(last_ms: Option<u64>, interval_ms: u64, now: Now) -> bool {
    last_ms.is_none_or(|at| now.mono_ms >= at.saturating_add(interval_ms))
}

/// The dots of `of` that are above `than`.
fn above(of: &VersionVector, than: &VersionVector) -> VersionVector {
    of.iter().filter(|dot| !than.contains(*dot)).collect()
}

impl Outgoing {
    /// The peer said what it has; `durable` is what we said.
    pub fn meet(&mut self, theirs: &VersionVector, durable: &VersionVector, now: Now) {
        self.theirs = theirs.clone();
        self.sent = theirs.clone();
        (self.recent, self.recent_ms, self.progress_ms) = (durable.clone(), now.mono_ms, now.mono_ms);
        self.stood = theirs.clone();
        self.stalls.clear();
    }

    /// The greeting told the peer what this replica has.
    pub fn told(&mut self, own: Origin, durable: &VersionVector) {
        self.acked.insert(own, durable.clone());
    }

    /// The peer has this on disk.
    pub fn acknowledged(&mut self, vector: &VersionVector, now: Now) {
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
    pub fn seen_from_peer(&mut self, dot: Dot) {
        self.sent.advance(dot);
    }

    /// The peer asks for everything above `have` again.
    pub fn again(&mut self, epoch: u32, have: VersionVector, whole: bool) -> Result<(), SyncError> {
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

    fn rewind(&mut self, have: VersionVector) {
        self.sent = have;
        self.sent.merge(&self.theirs);
        self.in_flight.clear();
        self.in_flight_bytes = 0;
    }

    pub fn set_links(&mut self, links: Vec<ReplicaId>) {
        self.links = links;
    }

    pub fn links(&self) -> &[ReplicaId] {
        &self.links
    }

    pub fn theirs(&self) -> &VersionVector {
        &self.theirs
    }

    pub fn in_flight_bytes(&self) -> usize {
        self.in_flight_bytes
    }

    /// When there may be something to do, milliseconds of the monotonic clock.
    pub fn next_ms(&self, tuning: &Tuning, ack_interval_ms: u64) -> Option<u64> {
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
    fn has_news(&self, own: Origin, offered: u64, durable: &VersionVector, max_bytes: usize) -> bool {
        let is_news = |dot: Dot| {
            let seq = if dot.origin == own { dot.seq.min(offered) } else { dot.seq };
            seq > self.sent.get(dot.origin) && !self.comes_another_way(own, dot.origin)
        };
        self.has_room(max_bytes) && durable.iter().any(is_news)
    }

    /// Whether more may be on its way to the peer.
    fn has_room(&self, max_bytes: usize) -> bool {
        self.in_flight_bytes < self.window.bytes.min(max_bytes)
    }

    /// Whether the peer is connected with whoever makes those entries.
    fn comes_another_way(&self, own: Origin, origin: Origin) -> bool {
        origin.replica != own.replica && self.links.contains(&origin.replica)
    }

    /// Whether entries of that origin, who is connected with the peer, are passed on all the same: none of them have been
    /// arriving there. One member after the other does so, a delay apart, until some do: a peer that is only slow
    /// must not get everything from everybody as well.
    fn is_forwarded(&self, own: Origin, origin: Origin) -> bool {
        let before_us =
            || self.links.iter().filter(|member| **member < own.replica && **member != origin.replica).count();
        self.stalls.get(&origin).is_some_and(|stalls| *stalls > before_us())
    }

    /// How far entries may be sent: what is durable, but entries of those who are connected with the peer themselves
    /// only when they do not arrive there that way, and our own only once they were offered.
    fn bound(&mut self, own: Origin, offered: u64, durable: &VersionVector, delay_ms: u64, now: Now) -> VersionVector {
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

impl Session {
    /// Whether the peer would be sent more entries if there were any. While no session's peer would, there is no reason
    /// to mark entries as offered ([`crate::replica::Input::Offer`]), and one not to: what was not offered and is
    /// written over need never be sent.
    pub fn takes_entries(&self) -> bool {
        self.stage == Stage::Open && self.outgoing.has_room(self.exchange.tuning().in_flight_bytes)
    }

    /// Up to which of the replica's own entries the mark that they were offered is on disk: those behind it are not
    /// sent. Where the mark is always made before the entry is durable this need not be told.
    pub fn set_offered(&mut self, seq: u64) {
        self.outgoing.offered = Some(seq);
    }

    /// Whether [`Self::poll`] has something to do that should not wait for [`Self::next_ms`]; cheap to ask. `own` is where
    /// this replica's entries come from, of which those up to `offered` are marked as offered.
    pub fn is_urgent(&self, own: Origin, offered: u64, durable: &VersionVector) -> bool {
        let max_bytes = self.exchange.tuning().in_flight_bytes;
        self.stage != Stage::Open
            || self.wish.is_some()
            || self.incoming.waits()
            || self.outgoing.has_news(own, offered, durable, max_bytes)
    }

    /// How much went over the session.
    pub fn tally(&self) -> SessionTally {
        self.tally
    }

    pub(super) fn send_entries(
        &mut self,
        peer: &Peer,
        replica: &Replica,
        durable: &VersionVector,
        now: Now,
        max_bytes: usize,
        turn: &mut Turn,
    ) {
        let (exchange, tuning) = (std::sync::Arc::clone(&self.exchange), *self.exchange.tuning());
        let own = replica.identity();
        let out = &mut self.outgoing;
        if out.in_flight.is_empty() {
            out.progress_ms = now.mono_ms;
        } else if now.mono_ms >= out.progress_ms.saturating_add(tuning.resend_ms) {
            out.progress_ms = now.mono_ms;
            out.rewind(VersionVector::default());
        }
        let offered = out.offered.map_or(replica.offered(), |offered| offered.min(replica.offered()));
        let bound = out.bound(own.origin(), offered, durable, tuning.forward_delay_ms, now);
        out.entries_wait = !bound.covers(durable) && !out.sent.covers(durable);
        let mut budget = max_bytes;
        while budget > 0 && !out.sent.covers(&bound) && out.window.is_open(out.in_flight_bytes, tuning.in_flight_bytes)
        {
            let room = out.window.bytes.min(tuning.in_flight_bytes).saturating_sub(out.in_flight_bytes);
            let entries = match replica.entries_for(&out.sent, &bound, tuning.batch_bytes.min(budget).min(room)) {
                Ok(entries) => entries,
                Err(_below_floor) => {
                    turn.messages.push(Message::TooFarBehind { begins: replica.log_base().clone() });
                    turn.events.push(SessionEvent::PeerNeedsSnapshot(peer.member));
                    self.enter(Stage::Snapshot);
                    return;
                }
            };
            if entries.is_empty() {
                break;
            }
            let mut flight = Flight { dots: Vec::with_capacity(entries.len()), bytes: 0 };
            let mut message = Vec::with_capacity(entries.len());
            for entry in &entries {
                let dot = entry.head.dot;
                let encoded = match out.whole_upto.contains(dot) {
                    true => exchange.encode_whole(entry),
                    false => exchange.encode(replica, entry),
                };
                out.sent.advance(dot);
                if dot.origin == own.origin() {
                    // It tells that it is on disk here, together with all that it depends on.
                    out.acked.entry(own.origin()).or_default().advance(dot);
                }
                flight.dots.push(dot);
                flight.bytes += entry.weight();
                self.tally.sent_entry_bytes += encoded.bytes.len() as u64;
                message.push(encoded.bytes.clone());
            }
            self.tally.sent_entries += entries.len() as u64;
            budget = budget.saturating_sub(flight.bytes);
            out.in_flight_bytes += flight.bytes;
            out.in_flight.push_back(flight);
            out.number += 1;
            turn.messages.push(Message::Entries { epoch: out.epoch, number: out.number, entries: message });
        }
    }

    pub(super) fn send_acks(
        &mut self,
        peer: &Peer,
        replica: &Replica,
        durable: &VersionVector,
        now: Now,
        turn: &mut Turn,
    ) {
        let tuning = *self.exchange.tuning();
        let out = &mut self.outgoing;
        out.own_acks_wait = !due(out.own_acks_ms, self.incoming.ack_interval_ms(&tuning), now);
        out.other_acks_wait = !due(out.other_acks_ms, tuning.forward_acks_interval_ms, now);
        if out.own_acks_wait {
            return;
        }
        let own = replica.identity().origin();
        let mut news_of = |member, vector: &VersionVector| {
            let told = out.acked.entry(member).or_default();
            let news = above(vector, told);
            told.merge(&news);
            news
        };
        let own_news = news_of(own, durable);
        let mut acks = vec![];
        if !out.other_acks_wait {
            out.other_acks_ms = Some(now.mono_ms);
            for (member, vector) in replica.acks() {
                let knows = || out.links.contains(&member.replica) || self.incoming.ack_of(*member).covers(vector);
                // What it had before it lost its disk is news to it: it must announce its birth.
                let is_one_of_us = member.replica == own.replica || *member == peer.origin();
                if !is_one_of_us && !knows() {
                    let news = news_of(*member, vector);
                    if !news.is_empty() {
                        acks.push((*member, news));
                    }
                }
            }
        }
        let mut links = self.exchange.links();
        links.retain(|member| *member != peer.member);
        let links = (links != out.links_told).then_some(links);
        if own_news.is_empty() && acks.is_empty() && links.is_none() {
            return;
        }
        if let Some(links) = &links {
            out.links_told.clone_from(links);
        }
        out.own_acks_ms = Some(now.mono_ms);
        self.incoming.told();
        out.number += 1;
        turn.messages.push(Message::Acks(Acks { epoch: out.epoch, number: out.number, own: own_news, acks, links }));
    }
}
