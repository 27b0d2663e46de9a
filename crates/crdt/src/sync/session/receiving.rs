//! What arrives from the peer: entries, put into a causal order if need be, and acknowledgements.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;

use crate::entry::Entry;
use crate::replica::Replica;
use crate::replica::marks::{Ack, Statement};
use crate::replica::prepare::Unit;
use crate::replica::prepared::Prepared;
use crate::replica::remote::unknown_rules;
use crate::replica::turn::Input;
use crate::sync::entry_wire;
use crate::sync::error::SyncError;
use crate::sync::exchange::CatchUp;
use crate::sync::message::{AckBatch, Message, Part};
use crate::sync::session::Session;
use crate::sync::session::effects::Round;
use crate::sync::session::incoming::Taken;
use crate::sync::session::peer::Peer;
use crate::sync::session::peer::goes_on_under_a_newer_birth;
use crate::sync::status::Stage;
use crate::words::clock::Now;
use crate::words::id::Dot;

/// How much may wait for what it depends on, bytes as received.
const PARKED_BYTES_MAX: usize = 16 << 20;

/// How often it is looked whether another peer has done with sending what this replica lacks, milliseconds.
const ASK_INTERVAL_MS: u64 = 50;

/// A peer that has no more entries than that which this replica lacks is asked at once, whomever else it asks. Twenty peers,
/// one after the other, would take seconds under load, and each sends nothing that it writes until it is asked.
const LITTLE: u64 = 256;

/// How many messages may arrive before one that was sent before them.
const LATER_MAX: usize = 1024;

/// Whether this build has the engine of all rules that entries declare. The peer would send one that is refused again and
/// again.
fn check_rules(replica: &Replica, entries: &[Entry]) -> Result<(), SyncError> {
    let unknown = |change| unknown_rules(change, replica.engine());
    let unknown = entries.iter().flat_map(|entry| &entry.changes).find_map(unknown);
    unknown.map_or(Ok(()), |error| Err(error.into()))
}

impl Session {
    /// Takes entries, alone or as a part of a unit.
    pub(super) fn take_entries(
        &mut self,
        round: &mut Round<'_>,
        peer: &Peer,
        (epoch, number, part): (u32, u32, Option<Part>),
        marks: u64,
        entries: Vec<Bytes>,
    ) -> Result<(), SyncError> {
        let (replica, durable, now) = (round.replica, round.durable, round.now);
        if replica.is_outlived(peer.member, &peer.births) {
            return Err(SyncError::Outlived(peer.member));
        }
        // What the entries tell of the peer's disk goes with what it says of its marks at the same time.
        self.incoming.hear(peer.origin(), &Statement { version: marks, upto: None });
        self.open_after_all(round, peer);
        if !self.of_this_run(round, epoch) {
            return Ok(());
        }
        if self.stage != Stage::Open {
            self.pass_over(peer, number, entries, now)?;
            self.take_later(round, peer);
            self.open_after_all(round, peer);
            return Ok(());
        }
        let (mut told, mut of_unit, mut unit_bytes) = (false, vec![], 0_usize);
        for bytes in entries {
            let len = bytes.len();
            let entry = entry_wire::decode(bytes)?;
            self.incoming.unacknowledged = self.incoming.unacknowledged.saturating_add(len + entry.expanded_len());
            unit_bytes = unit_bytes.saturating_add(len + entry.expanded_len());
            let dot = entry.head.dot;
            self.outgoing.seen_from_peer(dot);
            told |= dot.origin == peer.origin() && self.incoming.acknowledged_by(dot);
            if self.incoming.known(replica, dot) {
                self.tally.duplicates += 1;
                continue;
            }
            if dot.origin == replica.identity().origin() {
                // Something that this replica does not know it did.
                self.begin_search(round, peer, dot.seq, &[]);
                return Ok(());
            }
            if part.is_some() {
                of_unit.push(entry);
                continue;
            }
            self.incoming.parked_ms.get_or_insert(now.mono_ms);
            self.incoming.parked.push_back((entry, len));
            self.incoming.parked_bytes += len;
        }
        if let Some(part) = part {
            self.incoming.add_part((number, part), of_unit, unit_bytes, now)?;
            self.turn.iter().for_each(|turn| turn.touch(now));
        }
        self.arrived(number, None, now);
        self.take_later(round, peer);
        self.take_unit(round, peer)?;
        if self.incoming.parked_bytes > PARKED_BYTES_MAX {
            round.effects.messages.push(self.ask_again(replica, now, false));
            return Ok(());
        }
        self.take_parked(round, peer)?;
        self.tally.early += self.incoming.parked.len() as u64;
        if told {
            let ack = self.incoming.whole_ack_of(peer.origin());
            self.outgoing.acknowledged(&ack.vector, now);
            // Behind the entries; the replica lets it wait for those that it lacks still.
            round.effects.inputs.push(Input::Acks { own: durable.clone(), acks: vec![ack] });
        }
        Ok(())
    }

    /// Entries that arrive while none are taken. What they tell of the peer's disk counts all the same: acknowledgements
    /// behind them leave it out.
    fn pass_over(&mut self, peer: &Peer, number: u32, entries: Vec<Bytes>, now: Now) -> Result<(), SyncError> {
        for bytes in entries {
            let dot = entry_wire::decode(bytes)?.head.dot;
            if dot.origin == peer.origin() {
                self.incoming.acks.entry(peer.origin()).or_default().advance(dot);
            }
        }
        self.outgoing.acknowledged(self.incoming.ack_of(peer.origin()), now);
        self.incoming.passed_over = true;
        self.arrived(number, None, now);
        Ok(())
    }

    /// Gives a unit to the replica that has arrived whole.
    pub(super) fn take_unit(&mut self, round: &mut Round<'_>, peer: &Peer) -> Result<(), SyncError> {
        let (replica, now) = (round.replica, round.now);
        if let Some(Taken { entries, no_base }) = self.incoming.take_unit(replica, now, &mut self.tally)? {
            if no_base {
                self.tally.missing_bases += 1;
                round.effects.messages.push(self.ask_again(replica, now, true));
                return Ok(());
            }
            self.incoming.preparing = Some(Unit::new(replica, entries));
        }
        let Some(unit) = &mut self.incoming.preparing else { return Ok(()) };
        self.turn.iter().for_each(|turn| turn.touch(now));
        let is_done = unit.go_on(replica, self.exchange.tuning().prepared_keys);
        let Some(unit) = self.incoming.preparing.take_if(|_| is_done) else { return Ok(()) };
        let (entries, prepared) = unit.done();
        entries.iter().for_each(|entry| self.incoming.handed.advance(entry.head.dot));
        self.hand_over(round, peer, entries, Some(prepared))
    }

    /// Whether a unit is being prepared. Then the next look should come at once, after others had a turn.
    pub fn prepares(&self) -> bool {
        self.stage == Stage::Open && self.incoming.preparing.is_some()
    }

    /// Gives entries to the replica; as one step where something was prepared for it.
    fn hand_over(
        &mut self,
        round: &mut Round<'_>,
        peer: &Peer,
        entries: Vec<Entry>,
        together: Option<Prepared>,
    ) -> Result<(), SyncError> {
        self.tally.received_entries += entries.len() as u64;
        check_rules(round.replica, &entries)?;
        if !entries.is_empty() {
            let (from, births) = (peer.member, Arc::clone(&peer.births));
            round.effects.inputs.push(Input::Entries { from, births, entries, together });
        }
        Ok(())
    }

    /// Asks the peer for what this replica lacks, once no other peer is being asked. Asks again when nothing comes.
    pub(super) fn ask_for_unit(&mut self, round: &mut Round<'_>, peer: &Peer) {
        let (replica, now) = (round.replica, round.now);
        let patience_ms = self.exchange.tuning().patience_ms;
        let inc = &self.incoming;
        if inc.epoch == 0 {
            let lacks = |dot: Dot| dot.seq.saturating_sub(replica.vector().get(dot.origin));
            let lacks_little = self.outgoing.theirs().iter().map(lacks).sum::<u64>() <= LITTLE;
            self.turn = (!lacks_little).then(|| CatchUp::begin(&self.exchange, peer.member, now)).flatten();
            if lacks_little || self.turn.is_some() {
                round.effects.messages.push(self.ask_again(replica, now, false));
            } else {
                self.asks_ms = Some(now.mono_ms.saturating_add(ASK_INTERVAL_MS));
            }
        } else if inc.unit_ms.is_some_and(|since| now.mono_ms >= since.saturating_add(patience_ms)) {
            round.effects.messages.push(self.ask_again(replica, now, false));
        } else if inc.unit_ms.is_none() && inc.preparing.is_none() && replica.vector().covers(&inc.handed) {
            self.turn = None;
        }
    }

    /// Gives those entries to the replica that have all they depend on.
    pub(super) fn take_parked(&mut self, round: &mut Round<'_>, peer: &Peer) -> Result<(), SyncError> {
        let (replica, now) = (round.replica, round.now);
        let inc = &mut self.incoming;
        inc.forget_applied(replica);
        if inc.parked.is_empty() {
            return Ok(());
        }
        if inc.preparing.is_some() {
            // They come behind the unit.
            inc.parked_ms = Some(now.mono_ms);
            return Ok(());
        }
        if replica.is_outlived(peer.member, &peer.births) {
            return Err(SyncError::Outlived(peer.member));
        }
        let Taken { entries, no_base } = inc.take_ready(replica, now, &mut self.tally)?;
        self.hand_over(round, peer, entries, None)?;
        let patience_ms = self.exchange.tuning().patience_ms;
        let impatient = self.incoming.parked_ms.is_some_and(|since| now.mono_ms >= since.saturating_add(patience_ms));
        if no_base {
            self.tally.missing_bases += 1;
            round.effects.messages.push(self.ask_again(replica, now, true));
        } else if impatient && !self.incoming.waits_once_more(replica, &self.exchange.links(), now) {
            round.effects.messages.push(self.ask_again(replica, now, false));
        }
        Ok(())
    }

    /// Asks for everything from here on.
    pub(super) fn ask_again(&mut self, replica: &Replica, now: Now, whole: bool) -> Message {
        let inc = &mut self.incoming;
        inc.epoch += 1;
        inc.number = 0;
        inc.later.clear();
        inc.later_ms = None;
        inc.parked.clear();
        inc.parked_ms = None;
        inc.parked_bytes = 0;
        (inc.unit, inc.preparing) = (None, None);
        inc.unit_ms = Some(now.mono_ms);
        // The first time is no repetition.
        self.tally.again += u64::from(inc.epoch > 1);
        let mut have = replica.vector().clone();
        have.merge(&inc.handed);
        let floor = replica.log().map(|_| replica.floor().clone()).unwrap_or_default();
        let again = Message::Again { epoch: inc.epoch, have, whole, floor };
        inc.asked = Some((again.clone(), now.mono_ms));
        again
    }

    /// Whether a message is of the run that was asked for last.
    fn of_this_run(&mut self, round: &mut Round<'_>, epoch: u32) -> bool {
        let now = round.now;
        let inc = &mut self.incoming;
        if epoch == inc.epoch {
            inc.asked = None;
            return true;
        }
        let patience_ms = self.exchange.tuning().patience_ms;
        if let Some((again, at_ms)) = &mut inc.asked
            && now.mono_ms >= at_ms.saturating_add(patience_ms)
        {
            *at_ms = now.mono_ms;
            round.effects.messages.push(again.clone());
        }
        false
    }

    pub(super) fn take_acks(&mut self, round: &mut Round<'_>, peer: &Peer, acks: AckBatch) {
        let (_replica, _durable, now) = (round.replica, round.durable, round.now);
        if !self.of_this_run(round, acks.epoch) {
            return;
        }
        self.outgoing.arrived(acks.received, now);
        self.arrived(acks.number, Some(acks), now);
        self.take_later(round, peer);
        self.open_after_all(round, peer);
    }

    /// Notes that a message arrived, in or out of order.
    fn arrived(&mut self, number: u32, acks: Option<AckBatch>, now: Now) {
        let inc = &mut self.incoming;
        if number <= inc.number {
            return;
        }
        inc.later_ms.get_or_insert(now.mono_ms);
        inc.later.entry(number).or_insert(acks);
    }

    /// Takes the acknowledgements before which nothing is missing.
    pub(super) fn take_later(&mut self, round: &mut Round<'_>, peer: &Peer) {
        let (replica, durable, now) = (round.replica, round.durable, round.now);
        let inc = &mut self.incoming;
        let mut changed = BTreeSet::new();
        while let Some(acks) = inc.later.remove(&(inc.number + 1)) {
            inc.number += 1;
            inc.later_ms = (!inc.later.is_empty()).then_some(now.mono_ms);
            let Some(acks) = acks else { continue };
            let own = Ack { member: peer.origin(), vector: acks.own, said: acks.said };
            for Ack { member, vector, said } in [own].into_iter().chain(acks.acks) {
                inc.acks.entry(member).or_default().merge(&vector);
                if inc.hear(member, &said) || !vector.is_empty() {
                    changed.insert(member);
                }
            }
            if let Some(links) = acks.links {
                self.outgoing.set_links(links);
            }
        }
        if changed.contains(&peer.origin()) {
            self.outgoing.acknowledged(inc.ack_of(peer.origin()), now);
        }
        changed.retain(|origin| *origin != replica.identity().origin());
        if !changed.is_empty() {
            let acks = changed.iter().map(|member| inc.whole_ack_of(*member)).collect();
            round.effects.inputs.push(Input::Acks { own: durable.clone(), acks });
        }
        let patience_ms = self.exchange.tuning().patience_ms;
        let overdue = inc.later_ms.is_some_and(|since| now.mono_ms >= since.saturating_add(patience_ms));
        if overdue || inc.later.len() > LATER_MAX {
            round.effects.messages.push(self.ask_again(replica, now, false));
        }
    }

    /// A greeting can be overtaken by what its sender told in another session since. Then it only looked as if a
    /// history were lost or a snapshot needed. The sender goes on as if nothing were.
    pub(super) fn open_after_all(&mut self, round: &mut Round<'_>, peer: &Peer) {
        let (replica, durable, now) = (round.replica, round.durable, round.now);
        let theirs = self.outgoing.theirs();
        let had = replica.acks().get(&peer.origin());
        let reachable = replica.has_told(theirs, replica.floor())
            && had.is_none_or(|had| theirs.covers(had))
            && replica.vector().covers(&peer.begins);
        let retry = match self.stage {
            _ if goes_on_under_a_newer_birth(replica.vector(), peer.origin()) => false,
            Stage::PeerLostTail => true,
            Stage::Snapshot => reachable,
            _ => false,
        };
        if retry {
            self.enter(Stage::Open);
            // What it said when it greeted counts from now on.
            let ack = self.incoming.whole_ack_of(peer.origin());
            round.effects.inputs.push(Input::Acks { own: durable.clone(), acks: vec![ack] });
            if std::mem::take(&mut self.incoming.passed_over) {
                round.effects.messages.push(self.ask_again(replica, now, false));
            }
        }
    }
}
