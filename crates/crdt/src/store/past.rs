//! Values of the past. What a newer version has replaced on disk leaves memory, and is read back from the journal by its
//! place. The replica reads no journal: a reader is told which places it lacks ([`PastValues::missing`]), has them read without
//! holding the replica, and asks again.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use bytes::Bytes;

use crate::entry::{Change, ChangeKind, CodecError, Record};

/// A shorter value stays: its place in memory takes as much. The values of tests are shorter than those of clients.
const MIN_BYTES: usize = if cfg!(debug_assertions) { 1 } else { 32 };

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

    /// Lets go of a value that is in the journal.
    pub fn release(&mut self) {
        if let Self::Here(value) = self
            && value.len() >= MIN_BYTES
            && let Ok(len) = u32::try_from(value.len())
        {
            *self = Self::Stored { len, crc: crc32c::crc32c(value) };
        }
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
