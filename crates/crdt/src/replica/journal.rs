//! The numbers of the records that this replica has journaled.

use std::collections::BTreeSet;

/// The numbers of its records.
#[derive(Debug)]
pub(crate) struct Journal {
    /// The number of the next record.
    pub(crate) next_number: u64,
    /// Records that lost a change but are still needed.
    pub(crate) held: BTreeSet<u64>,
    /// Records of tombstones that nobody can see any more, but that may hide a put in one of those.
    pub(crate) graves: BTreeSet<u64>,
}

impl Default for Journal {
    fn default() -> Self {
        Self { next_number: 1, held: BTreeSet::new(), graves: BTreeSet::new() }
    }
}

impl Journal {
    /// The number of a new record.
    pub(crate) fn number(&mut self) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        number
    }
}
