//! The numbers of the records that this replica has journaled.

use std::collections::{BTreeMap, BTreeSet};

use crate::entry::{EntryHead, Notes};
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
    /// disk a note says it.
    unsaid: BTreeSet<u64>,
    /// Those of them of which the last sweep told that.
    unsaid_told: BTreeSet<u64>,
    /// Records that left, or are to say something of bases, since notes were written last.
    unnoted: BTreeSet<u64>,
    /// The record with the last note about each record that does not say it itself yet.
    noted: BTreeMap<u64, u64>,
    /// The records with notes, and how many of these are still needed. They go in their order: a note counts until the later ones about
    /// the same record are gone as well.
    notes: BTreeMap<u64, usize>,
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
            unsaid_told: BTreeSet::new(),
            unnoted: BTreeSet::new(),
            noted: BTreeMap::new(),
            notes: BTreeMap::new(),
        }
    }
}

impl Journal {
    /// Notes that the entry in a record was left out.
    pub(crate) fn leave(&mut self, gone: u64, dot: Dot) {
        self.outdated.remove(&gone);
        self.unsaid.remove(&gone);
        self.left.insert(gone, Left { dot, told: None });
        self.unnoted.insert(gone);
    }

    /// Notes that a record is to say something of bases.
    pub(crate) fn say_bases(&mut self, number: u64) {
        self.unsaid.insert(number);
        self.unnoted.insert(number);
    }

    /// Whether notes are to be written.
    pub(crate) fn is_unnoted(&self) -> bool {
        !self.unnoted.is_empty()
    }

    /// The notes that are to be written, for a record of that number.
    pub(crate) fn note(&mut self, log: Option<&Log>, in_record: u64) -> Notes {
        let mut notes = Notes::default();
        for number in std::mem::take(&mut self.unnoted) {
            if self.left.contains_key(&number) {
                notes.left.insert(number);
            } else if let Some(bases) = log.and_then(|log| log.by_number(number)?.bases.clone()) {
                notes.bases.insert(number, bases);
            } else {
                continue;
            }
            self.forget_note(number);
            self.noted.insert(number, in_record);
            *self.notes.entry(in_record).or_default() += 1;
        }
        notes
    }

    /// The notes that a start found, by the numbers of their records. They are needed as far as something is noted here.
    pub(crate) fn restore_notes(&mut self, found: &[(u64, Notes)]) {
        for (in_record, notes) in found {
            self.notes.insert(*in_record, 0);
            let needed = notes.left.iter().chain(notes.bases.keys());
            let needed: Vec<u64> = needed.filter(|number| self.is_about(**number)).copied().collect();
            for number in needed {
                self.forget_note(number);
                self.noted.insert(number, *in_record);
                *self.notes.entry(*in_record).or_default() += 1;
                self.unnoted.remove(&number);
            }
        }
    }

    /// Whether a record does not say itself yet what is noted of it.
    fn is_about(&self, number: u64) -> bool {
        self.left.contains_key(&number) || self.let_go.contains(&number) || self.unsaid.contains(&number)
    }

    /// A note about that record is needed no more.
    fn forget_note(&mut self, number: u64) {
        if let Some(count) = self.noted.remove(&number).and_then(|in_record| self.notes.get_mut(&in_record)) {
            *count -= 1;
        }
    }

    /// Earlier sweeps' records are off the disk, but for those that are held or `dead` (in order): what was let go and is none of
    /// these is gone.
    pub(crate) fn forget_gone(&mut self, dead: &[u64]) {
        let is_there = |number: &u64| self.held.contains(number) || dead.binary_search(number).is_ok();
        let (there, gone): (BTreeSet<u64>, BTreeSet<u64>) =
            std::mem::take(&mut self.let_go).into_iter().partition(is_there);
        self.let_go = there;
        gone.into_iter().for_each(|number| self.forget_note(number));
    }

    /// The records with notes of which none is needed any more: they go.
    pub(crate) fn spent_notes(&mut self) -> Vec<u64> {
        let mut spent = vec![];
        while let Some(first) = self.notes.first_entry().filter(|first| *first.get() == 0) {
            spent.push(first.remove_entry().0);
        }
        spent
    }

    /// Whether a record with notes stays.
    pub(crate) fn has_notes(&self, number: u64) -> bool {
        self.notes.contains_key(&number)
    }

    /// All that earlier sweeps told is on disk. Tells which records are to be written anew next.
    pub(crate) fn next_anew(&mut self, log: Option<&Log>) -> Vec<u64> {
        let told = std::mem::replace(&mut self.unsaid_told, std::mem::take(&mut self.unsaid));
        for number in told.difference(&self.unsaid_told).copied().collect::<Vec<_>>() {
            if !self.is_about(number) {
                self.forget_note(number);
            }
        }
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
