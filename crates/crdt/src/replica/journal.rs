//! The numbers of the records that this replica has journaled.

use std::collections::{BTreeMap, BTreeSet};

use crate::words::id::Dot;

/// The numbers of its records.
#[derive(Debug)]
pub(crate) struct Journal {
    /// The number of the next record.
    pub(crate) next_number: u64,
    /// Records that lost a change but are still needed.
    pub(crate) held: BTreeSet<u64>,
    /// Records of tombstones that nobody can see any more, but that may hide a put in one of those.
    pub(crate) graves: BTreeSet<u64>,
    /// Records of entries that stand for more than they did when they were written: they are to be written anew.
    pub(crate) outdated: BTreeSet<u64>,
    /// Records of entries that were left out of the log. They go only after the records of what stands for them have
    /// been written anew.
    pub(crate) left: BTreeMap<u64, Left>,
}

/// A record whose entry was left out of the log.
#[derive(Debug)]
pub(crate) struct Left {
    /// The entry.
    pub(crate) dot: Dot,
    /// The record of what stood for it when it was last told that this is to be written anew.
    pub(crate) told: Option<u64>,
}

impl Default for Journal {
    fn default() -> Self {
        Self {
            next_number: 1,
            held: BTreeSet::new(),
            graves: BTreeSet::new(),
            outdated: BTreeSet::new(),
            left: Default::default(),
        }
    }
}

impl Journal {
    /// Notes that the entry in a record was left out.
    pub(crate) fn leave(&mut self, gone: u64, dot: Dot) {
        self.outdated.remove(&gone);
        self.left.insert(gone, Left { dot, told: None });
    }

    /// The number of a new record.
    pub(crate) fn number(&mut self) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        number
    }
}
