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
    /// been written anew, and none of the versions is in the log any more that they stood beside.
    pub(crate) left: BTreeMap<u64, Left>,
}

/// A record whose entry was left out of the log.
#[derive(Debug)]
pub(crate) struct Left {
    /// The entry.
    pub(crate) dot: Dot,
    /// The record of what stood for it when it was last told that this is to be written anew.
    pub(crate) told: Option<u64>,
    /// Versions that were applied after it, and that do not stand on it; or that came before it in its step, which it told the end
    /// of. A start must not take what their keys were after them for a base: it sees that by this record.
    pub(crate) beside: Vec<Dot>,
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
    /// Notes that the entry in a record was left out, and which versions stood beside it.
    pub(crate) fn leave(&mut self, gone: u64, dot: Dot, beside: Vec<Dot>) {
        self.outdated.remove(&gone);
        self.left.insert(gone, Left { dot, told: None, beside });
    }

    /// Notes that the record of an entry that was left out before a start tells of a version that stood beside it.
    pub(crate) fn stays(&mut self, gone: u64, dot: Dot, beside: Dot) {
        let left = self.left.entry(gone).or_insert(Left { dot, told: None, beside: vec![] });
        left.beside.push(beside);
    }

    /// The number of a new record.
    pub(crate) fn number(&mut self) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        number
    }
}
