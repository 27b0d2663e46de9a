//! What is sent to the peer: entries that it lacks, and acknowledgements.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::entry::Entry;
use crate::replica::marks::{Ack, Statement};
use crate::replica::turn::Input;
use crate::sync::message::{AckBatch, Message, Part};
use crate::sync::session::Session;
use crate::sync::session::effects::{Round, SessionEvent};
use crate::sync::session::outgoing::{Flight, UnitSent, due};
use crate::sync::session::peer::Peer;
use crate::sync::status::{SessionTally, Stage};
use crate::words::id::Origin;
use crate::words::vector::VersionVector;

/// What is told of a member's marks: all of them where the peer was not told before.
fn tell(told: &mut BTreeMap<Origin, u64>, member: Origin, said: Statement) -> Statement {
    match said.upto {
        Some(_) if told.get(&member).is_none_or(|told| *told < said.version) => {
            told.insert(member, said.version);
            said
        }
        _ => Statement { upto: None, ..said },
    }
}

impl Session {
    /// Which change of the replica's marks is on disk, see [`crate::Marks::version`]. Entries are streamed only when that
    /// is. A session that is not told takes it that all are.
    pub fn set_marks_on_disk(&mut self, version: u64) {
        self.outgoing.marks_on_disk = Some(version);
    }

    /// What to give to the replica when the session ends: it streams no more.
    pub fn end(&self) -> Option<Input> {
        let member = self.peer()?;
        self.outgoing.streams.then(|| self.outgoing.stop(member, self.number))
    }

    /// Whether [`Self::poll`] has something to do that should not wait for [`Self::next_ms`]; cheap to ask. `own` is
    /// the origin of this replica's entries.
    pub fn is_urgent(&self, own: Origin, durable: &VersionVector) -> bool {
        let max_bytes = self.exchange.tuning().in_flight_bytes;
        self.stage != Stage::Open
            || self.wish.is_some()
            || (self.incoming.epoch == 0 && self.asks_ms.is_none())
            || self.incoming.waits()
            || self.prepares()
            || self.outgoing.has_news(own, durable, max_bytes)
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
        if !out.is_asked() {
            return;
        }
        if out.in_flight.is_empty() {
            out.progress_ms = now.mono_ms;
        } else if now.mono_ms >= out.progress_ms.saturating_add(tuning.resend_ms) {
            out.progress_ms = now.mono_ms;
            out.rewind(VersionVector::default());
        }
        let Some(target) = out.may_send(round, peer.origin(), self.number) else { return };
        let streams = out.streams_now;
        let bound = out.bound(own.origin(), durable, tuning.forward_delay_ms, now);
        out.entries_wait = streams && !bound.covers(durable) && !out.sent.covers(durable);
        if streams && out.is_stuck(round, own.origin(), self.last_contact_ms) {
            // What is written over from now on need not be sent.
            round.effects.inputs.push(out.stop(peer.member, self.number));
            (out.streams, out.streams_now) = (false, false);
            return;
        }
        let unit = if out.unit_due {
            replica.entries_for(&out.sent, &target, usize::MAX).map(|entries| {
                (out.unit_due, out.entries_wait) = (false, streams);
                out.unit = Some(UnitSent { entries: entries.into(), first: out.number + 1, target, more: !streams });
            })
        } else {
            Ok(())
        };
        let mut budget = max_bytes;
        while unit.is_ok()
            && budget > 0
            && (out.unit.is_some() || (streams && !out.sent.covers(&bound)))
            && out.window.is_open(out.in_flight_bytes, tuning.in_flight_bytes, now)
        {
            let room = out.window.bytes.min(tuning.in_flight_bytes).saturating_sub(out.in_flight_bytes);
            let max_bytes = tuning.batch_bytes.min(budget).min(room);
            let taken = match &mut out.unit {
                Some(unit) => Ok(unit.take(max_bytes)),
                None => replica.entries_for(&out.sent, &bound, max_bytes),
            };
            let Ok(entries) = taken else {
                self.give_up_entries(round, peer);
                return;
            };
            if out.unit.is_none() {
                let of_step = |entry: &Arc<Entry>| {
                    replica.log().and_then(|log| log.get(entry.head.dot)).is_some_and(|logged| logged.together)
                };
                if entries.iter().any(of_step) {
                    // What came here as one step is passed on as one.
                    out.unit_due = true;
                }
                if entries.is_empty() || out.unit_due {
                    break;
                }
            }
            let part = out.unit.as_ref().map(|unit| Part {
                first: unit.first,
                ends: unit.entries.is_empty(),
                more: unit.more,
            });
            let mut flight = Flight { dots: Vec::with_capacity(entries.len()), bytes: 0, part: None };
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
            out.number += 1;
            let (epoch, number) = (out.epoch, out.number);
            flight.part = part.as_ref().map(|_| number);
            if !entries.is_empty() {
                // The end of a unit without entries is not waited for: a peer that has nothing new acknowledges nothing.
                out.in_flight.push_back(flight);
            }
            if streams {
                // Nothing beyond the mark is sent before that. What is not beyond a mark may not leave any more, and what
                // has left cannot be sent to reach it.
                out.reached.clone_from(durable);
            }
            if let Some(unit) = out.unit.take_if(|unit| unit.entries.is_empty()) {
                out.sent.merge(&unit.target);
            }
            let marks = replica.marks().version();
            round.effects.messages.push(Message::Entries { epoch, number, entries: message, marks, part });
        }
        if unit.is_err() {
            self.give_up_entries(round, peer);
        }
    }

    /// The peer lacks entries that are not here any more.
    fn give_up_entries(&mut self, round: &mut Round<'_>, peer: &Peer) {
        let begins = round.replica.log_base().clone();
        round.effects.messages.push(Message::TooFarBehind { begins });
        round.effects.events.push(SessionEvent::PeerNeedsSnapshot(peer.member));
        self.enter(Stage::Snapshot);
    }

    pub(super) fn send_acks(&mut self, round: &mut Round<'_>, peer: &Peer) {
        let (replica, durable, now) = (round.replica, round.durable, round.now);
        let tuning = *self.exchange.tuning();
        let out = &mut self.outgoing;
        out.own_acks_wait = !due(out.own_acks_ms, self.incoming.ack_interval_ms(&self.exchange), now);
        out.other_acks_wait = !due(out.other_acks_ms, tuning.forward_acks_interval_ms, now);
        if out.own_acks_wait {
            return;
        }
        let own = replica.identity().origin();
        let mut news_of = |member, vector: &VersionVector| {
            let told = out.acked.entry(member).or_default();
            let news = vector.above(told);
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
                let said = replica.said_of(*member).cloned().unwrap_or_default();
                let says_more = said.upto.is_some() && out.said.get(member).is_none_or(|told| *told < said.version);
                if !is_one_of_us && !out.links.contains(&member.replica) && (says_more || !knows()) {
                    let vector = news_of(*member, vector);
                    if says_more || !vector.is_empty() {
                        acks.push(Ack { member: *member, vector, said: tell(&mut out.said, *member, said) });
                    }
                }
            }
        }
        let mut links = self.exchange.links();
        links.retain(|member| *member != peer.member);
        let links = (links != out.links_told).then_some(links);
        let received = self.incoming.number;
        let has_parts = self.incoming.unit.is_some() && received != out.received_told;
        let says_more = out.said.get(&own).is_none_or(|told| *told < replica.marks().version());
        if own_news.is_empty() && acks.is_empty() && links.is_none() && !has_parts && !says_more {
            return;
        }
        let said = tell(&mut out.said, own, replica.said());
        out.received_told = received;
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
            said,
            acks,
            links,
            received,
        }));
    }
}
