//! The numbers of the records that this replica has journaled.

use std::collections::{BTreeMap, BTreeSet};

use crate::entry::EntryHead;
use crate::replica::log::Log;
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
    /// As what those are written anew of which the last sweep told that. What has left since, and is not known to be on disk, is not
    /// in it.
    pub(crate) renewed: BTreeMap<u64, EntryHead>,
    /// Records of entries that were left out of the log. They go only after the records of what stands for them have
    /// been written anew.
    pub(crate) left: BTreeMap<u64, Left>,
    /// Records of such entries that sweeps have let go since, and that may still be on disk.
    pub(crate) let_go: BTreeSet<u64>,
    /// Records that do not say yet what they are to say of [bases](crate::entry::Bases): they are to be written anew. Until that is on
    /// disk the head says it.
    pub(crate) unsaid: BTreeSet<u64>,
    /// Whether the head has more to say of what left than before the last input.
    pub(crate) is_more_unsaid: bool,
    /// Those of them of which the last sweep told that.
    pub(crate) unsaid_told: BTreeSet<u64>,
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
            renewed: BTreeMap::new(),
            left: BTreeMap::new(),
            let_go: BTreeSet::new(),
            unsaid: BTreeSet::new(),
            is_more_unsaid: false,
            unsaid_told: BTreeSet::new(),
        }
    }
}

impl Journal {
    /// Notes that the entry in a record was left out.
    pub(crate) fn leave(&mut self, gone: u64, dot: Dot) {
        self.outdated.remove(&gone);
        self.unsaid.remove(&gone);
        self.is_more_unsaid = true;
        self.left.insert(gone, Left { dot, told: None });
    }

    /// The records of entries that left the log, in order, as far as they may be on disk.
    pub(crate) fn may_be_there(&self) -> Vec<u64> {
        let mut numbers: Vec<u64> = self.left.keys().chain(&self.let_go).copied().collect();
        numbers.sort_unstable();
        numbers
    }

    /// The records for which the head says what they are to say of bases.
    pub(crate) fn unsaid(&self) -> impl Iterator<Item = u64> {
        self.unsaid.union(&self.unsaid_told).copied()
    }

    /// All that earlier sweeps told is on disk. Tells which records are to be written anew next.
    pub(crate) fn next_anew(&mut self, log: Option<&Log>) -> Vec<u64> {
        self.unsaid_told = std::mem::take(&mut self.unsaid);
        let outdated = std::mem::take(&mut self.outdated);
        let head = |number| Some((number, log?.by_number(number)?.entry.head.clone()));
        self.renewed = outdated.into_iter().filter_map(head).collect();
        self.unsaid_told.iter().chain(self.renewed.keys()).copied().collect()
    }

    /// The number of a new record.
    pub(crate) fn number(&mut self) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        number
    }
}
