//! What the log has on top of the checkpoint: where each record lies, and which are gone.

use std::collections::BTreeMap;
use std::collections::btree_map::Range;
use std::ops::Bound;

/// Where a record lies in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    /// The segment's number.
    pub segment: u64,
    /// The byte in the segment.
    pub at: u64,
    /// Its length in bytes.
    pub len: u32,
    /// Its checksum: [`record_sum`](super::page::record_sum).
    pub sum: u64,
}

/// Records by number. `None`: the one that lies below was dropped.
#[derive(Debug, Clone, Default)]
pub(super) struct Overlay {
    held: BTreeMap<u64, Option<Place>>,
    /// Nothing lies below from this number on; none where nothing lies below at all.
    floor: Option<u64>,
}

impl Overlay {
    /// On top of what has no record from number `floor` on.
    pub fn above(floor: Option<u64>) -> Self {
        Self { held: BTreeMap::new(), floor }
    }

    /// A record's place changed, or it was dropped.
    pub fn set(&mut self, number: u64, place: Option<Place>) {
        if place.is_none() && self.floor.is_none_or(|floor| number >= floor) {
            self.held.remove(&number);
        } else {
            self.held.insert(number, place);
        }
    }

    /// Where a record lies; `None`: ask what is below.
    pub fn get(&self, number: u64) -> Option<Option<Place>> {
        self.held.get(&number).copied()
    }

    /// All from a number on, ascending.
    pub fn from(&self, number: Bound<u64>) -> Range<'_, u64, Option<Place>> {
        self.held.range((number, Bound::Unbounded))
    }

    /// Lays what came later on top.
    pub fn absorb(&mut self, later: Self) {
        for (number, place) in later.held {
            self.set(number, place);
        }
    }
}
