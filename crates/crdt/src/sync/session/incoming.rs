//! What arrives from the peer: entries, put into a causal order if need be, and who has what.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;

use crate::entry::ChangeKind;
use crate::replica::Replica;
use crate::replica::turn::Input;
use crate::sync::delta;
use crate::sync::entry_wire::{self, Received, Unresolved};
use crate::sync::error::{DecodeError, SyncError};
use crate::sync::exchange::Tuning;
use crate::sync::message::{Acks, Message};
use crate::sync::session::{Peer, Session, Turn};
use crate::sync::status::Stage;
use crate::words::clock::Now;
use crate::words::id::{Dot, Origin};
use crate::words::key::Key;
use crate::words::vector::VersionVector;

/// How much may wait for what it depends on, bytes as received.
const PARKED_BYTES_MAX: usize = 16 << 20;

/// How much the deltas of entries that are resolved at once may give together, unless it is a single entry, bytes. A
/// sender counts a megabyte before deltas per message, and a few of these may have been waiting.
const EXPANDED_BYTES_MAX: usize = 256 << 20;

/// How many messages may arrive before one that was sent before them.
const LATER_MAX: usize = 1024;

/// How many bytes of values are kept as bases until the replica has applied them.
const RECENT_BYTES_MAX: usize = 8 << 20;

/// Values that were received and may not be applied yet.
#[derive(Debug, Default)]
struct Recent {
    values: HashMap<u128, Bytes>,
    order: VecDeque<u128>,
    bytes: usize,
}

impl Recent {
    fn add(&mut self, value: &Bytes) {
        let hash = delta::hash(value);
        if self.values.insert(hash, value.clone()).is_some() {
            return;
        }
        self.order.push_back(hash);
        self.bytes += value.len();
        while self.bytes > RECENT_BYTES_MAX {
            let Some(gone) = self.order.pop_front().and_then(|hash| self.values.remove(&hash)) else { break };
            self.bytes -= gone.len();
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Incoming {
    /// What was given to the replica, which may not have applied it yet.
    handed: VersionVector,
    /// The number of the run of entries that is awaited.
    epoch: u32,
    /// What was asked for with it, and when; repeated while only older runs arrive.
    asked: Option<(Message, u64)>,
    /// How much arrived since this replica told what it has, bytes of entries before deltas.
    unacknowledged: usize,
    parked: VecDeque<(Received, usize)>,
    parked_bytes: usize,
    /// Since when the first of them has been waiting.
    parked_ms: u64,
    recent: Recent,
    /// All messages of the run up to this number have arrived.
    number: u32,
    /// Whether entries arrived while none were taken.
    passed_over: bool,
    /// Those behind it that have: acknowledgements wait for all that came before them.
    later: BTreeMap<u32, Option<Acks>>,
    /// Since when the first of them has been waiting.
    later_ms: u64,
    acks: BTreeMap<Origin, VersionVector>,
    nothing: VersionVector,
}

/// Who has sent so much may be waiting for an acknowledgement: a part of the smallest window.
const EAGER_BYTES: usize = 16 << 10;

impl Incoming {
    pub fn meet(&mut self, member: Origin, vector: &VersionVector) {
        self.acks.insert(member, vector.clone());
    }

    /// What the peer told that a member has.
    pub fn ack_of(&self, member: Origin) -> &VersionVector {
        self.acks.get(&member).unwrap_or(&self.nothing)
    }

    /// How long to wait between two acknowledgements, milliseconds: whoever sends little does not wait for them.
    pub fn ack_interval_ms(&self, tuning: &Tuning) -> u64 {
        if self.unacknowledged >= EAGER_BYTES { tuning.ack_interval_ms } else { tuning.lazy_ack_interval_ms }
    }

    /// This replica told what it has.
    pub fn told(&mut self) {
        self.unacknowledged = 0;
    }

    /// Whether something waits for entries or messages that come another way.
    pub fn waits(&self) -> bool {
        !self.parked.is_empty() || !self.later.is_empty()
    }

    /// What was given to the replica did not get there.
    pub fn forget(&mut self) {
        self.handed = VersionVector::default();
    }

    /// When the patience with what is missing ends, milliseconds of the monotonic clock.
    pub fn next_ms(&self, patience_ms: u64) -> Option<u64> {
        let parked = (!self.parked.is_empty()).then_some(self.parked_ms);
        let later = (!self.later.is_empty()).then_some(self.later_ms);
        parked.into_iter().chain(later).min().map(|since| since.saturating_add(patience_ms))
    }

    fn known(&self, replica: &Replica, dot: Dot) -> bool {
        self.handed.contains(dot) || replica.vector().contains(dot)
    }

    /// Whether all that the entry depends on is here.
    fn ready(&self, replica: &Replica, entry: &Received) -> bool {
        let head = &entry.head;
        let before = Dot { seq: head.first_seq - 1, ..head.dot };
        self.known(replica, before) && head.depends.iter().all(|dot| self.known(replica, dot))
    }
}

impl Session {
    #[expect(clippy::too_many_arguments, reason = "one place unpacks the message")]
    pub(super) fn take_entries(
        &mut self,
        peer: &Peer,
        replica: &Replica,
        durable: &VersionVector,
        now: Now,
        (epoch, number): (u32, u32),
        entries: Vec<Bytes>,
        turn: &mut Turn,
    ) -> Result<(), SyncError> {
        if replica.is_outlived(peer.member, &peer.births) {
            return Err(SyncError::Outlived(peer.member));
        }
        self.open_after_all(peer, replica, durable, now, turn);
        if !self.of_this_run(epoch, now, turn) {
            return Ok(());
        }
        if self.stage != Stage::Open {
            self.pass_over(peer, number, entries, now)?;
            self.take_later(peer, replica, durable, now, turn);
            self.open_after_all(peer, replica, durable, now, turn);
            return Ok(());
        }
        let mut told = false;
        for bytes in entries {
            let len = bytes.len();
            let entry = entry_wire::decode(bytes)?;
            self.incoming.unacknowledged += len + entry.expanded_len();
            let dot = entry.head.dot;
            self.outgoing.seen_from_peer(dot);
            if dot.origin == peer.origin() {
                // Its own entries are on its disk, with all that they depend on: as good as an acknowledgement. It counts
                // from now on, whether the entry has to wait or came another way before: what the peer acknowledges
                // next leaves it out.
                let ack = self.incoming.acks.entry(peer.origin()).or_default();
                told |= !ack.contains(dot);
                ack.advance(dot);
            }
            if self.incoming.known(replica, dot) {
                self.tally.duplicates += 1;
                continue;
            }
            if dot.origin == replica.identity().origin() {
                // Something that this replica does not know it did.
                self.begin_search(peer, replica, dot.seq, &[], turn);
                return Ok(());
            }
            if self.incoming.parked.is_empty() {
                self.incoming.parked_ms = now.mono_ms;
            }
            self.incoming.parked.push_back((entry, len));
            self.incoming.parked_bytes += len;
        }
        self.arrived(number, None, now);
        self.take_later(peer, replica, durable, now, turn);
        if self.incoming.parked_bytes > PARKED_BYTES_MAX {
            turn.messages.push(self.ask_again(replica, now, false));
            return Ok(());
        }
        self.take_parked(peer, replica, now, turn)?;
        self.tally.early += self.incoming.parked.len() as u64;
        if told {
            let ack = self.incoming.ack_of(peer.origin()).clone();
            self.outgoing.acknowledged(&ack, now);
            // Behind the entries; the replica lets it wait for those that it lacks still.
            turn.inputs.push(Input::Acks { own: durable.clone(), acks: vec![(peer.origin(), ack)] });
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

    /// Gives those entries to the replica that have all they depend on.
    pub(super) fn take_parked(
        &mut self,
        peer: &Peer,
        replica: &Replica,
        now: Now,
        turn: &mut Turn,
    ) -> Result<(), SyncError> {
        let inc = &mut self.incoming;
        if inc.parked.is_empty() {
            return Ok(());
        }
        if replica.is_outlived(peer.member, &peer.births) {
            return Err(SyncError::Outlived(peer.member));
        }
        let (mut entries, mut waiting) = (Vec::with_capacity(inc.parked.len()), VecDeque::new());
        let (mut expanded, mut no_base) = (0, false);
        // The peer sends in causal order, so that one pass finds all that can be taken.
        while let Some((entry, len)) = inc.parked.pop_front() {
            let dot = entry.head.dot;
            if inc.known(replica, dot) {
                self.tally.duplicates += 1;
                inc.parked_bytes -= len;
                continue;
            }
            let sum = entry.expanded_len().saturating_add(expanded);
            if !inc.ready(replica, &entry) || (sum > EXPANDED_BYTES_MAX && !entries.is_empty()) {
                waiting.push_back((entry, len));
                continue;
            }
            let recent = &inc.recent.values;
            let find = |keyspace, key: &Key, hash| {
                recent.get(&hash).cloned().or_else(|| replica.value_by_hash(keyspace, key, hash))
            };
            let entry = match entry.resolve(find) {
                Ok(entry) => entry,
                Err(Unresolved::NoBase) => {
                    no_base = true;
                    break;
                }
                Err(Unresolved::Damaged(error)) => return Err(DecodeError::Delta(error).into()),
            };
            expanded = sum;
            inc.parked_bytes -= len;
            inc.parked_ms = now.mono_ms;
            for change in &entry.changes {
                if let ChangeKind::Put { value, .. } = &change.kind {
                    inc.recent.add(value);
                }
            }
            inc.handed.advance(dot);
            entries.push(entry);
        }
        inc.parked = waiting;
        self.tally.received_entries += entries.len() as u64;
        if !entries.is_empty() {
            turn.inputs.push(Input::Entries { from: peer.member, births: Arc::clone(&peer.births), entries });
        }
        let impatient = now.mono_ms >= self.incoming.parked_ms.saturating_add(self.exchange.tuning().patience_ms);
        if no_base {
            self.tally.missing_bases += 1;
            turn.messages.push(self.ask_again(replica, now, true));
        } else if !self.incoming.parked.is_empty() && impatient {
            turn.messages.push(self.ask_again(replica, now, false));
        }
        Ok(())
    }

    /// Asks for everything from here on.
    pub(super) fn ask_again(&mut self, replica: &Replica, now: Now, whole: bool) -> Message {
        let inc = &mut self.incoming;
        inc.epoch += 1;
        inc.number = 0;
        inc.later.clear();
        inc.parked.clear();
        inc.parked_bytes = 0;
        self.tally.again += 1;
        let mut have = replica.vector().clone();
        have.merge(&inc.handed);
        let again = Message::Again { epoch: inc.epoch, have, whole };
        inc.asked = Some((again.clone(), now.mono_ms));
        again
    }

    /// Whether a message is of the run that was asked for last.
    fn of_this_run(&mut self, epoch: u32, now: Now, turn: &mut Turn) -> bool {
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
            turn.messages.push(again.clone());
        }
        false
    }

    pub(super) fn take_acks(
        &mut self,
        peer: &Peer,
        replica: &Replica,
        durable: &VersionVector,
        now: Now,
        acks: Acks,
        turn: &mut Turn,
    ) {
        if !self.of_this_run(acks.epoch, now, turn) {
            return;
        }
        self.arrived(acks.number, Some(acks), now);
        self.take_later(peer, replica, durable, now, turn);
        self.open_after_all(peer, replica, durable, now, turn);
    }

    /// Notes that a message arrived, in or out of order.
    fn arrived(&mut self, number: u32, acks: Option<Acks>, now: Now) {
        let inc = &mut self.incoming;
        if number <= inc.number {
            return;
        }
        if inc.later.is_empty() {
            inc.later_ms = now.mono_ms;
        }
        inc.later.entry(number).or_insert(acks);
    }

    /// Takes the acknowledgements before which nothing is missing.
    pub(super) fn take_later(
        &mut self,
        peer: &Peer,
        replica: &Replica,
        durable: &VersionVector,
        now: Now,
        turn: &mut Turn,
    ) {
        let inc = &mut self.incoming;
        let mut changed = BTreeSet::new();
        while let Some(acks) = inc.later.remove(&(inc.number + 1)) {
            inc.number += 1;
            inc.later_ms = now.mono_ms;
            let Some(acks) = acks else { continue };
            for (member, news) in [(peer.origin(), acks.own)].into_iter().chain(acks.acks) {
                if news.is_empty() {
                    continue;
                }
                inc.acks.entry(member).or_default().merge(&news);
                changed.insert(member);
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
            let acks = changed.iter().map(|member| (*member, inc.ack_of(*member).clone())).collect();
            turn.inputs.push(Input::Acks { own: durable.clone(), acks });
        }
        let patience_ms = self.exchange.tuning().patience_ms;
        let overdue = now.mono_ms >= inc.later_ms.saturating_add(patience_ms);
        if !inc.later.is_empty() && (overdue || inc.later.len() > LATER_MAX) {
            turn.messages.push(self.ask_again(replica, now, false));
        }
    }

    /// A greeting can be overtaken by what its sender told in another session since: then it only looked as if a
    /// history were lost or a snapshot needed, and the sender goes on as if nothing were.
    pub(super) fn open_after_all(
        &mut self,
        peer: &Peer,
        replica: &Replica,
        durable: &VersionVector,
        now: Now,
        turn: &mut Turn,
    ) {
        let theirs = self.outgoing.theirs();
        let had = replica.acks().get(&peer.origin());
        let reachable = theirs.covers(replica.log_base())
            && had.is_none_or(|had| theirs.covers(had))
            && replica.vector().covers(&peer.begins);
        let retry = match self.stage {
            Stage::PeerLostTail => true,
            Stage::Snapshot => reachable,
            _ => false,
        };
        if retry {
            self.enter(Stage::Open);
            // What it said when it greeted counts from now on.
            let ack = self.incoming.ack_of(peer.origin()).clone();
            turn.inputs.push(Input::Acks { own: durable.clone(), acks: vec![(peer.origin(), ack)] });
            if std::mem::take(&mut self.incoming.passed_over) {
                turn.messages.push(self.ask_again(replica, now, false));
            }
        }
    }
}
