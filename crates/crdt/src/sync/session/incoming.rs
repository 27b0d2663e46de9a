//! What has arrived from the peer and is not done with.

use std::collections::{BTreeMap, HashMap, VecDeque};

use bytes::Bytes;

use crate::entry::{ChangeKind, Entry};
use crate::replica::Replica;
use crate::replica::marks::{Ack, Statement};
use crate::replica::prepare::Unit;
use crate::sync::delta;
use crate::sync::entry_wire::{Received, Unresolved};
use crate::sync::exchange::Exchange;
use crate::sync::message::{AckBatch, Message, Part};
use crate::sync::status::SessionTally;
use crate::sync::wire::DecodeError;
use crate::words::clock::Now;
use crate::words::id::{Dot, Origin, ReplicaId};
use crate::words::key::Key;
use crate::words::vector::VersionVector;

/// How many bytes of values are kept as bases until the replica has applied them.
const RECENT_BYTES_MAX: usize = 8 << 20;

/// How many are kept once it has. It knows what its keys are itself; what a client here wrote over meanwhile it may know no
/// more. There is a session with each member, so this counts many times.
const APPLIED_BYTES_MAX: usize = 256 << 10;

/// How much the deltas of entries that are resolved at once may give together, unless it is a single entry, bytes. A
/// sender counts a megabyte before deltas per message, and a few of these may have been waiting.
const EXPANDED_BYTES_MAX: usize = 256 << 20;

/// How many times entries wait once more for what comes from other members.
const WAITS_MAX: u32 = 12;

/// What could be taken of what waited.
pub(super) struct Taken {
    /// Entries for the replica, in causal order.
    pub(super) entries: Vec<Entry>,
    /// A delta was met whose base is not here. What came behind it was dropped.
    pub(super) no_base: bool,
}

/// Values that were received and may not be applied yet.
#[derive(Debug, Default)]
pub(super) struct Recent {
    pub(super) values: HashMap<u128, Bytes>,
    pub(super) order: VecDeque<u128>,
    pub(super) bytes: usize,
}

impl Recent {
    pub(super) fn add(&mut self, value: &Bytes) {
        let hash = delta::hash(value);
        if self.values.insert(hash, value.clone()).is_some() {
            return;
        }
        self.order.push_back(hash);
        self.bytes += value.len();
        self.shrink(RECENT_BYTES_MAX);
    }

    /// Lets the oldest values go until there are at most so many bytes.
    fn shrink(&mut self, max: usize) {
        while self.bytes > max {
            let Some(gone) = self.order.pop_front().and_then(|hash| self.values.remove(&hash)) else { break };
            self.bytes -= gone.len();
        }
    }
}

/// What has arrived of a unit.
#[derive(Debug)]
pub(super) struct UnitReceived {
    /// The number of the message with its first part.
    pub(super) first: u32,
    /// The number of that with its last, once it is here.
    pub(super) last: Option<u32>,
    /// Whether another one follows.
    pub(super) more: bool,
    /// Parts before which one is missing.
    pub(super) parts: BTreeMap<u32, Vec<Received>>,
    /// The entries of all parts before these, their deltas resolved.
    pub(super) entries: Vec<Entry>,
    /// Their values: one can be the base of another one that comes later.
    pub(super) values: HashMap<u128, Bytes>,
    pub(super) bytes: usize,
}

/// How many bytes a unit may have, as received and with its deltas resolved.
const UNIT_BYTES_MAX: usize = 2 << 30;

impl UnitReceived {
    fn new(first: u32) -> Self {
        let (parts, values) = (BTreeMap::new(), HashMap::new());
        Self { first, last: None, more: false, parts, entries: vec![], values, bytes: 0 }
    }

    /// Whether all of it is here, where all messages up to that number are. Acknowledgements come between its parts.
    fn is_whole(&self, number: u32) -> bool {
        self.last.is_some_and(|last| last <= number)
    }
}

#[derive(Debug, Default)]
pub(super) struct Incoming {
    /// What was given to the replica, which may not have applied it yet.
    pub(super) handed: VersionVector,
    /// The number of the run of entries that is awaited.
    pub(super) epoch: u32,
    /// What was asked for with it, and when; repeated while only older runs arrive.
    pub(super) asked: Option<(Message, u64)>,
    /// How much arrived since this replica told what it has, bytes of entries before deltas.
    pub(super) unacknowledged: usize,
    pub(super) parked: VecDeque<(Received, usize)>,
    pub(super) parked_bytes: usize,
    /// Since when the first of them has been waiting, milliseconds of the monotonic clock; none when none waits.
    pub(super) parked_ms: Option<u64>,
    /// How many times the patience with it was over and it [waits once more](Self::waits_once_more).
    pub(super) waited: u32,
    pub(super) recent: Recent,
    /// The unit that is on its way.
    pub(super) unit: Option<UnitReceived>,
    /// One that has arrived whole and is being prepared.
    pub(super) preparing: Option<Unit>,
    /// When the peer was asked for a unit that has not arrived whole, or when a part of it arrived last; milliseconds of the
    /// monotonic clock.
    pub(super) unit_ms: Option<u64>,
    /// All messages of the run up to this number have arrived.
    pub(super) number: u32,
    /// Whether entries arrived while none were taken.
    pub(super) passed_over: bool,
    /// Those behind it that have: acknowledgements wait for all that came before them.
    pub(super) later: BTreeMap<u32, Option<AckBatch>>,
    /// Since when the first of them has been waiting, milliseconds of the monotonic clock; none when none waits.
    pub(super) later_ms: Option<u64>,
    pub(super) acks: BTreeMap<Origin, VersionVector>,
    /// What members said of their marks with that, or later.
    pub(super) said: BTreeMap<Origin, Statement>,
    pub(super) nothing: VersionVector,
}

/// How much longer each linked member lets acknowledgements wait that nobody waits for, milliseconds.
const LAZY_ACK_MS_PER_LINK: u64 = 10;

/// A peer that has sent this much may be waiting for an acknowledgement: a part of the smallest limit in flight, bytes.
const EAGER_BYTES: usize = 16 << 10;

impl Incoming {
    pub(super) fn meet(&mut self, member: Origin, vector: &VersionVector, marks: u64) {
        self.acks.insert(member, vector.clone());
        self.said.insert(member, Statement { version: marks, upto: None });
    }

    /// A member said something of its marks. Tells whether that is new.
    pub(super) fn hear(&mut self, member: Origin, said: &Statement) -> bool {
        self.said.entry(member).or_default().follow(said)
    }

    /// What the peer told that a member has, as the replica is told it.
    pub(super) fn whole_ack_of(&self, member: Origin) -> Ack {
        let said = self.said.get(&member).cloned().unwrap_or_default();
        Ack { member, vector: self.ack_of(member).clone(), said }
    }

    /// Takes an entry of the peer's own for an acknowledgement; returns whether that was news. It is on the peer's disk, with
    /// all that it depends on. It counts from now on, whether the entry has to wait or came another way before: what the
    /// peer acknowledges next leaves it out.
    pub(super) fn acknowledged_by(&mut self, dot: Dot) -> bool {
        let ack = self.acks.entry(dot.origin).or_default();
        let news = !ack.contains(dot);
        ack.advance(dot);
        news
    }

    /// What the peer told that a member has.
    pub(super) fn ack_of(&self, member: Origin) -> &VersionVector {
        self.acks.get(&member).unwrap_or(&self.nothing)
    }

    /// How long to wait between two acknowledgements, milliseconds. A peer that sends little does not wait for them, so they may
    /// be the rarer, the more of them there are: of N members each acknowledges to each other one.
    pub(super) fn ack_interval_ms(&self, exchange: &Exchange) -> u64 {
        let tuning = exchange.tuning();
        match self.unacknowledged {
            EAGER_BYTES.. => tuning.ack_interval_ms,
            _ => tuning.lazy_ack_interval_ms.max(LAZY_ACK_MS_PER_LINK * exchange.link_count()),
        }
    }

    /// This replica told what it has.
    pub(super) fn told(&mut self) {
        self.unacknowledged = 0;
    }

    /// Whether something waits for entries or messages that come another way.
    pub(super) fn waits(&self) -> bool {
        !self.parked.is_empty() || !self.later.is_empty()
    }

    /// Lets go of received values once the replica has applied all that it was given.
    pub(super) fn forget_applied(&mut self, replica: &Replica) {
        if self.recent.bytes > APPLIED_BYTES_MAX && replica.vector().covers(&self.handed) {
            self.recent.shrink(APPLIED_BYTES_MAX);
            // Not after each message: it would be copied each time.
            if self.recent.values.capacity() > 4 * self.recent.values.len() {
                self.recent.values.shrink_to_fit();
                self.recent.order.shrink_to_fit();
            }
        }
    }

    /// What was given to the replica did not get there.
    pub(super) fn forget(&mut self) {
        self.handed = VersionVector::default();
    }

    /// When the patience with what is missing ends, milliseconds of the monotonic clock.
    pub(super) fn next_ms(&self, patience_ms: u64) -> Option<u64> {
        if self.preparing.is_some() {
            return Some(0);
        }
        let since = [self.parked_ms, self.later_ms, self.unit_ms].into_iter().flatten().min()?;
        Some(since.saturating_add(patience_ms))
    }

    pub(super) fn known(&self, replica: &Replica, dot: Dot) -> bool {
        self.handed.contains(dot) || replica.vector().contains(dot)
    }

    /// Takes out of those that wait what all is here for that it depends on, and resolves its deltas.
    ///
    /// # Errors
    /// When a delta is damaged.
    pub(super) fn take_ready(
        &mut self,
        replica: &Replica,
        now: Now,
        tally: &mut SessionTally,
    ) -> Result<Taken, DecodeError> {
        // Where nothing can be taken, nothing is moved: under load thousands may wait, and this is asked with each message.
        let mut waits = Vec::new();
        let is_first = |(entry, _): &(Received, usize)| !self.stays(replica, entry, &mut waits);
        let Some(first) = self.parked.iter().position(is_first) else {
            return Ok(Taken { entries: vec![], no_base: false });
        };
        let mut rest = self.parked.split_off(first);
        let mut waiting = std::mem::take(&mut self.parked);
        let mut taken = Taken { entries: Vec::with_capacity(rest.len()), no_base: false };
        let mut expanded = 0;
        // The peer sends in causal order, so that one pass finds all that can be taken.
        while let Some((entry, len)) = rest.pop_front() {
            let dot = entry.head.dot;
            if self.stays(replica, &entry, &mut waits) {
                waiting.push_back((entry, len));
                continue;
            }
            if self.known(replica, dot) {
                tally.duplicates += 1;
                self.parked_bytes -= len;
                continue;
            }
            let sum = entry.expanded_len().saturating_add(expanded);
            if sum > EXPANDED_BYTES_MAX && !taken.entries.is_empty() {
                waits.push(dot);
                waiting.push_back((entry, len));
                continue;
            }
            let recent = &self.recent.values;
            let find = |keyspace, key: &Key, hash| {
                recent.get(&hash).cloned().or_else(|| replica.value_by_hash(keyspace, key, hash))
            };
            let entry = match entry.resolve(find) {
                Ok(entry) => entry,
                Err(Unresolved::NoBase) => {
                    taken.no_base = true;
                    break;
                }
                Err(Unresolved::Damaged(error)) => return Err(DecodeError::Delta(error)),
            };
            expanded = sum;
            self.parked_bytes -= len;
            (self.parked_ms, self.waited) = (Some(now.mono_ms), 0);
            for change in &entry.changes {
                if let ChangeKind::Put { value, .. } = &change.kind {
                    self.recent.add(value);
                }
            }
            self.handed.advance(dot);
            taken.entries.push(entry);
        }
        self.parked_ms = self.parked_ms.filter(|_| !waiting.is_empty());
        self.parked = waiting;
        Ok(taken)
    }

    /// Whether to wait once more for what the first of those that wait depends on: it comes from members that this replica is
    /// linked with. Under more load than there are cores for, that may take long; all that another one had would come on top.
    pub(super) fn waits_once_more(&mut self, replica: &Replica, links: &[ReplicaId], now: Now) -> bool {
        let Some((first, _)) = self.parked.front() else { return true };
        let head = &first.head;
        let before = Dot { seq: head.first_seq - 1, ..head.dot };
        let mut missing = head.depends.iter().chain([before]).filter(|dot| !self.known(replica, *dot));
        let comes = missing.all(|dot| links.contains(&dot.origin.replica))
            && head.depends.fences().all(|fence| replica.vector().covers_fence(fence));
        if !comes || self.waited == WAITS_MAX {
            return false;
        }
        (self.parked_ms, self.waited) = (Some(now.mono_ms), self.waited + 1);
        true
    }

    /// Notes a part of a unit. One that began earlier is given up: its sender has begun again.
    ///
    /// # Errors
    /// When the unit is too long.
    pub(super) fn add_part(
        &mut self,
        (number, part): (u32, Part),
        entries: Vec<Received>,
        bytes: usize,
        now: Now,
    ) -> Result<(), DecodeError> {
        if self.unit.as_ref().is_some_and(|unit| unit.first > part.first) || number < part.first {
            return Ok(());
        }
        self.unit_ms = Some(now.mono_ms);
        let unit = match &mut self.unit {
            Some(unit) if unit.first == part.first => unit,
            unit => unit.insert(UnitReceived::new(part.first)),
        };
        if part.ends {
            unit.last = Some(number);
            unit.more = part.more;
        }
        if unit.parts.insert(number, entries).is_none() {
            unit.bytes = unit.bytes.saturating_add(bytes);
        }
        if unit.bytes > UNIT_BYTES_MAX { Err(DecodeError::TooLong(unit.bytes)) } else { Ok(()) }
    }

    /// Resolves the deltas of a unit as far as it has arrived, and takes it once it has arrived whole. Entries that are known
    /// are left out.
    ///
    /// # Errors
    /// When a delta is damaged.
    pub(super) fn take_unit(
        &mut self,
        replica: &Replica,
        now: Now,
        tally: &mut SessionTally,
    ) -> Result<Option<Taken>, DecodeError> {
        let Some(mut unit) = self.unit.take_if(|_| self.preparing.is_none()) else { return Ok(None) };
        while let Some(part) = unit.parts.first_entry().filter(|part| *part.key() <= self.number) {
            for entry in part.remove() {
                if self.known(replica, entry.head.dot) {
                    tally.duplicates += 1;
                    continue;
                }
                let find = |keyspace, key: &Key, hash| {
                    let here = unit.values.get(&hash).or_else(|| self.recent.values.get(&hash)).cloned();
                    here.or_else(|| replica.value_by_hash(keyspace, key, hash))
                };
                let entry = match entry.resolve(find) {
                    Ok(entry) => entry,
                    Err(Unresolved::NoBase) => return Ok(Some(Taken { entries: vec![], no_base: true })),
                    Err(Unresolved::Damaged(error)) => return Err(DecodeError::Delta(error)),
                };
                for change in &entry.changes {
                    if let ChangeKind::Put { value, .. } = &change.kind {
                        unit.values.insert(delta::hash(value), value.clone());
                    }
                }
                unit.entries.push(entry);
            }
        }
        if !unit.is_whole(self.number) {
            self.unit = Some(unit);
            return Ok(None);
        }
        self.unit_ms = unit.more.then_some(now.mono_ms);
        let mut entries = unit.entries;
        let arrived = entries.len();
        entries.retain(|entry| !self.known(replica, entry.head.dot));
        tally.duplicates += (arrived - entries.len()) as u64;
        Ok(Some(Taken { entries, no_base: false }))
    }

    /// Whether an entry has to wait. `waits` are those that do so far: what comes behind one of them, of its origin, need not be
    /// looked at.
    fn stays(&self, replica: &Replica, entry: &Received, waits: &mut Vec<Dot>) -> bool {
        let dot = entry.head.dot;
        if waits.iter().any(|first| first.origin == dot.origin && first.seq < dot.seq) {
            return true;
        }
        let stays = !self.known(replica, dot) && !self.ready(replica, entry);
        if stays {
            waits.push(dot);
        }
        stays
    }

    /// Whether all that the entry depends on is here.
    pub(super) fn ready(&self, replica: &Replica, entry: &Received) -> bool {
        let head = &entry.head;
        let before = Dot { seq: head.first_seq - 1, ..head.dot };
        let (depends, vector) = (&head.depends, replica.vector());
        let mut both = self.handed.along(depends).zip(vector.along(depends));
        self.known(replica, before)
            && depends.fences().all(|fence| vector.covers_fence(fence))
            && both.all(|((dot, handed), (_, here))| dot.seq <= handed.max(here))
    }
}
