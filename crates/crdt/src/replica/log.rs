//! The entries that some member may lack, in the order in which they were applied here, kept in memory to be sent.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::entry::{Bases, Change, Entry};
use crate::merge::windows::Around;
use crate::words::chain::Chain;
use crate::words::id::{Dot, Origin};
use crate::words::key::Keyspace;
use crate::words::vector::VersionVector;

/// About what a change takes in memory beside its key and value, in the log and in its key's window, bytes.
const CHANGE_MEMORY: usize = 512;

/// An entry with what sending and settling it need.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Logged {
    /// Journal number of its record.
    pub number: u64,
    /// The entry.
    pub entry: Arc<Entry>,
    /// All that its origin had applied besides its own entries.
    pub deps: Arc<VersionVector>,
    /// Its origin's chain hash up to it.
    pub chain: Chain,
    /// Whether it was applied together with others, as one step. It is passed on together with them, too.
    pub together: bool,
    /// How many of its changes, from the first on, are known to be written over. What is so once stays so.
    pub written_over: usize,
    /// What its record is to say of bases.
    pub bases: Option<Arc<Bases>>,
}

/// The place of an entry among its origin's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct LogSlot {
    last_seq: u64,
    number: u64,
    /// About how much memory the origin's entries take together, up to this one, bytes. What has left since is in it.
    memory: u64,
}

/// About how much memory an entry takes here, with its versions.
fn memory_of(entry: &Entry) -> u64 {
    (entry.weight() + CHANGE_MEMORY * entry.changes.len()) as u64
}

/// The log. Of each origin it holds a run of adjacent entries that ends at the newest.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Log {
    entries: BTreeMap<u64, Logged>,
    origins: BTreeMap<Origin, VecDeque<LogSlot>>,
}

impl Log {
    /// Adds the newest entry.
    pub fn push(&mut self, logged: Logged) {
        let dot = logged.entry.head.dot;
        let places = self.origins.entry(dot.origin).or_default();
        let memory = places.back().map_or(0, |last| last.memory) + memory_of(&logged.entry);
        places.push_back(LogSlot { last_seq: dot.seq, number: logged.number, memory });
        self.entries.insert(logged.number, logged);
    }

    /// Whether there is nothing that a member may lack.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// The entry that a record holds.
    pub fn by_number(&self, number: u64) -> Option<&Logged> {
        self.entries.get(&number)
    }

    /// The entry of that name, or the one that stands for it.
    pub fn get(&self, dot: Dot) -> Option<&Logged> {
        let places = self.origins.get(&dot.origin)?;
        let place = places.get(places.partition_point(|place| place.last_seq < dot.seq))?;
        self.entries.get(&place.number).filter(|logged| logged.entry.head.first_seq <= dot.seq)
    }

    /// Whether it has the entry of that name, not one that stands for it.
    pub fn has(&self, dot: Dot) -> bool {
        self.of_that_name(dot).is_some()
    }

    /// The entry of that name, not one that stands for it.
    fn of_that_name(&self, dot: Dot) -> Option<&Logged> {
        self.get(dot).filter(|logged| logged.entry.head.dot == dot)
    }

    /// Whether a vector ends between entries: none stands for one that it covers together with one that it does not.
    pub fn can_end_at(&self, vector: &VersionVector) -> bool {
        let is_split = |dot: Dot| self.get(dot).is_some_and(|logged| logged.entry.head.dot.seq > dot.seq);
        !vector.iter().any(is_split)
    }

    /// How many entries of an origin there are beyond that one, up to another.
    pub fn count_between(&self, origin: Origin, from_seq: u64, upto_seq: u64) -> u64 {
        let count_upto = |places: &VecDeque<LogSlot>, seq| places.partition_point(|place| place.last_seq <= seq);
        let count = |places| count_upto(places, upto_seq).saturating_sub(count_upto(places, from_seq));
        self.origins.get(&origin).map_or(0, count) as u64
    }

    /// About how much memory an origin's entries take beyond that one, bytes, or a little more where some of them have left.
    pub fn memory_beyond(&self, origin: Origin, seq: u64) -> u64 {
        let beyond = self.origins.get(&origin).and_then(|places| {
            let first = places.get(places.partition_point(|place| place.last_seq <= seq))?;
            let behind_it = places.back()?.memory.saturating_sub(first.memory);
            Some(memory_of(&self.entries.get(&first.number)?.entry) + behind_it)
        });
        beyond.unwrap_or_default()
    }

    /// All entries in the order in which they were applied.
    pub fn iter(&self) -> impl Iterator<Item = &Logged> {
        self.entries.values()
    }

    /// The entries behind that journal number, in the order in which they were applied.
    pub fn behind(&self, number: u64) -> impl Iterator<Item = &Logged> {
        self.entries.range(number.saturating_add(1)..).map(|(_, logged)| logged)
    }

    /// That origin's entries from the one that covers `from_seq` on, oldest first.
    pub fn of(&self, origin: Origin, from_seq: u64) -> impl Iterator<Item = &Logged> {
        self.origins.get(&origin).into_iter().flat_map(move |places| {
            let from = places.partition_point(|place| place.last_seq < from_seq);
            places.range(from..).filter_map(|place| self.entries.get(&place.number))
        })
    }

    /// The newest entry of an origin up to that one.
    pub fn newest_upto(&self, dot: Dot) -> Option<&Logged> {
        let places = self.origins.get(&dot.origin)?;
        let behind = places.partition_point(|place| place.last_seq <= dot.seq);
        self.entries.get(&places.get(behind.checked_sub(1)?)?.number)
    }

    /// What `have` lacks and `upto` covers, in the order in which it was applied, until about `max_bytes`.
    pub fn missing(&self, have: &VersionVector, upto: &VersionVector, max_bytes: usize) -> Vec<Arc<Entry>> {
        // A merge of the origins' runs by journal number: entries that the other side has are not even looked at.
        let mut heads: BTreeMap<u64, (Origin, usize)> = BTreeMap::new();
        for (origin, places) in &self.origins {
            let from = places.partition_point(|place| place.last_seq <= have.get(*origin));
            if let Some(place) = places.get(from).filter(|place| place.last_seq <= upto.get(*origin)) {
                heads.insert(place.number, (*origin, from));
            }
        }
        let (mut missing, mut bytes) = (Vec::new(), 0);
        while let Some((number, (origin, at))) = heads.pop_first() {
            let (Some(logged), Some(places)) = (self.entries.get(&number), self.origins.get(&origin)) else { break };
            let weight = logged.entry.weight();
            if bytes > 0 && bytes + weight > max_bytes {
                break;
            }
            bytes += weight;
            missing.push(Arc::clone(&logged.entry));
            if let Some(next) = places.get(at + 1).filter(|next| next.last_seq <= upto.get(origin)) {
                heads.insert(next.number, (origin, at + 1));
            }
        }
        missing
    }

    /// The oldest entry of an origin.
    pub fn oldest(&self, origin: Origin) -> Option<&Logged> {
        self.entries.get(&self.origins.get(&origin)?.front()?.number)
    }

    /// Whether it holds a client's write whose origin merged by rules below that number, and that `is_open`. An origin's numbers only
    /// count up. Merges of system keys consult no rules: what declares rules must not keep those before it.
    pub fn has_below(&self, number: u32, is_open: impl Fn(&Change, Dot) -> bool) -> bool {
        self.origins.values().any(|places| {
            let entries = places.iter().filter_map(|place| self.entries.get(&place.number));
            let mut below = entries.take_while(|logged| logged.entry.head.rules < number);
            below.any(|Logged { entry, .. }| {
                let mut of_clients = entry.changes.iter().filter(|change| change.keyspace == Keyspace::Client);
                of_clients.any(|change| is_open(change, entry.head.dot))
            })
        })
    }

    /// Takes the oldest entry of an origin out.
    pub fn pop(&mut self, origin: Origin) -> Option<Logged> {
        let places = self.origins.get_mut(&origin)?;
        let place = places.pop_front()?;
        if places.is_empty() {
            self.origins.remove(&origin);
        }
        self.entries.remove(&place.number)
    }

    /// Whether an entry may be left out, as far as the log goes: one of its origin follows.
    pub fn may_leave_out(&self, dot: Dot) -> bool {
        let newest = self.origins.get(&dot.origin).and_then(|places| places.back());
        newest.is_some_and(|newest| newest.last_seq > dot.seq) && self.has(dot)
    }

    /// Notes how many changes of an entry, from the first on, are written over.
    pub fn note_written_over(&mut self, number: u64, count: usize) {
        if let Some(logged) = self.entries.get_mut(&number) {
            logged.written_over = count;
        }
    }

    /// Notes what is known of the bases of a key around that entry. Tells the entry's record where something is new.
    pub fn note_bases(&mut self, dot: Dot, keyspace: Keyspace, key: &[u8], noted: Around) -> Option<u64> {
        let number = self.of_that_name(dot)?.number;
        let logged = self.entries.get_mut(&number)?;
        let net = logged.entry.net();
        let place = net.iter().position(|change| change.keyspace == keyspace && change.key == key)?;
        let place = place as u32;
        let is_noted = logged.bases.as_ref().is_some_and(|bases| bases.below.contains_key(&place));
        if matches!(noted, Around::BelowNow(_)) && !is_noted {
            return None;
        }
        let bases = Arc::make_mut(logged.bases.get_or_insert_default());
        let is_new = match noted {
            Around::NoBaseAfter => bases.none.insert(place),
            Around::Below(below) | Around::BelowNow(below) => bases.below.insert(place, below) != Some(below),
        };
        is_new.then_some(number)
    }

    /// Leaves an entry out of which nothing stands any more: the one after it stands for both.
    pub fn leave_out(&mut self, dot: Dot) -> Option<Logged> {
        let places = self.origins.get_mut(&dot.origin)?;
        let at = places.binary_search_by_key(&dot.seq, |place| place.last_seq).ok()?;
        let stands = places.get(at + 1)?.number;
        let place = places.remove(at)?;
        let gone = self.entries.remove(&place.number)?;
        let next = self.entries.get_mut(&stands)?;
        let head = &mut Arc::make_mut(&mut next.entry).head;
        head.first_seq = gone.entry.head.first_seq;
        head.previous = gone.entry.head.previous;
        head.depends.merge(&gone.entry.head.depends);
        head.resulting = Some(next.chain);
        next.together |= gone.together;
        Some(gone)
    }
}
