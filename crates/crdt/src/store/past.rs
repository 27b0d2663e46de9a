//! Values of the past. What a newer version has replaced on disk leaves memory, and is read back from the journal by its
//! place. The replica reads no journal: a reader is told which places it lacks ([`PastValues::missing`]), has them read without
//! holding the replica, and asks again.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap, VecDeque};

use bytes::Bytes;

use crate::entry::{Change, ChangeKind, CodecError, Record};
use crate::words::revision::Revision;

/// A shorter value stays: its place in memory takes as much. The values of tests are shorter than those of clients.
const MIN_BYTES: usize = if cfg!(debug_assertions) { 1 } else { 32 };

/// Room for so many replaced values is kept when they are gone.
const KEPT_CAPACITY: usize = 4096;

/// Where a value is in the journal.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PastPlace {
    /// Journal number of the record.
    pub number: u64,
    /// Position within the revision that the record's change took.
    pub sub: u32,
    /// Length in bytes.
    pub len: u32,
    /// CRC-32C.
    pub crc: u32,
}

/// A value as a version holds it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Held {
    /// In memory.
    Here(Bytes),
    /// Only in the journal.
    Stored {
        /// Length in bytes.
        len: u32,
        /// CRC-32C.
        crc: u32,
    },
}

impl Held {
    /// The value of a version that nothing has replaced on disk: that one never leaves memory.
    pub fn here(&self) -> &Bytes {
        match self {
            Self::Here(value) => value,
            Self::Stored { .. } => unreachable!("what a key is now is in memory"),
        }
    }

    /// Leaves only the length and the CRC of a value that is large enough, and gives the value.
    pub fn take_out(&mut self) -> Option<Bytes> {
        let Self::Here(value) = self else { return None };
        let len = u32::try_from(value.len()).ok().filter(|_| value.len() >= MIN_BYTES)?;
        let stored = Self::Stored { len, crc: crc32c::crc32c(value) };
        match std::mem::replace(self, stored) {
            Self::Here(value) => Some(value),
            Self::Stored { .. } => None,
        }
    }
}

/// Values that newer versions replaced, until these are on disk. They are kept apart from their versions, so that dropping them
/// takes no look-up of the key.
#[derive(Debug, Default)]
pub struct Lately {
    values: HashMap<PastPlace, Bytes>,
    /// How much they are, bytes.
    bytes: usize,
    /// What replaced them, in order.
    replaced: VecDeque<(Revision, PastPlace)>,
    /// Whether values stay with their versions for good instead.
    pub(crate) stay: bool,
}

impl Lately {
    /// Keeps a value that was replaced at that revision, the newest.
    pub(crate) fn keep(&mut self, replaced_at: Revision, place: PastPlace, value: Bytes) {
        self.bytes += value.len();
        if let Some(same) = self.values.insert(place, value) {
            self.bytes -= same.len();
        }
        self.replaced.push_back((replaced_at, place));
    }

    /// How much they are, bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Lets the values go that were replaced up to a revision, which must be on disk: at most `max` of them. Tells whether
    /// nothing is left.
    pub(crate) fn release(&mut self, upto: Revision, max: usize) -> bool {
        let is_due = |replaced: &VecDeque<(Revision, PastPlace)>| replaced.front().is_some_and(|(at, _)| *at <= upto);
        for _ in 0..max {
            let Some((_, place)) = is_due(&self.replaced).then(|| self.replaced.pop_front()).flatten() else { break };
            self.bytes -= self.values.remove(&place).map_or(0, |value| value.len());
        }
        if self.replaced.capacity() > KEPT_CAPACITY && self.replaced.len() < self.replaced.capacity() / 8 {
            // What a burst took is given back.
            self.replaced.shrink_to(2 * self.replaced.len());
            self.values.shrink_to(2 * self.replaced.len());
        }
        !is_due(&self.replaced)
    }
}

/// Where replaced values are looked for.
#[derive(Clone, Copy, Debug)]
pub struct Past<'a> {
    /// What was replaced lately.
    pub lately: &'a Lately,
    /// What was read from the journal; `None` where nothing is asked of it.
    pub read: Option<&'a PastValues>,
}

impl<'a> Past<'a> {
    /// The value of a place. What is nowhere is noted as missing.
    pub(crate) fn want(self, place: PastPlace) -> Option<&'a Bytes> {
        self.lately.values.get(&place).or_else(|| self.read?.want(place))
    }
}

/// Values that were read from the journal.
pub(crate) type Given = BTreeMap<PastPlace, Bytes>;

/// What a reader was given of the past, and what else it needs.
#[derive(Debug, Default)]
pub struct PastValues {
    given: Given,
    missing: RefCell<Vec<PastPlace>>,
    missing_bytes: Cell<usize>,
}

impl PastValues {
    /// A value that was read from the journal.
    pub fn give(&mut self, place: PastPlace, value: Bytes) {
        self.given.insert(place, value);
    }

    /// Adds what others gave.
    pub fn add(&mut self, other: Self) {
        self.given.extend(other.given);
    }

    /// Takes note of a place, unless it was given.
    pub(crate) fn want(&self, place: PastPlace) -> Option<&Bytes> {
        let given = self.given.get(&place);
        if given.is_none() {
            self.missing.borrow_mut().push(place);
            self.missing_bytes.set(self.missing_bytes.get() + place.len as usize);
        }
        given
    }

    /// The same with nothing missing.
    pub(crate) fn of(given: Given) -> Self {
        Self { given, ..Self::default() }
    }

    /// What was given.
    pub(crate) fn into_given(self) -> Given {
        self.given
    }

    /// How many bytes are missing so far.
    pub(crate) fn missing_bytes(&self) -> usize {
        self.missing_bytes.get()
    }

    /// Whether what was read with it is not whole.
    pub fn is_short(&self) -> bool {
        !self.missing.borrow().is_empty()
    }

    /// Takes the places that a read came upon and that were not given, in the journal's order. What was read is not whole
    /// while there are any: read them and ask again.
    pub fn missing(&mut self) -> Vec<PastPlace> {
        self.missing_bytes.set(0);
        let mut missing = std::mem::take(self.missing.get_mut());
        missing.sort_unstable();
        missing.dedup();
        missing
    }
}

/// The values of those places of one record; `None` where it does not hold one any more.
///
/// # Errors
/// When it is no record.
pub fn values_of(record: Bytes, places: &[PastPlace]) -> Result<Vec<Option<Bytes>>, CodecError> {
    let record = Record::decode(record)?;
    let puts: Vec<_> = record.effective().filter_map(|(applied, change)| put(applied.sub, change)).collect();
    let find = |place: &PastPlace| {
        let is_it = |(sub, value): &&(u32, &Bytes)| {
            *sub == place.sub && value.len() == place.len as usize && crc32c::crc32c(value) == place.crc
        };
        // Copied: it shares the memory of a whole page.
        puts.iter().find(is_it).map(|(_, value)| Bytes::copy_from_slice(value))
    };
    Ok(places.iter().map(find).collect())
}

fn put(sub: u32, change: &Change) -> Option<(u32, &Bytes)> {
    match &change.kind {
        ChangeKind::Put { value, .. } => Some((sub, value)),
        ChangeKind::Delete | ChangeKind::Expire => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replaced_value_stays_until_what_replaced_it_is_on_disk() {
        let mut lately = Lately::default();
        let mut replace = |number: u64| {
            let mut held = Held::Here(Bytes::from(format!("value {number}")));
            let value = held.take_out().unwrap();
            assert_eq!(held.take_out(), None);
            let Held::Stored { len, crc } = held else { panic!("it is in memory still") };
            let place = PastPlace { number, sub: 0, len, crc };
            lately.keep(Revision::new(number as i64 + 1), place, value);
            place
        };
        let places: Vec<PastPlace> = (0..20_000).map(&mut replace).collect();
        let is_there = |lately: &Lately, place| Past { lately, read: None }.want(place).is_some();
        assert!(!lately.release(Revision::new(10_000), 9_999));
        assert!(!is_there(&lately, places[9_998]) && is_there(&lately, places[9_999]));
        assert!(lately.release(Revision::new(10_000), 2));
        assert!(!is_there(&lately, places[9_999]) && is_there(&lately, places[10_000]));
        assert!(lately.release(Revision::new(20_000), usize::MAX) && lately.values.is_empty());
        assert!(lately.values.capacity() < 10_000 && lately.replaced.capacity() < 10_000);
    }
}
