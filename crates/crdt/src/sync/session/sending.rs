//! What is sent to the peer: entries that it lacks, and acknowledgements.

use std::sync::Arc;

use crate::sync::message::{AckBatch, Message};
use crate::sync::session::Session;
use crate::sync::session::effects::{Round, SessionEvent};
use crate::sync::session::outgoing::{Flight, above, due};
use crate::sync::session::peer::Peer;
use crate::sync::status::{SessionTally, Stage};
use crate::words::id::Origin;
use crate::words::vector::VersionVector;

impl Session {
    /// Whether the peer would be sent more entries if there were any. While no session's peer would, entries need no
    /// mark that they were offered ([`crate::replica::Input::Offer`]). It is better not to mark them: what was not
    /// offered and is written over need never be sent.
    pub fn takes_entries(&self) -> bool {
        self.stage == Stage::Open && self.outgoing.has_room(self.exchange.tuning().in_flight_bytes)
    }

    /// Up to which of the replica's own entries the mark that they were offered is on disk: those behind it are not
    /// sent. Where the mark is always made before the entry is durable this need not be told.
    pub fn set_offered(&mut self, seq: u64) {
        self.outgoing.offered = Some(seq);
    }

    /// Whether [`Self::poll`] has something to do that should not wait for [`Self::next_ms`]; cheap to ask. `own` is
    /// the origin of this replica's entries. Those up to `offered` are marked as offered.
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

    pub(super) fn send_entries(&mut self, round: &mut Round<'_>, peer: &Peer, max_bytes: usize) {
        let (replica, durable, now) = (round.replica, round.durable, round.now);
        let (exchange, tuning) = (Arc::clone(&self.exchange), *self.exchange.tuning());
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
                    round.effects.messages.push(Message::TooFarBehind { begins: replica.log_base().clone() });
                    round.effects.events.push(SessionEvent::PeerNeedsSnapshot(peer.member));
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
            round.effects.messages.push(Message::Entries { epoch: out.epoch, number: out.number, entries: message });
        }
    }

    pub(super) fn send_acks(&mut self, round: &mut Round<'_>, peer: &Peer) {
        let (replica, durable, now) = (round.replica, round.durable, round.now);
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
        round.effects.messages.push(Message::Acks(AckBatch {
            epoch: out.epoch,
            number: out.number,
            own: own_news,
            acks,
            links,
        }));
    }
}
