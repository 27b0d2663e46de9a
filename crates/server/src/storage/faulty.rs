//! For tests: a journal in memory on a disk that fails, fills up and crashes on command.
//!
//! A [`Disk`] outlives the journals opened on it. It keeps a *live* image, what the process wrote, and a *durable*
//! one, what survives a crash.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;

use super::{AppendStats, Doubt, Group, Journal, StorageError};

const OVERHEAD: u64 = 8;

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The disk is full: nothing is written, the journal stays usable.
    NoSpace,
    /// The flush fails and what it should have made durable is lost in the next crash. Poisons.
    Flush,
    /// The flush fails, yet everything reached the disk. Poisons.
    FlushButWritten,
}

#[derive(Debug, Clone, Default)]
struct Image {
    records: BTreeMap<u64, Bytes>,
    next: u64,
    head: Option<Bytes>,
    high_water: u64,
}

impl Image {
    fn in_use(&self) -> u64 {
        self.records.values().map(|r| r.len() as u64 + OVERHEAD).sum()
    }

    fn apply(&mut self, change: &Change) {
        for (number, content) in &change.records {
            match content {
                Some(content) => self.records.insert(*number, content.clone()),
                None => self.records.remove(number),
            };
        }
        self.next = change.next;
        if change.head.is_some() {
            self.head = change.head.clone();
        }
    }
}

#[derive(Debug)]
struct Change {
    records: Vec<(u64, Option<Bytes>)>,
    next: u64,
    head: Option<Bytes>,
}

#[derive(Debug, Default)]
struct State {
    live: Image,
    durable: Image,
    pending: Vec<Change>,
    faults: BTreeMap<u64, Fault>,
    writes: u64,
    /// Every durable write finds the disk full.
    full: bool,
    /// Counts crashes; a journal opened before the last one is dead.
    epoch: u64,
}

/// The disk; clones are the same disk.
#[derive(Debug, Clone, Default)]
pub struct Disk(Arc<Mutex<State>>);

impl Disk {
    /// An empty disk.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Opens a journal; one that is already open on this disk is dead from then on, as after a kill.
    #[must_use]
    pub fn open(&self) -> FaultyJournal {
        let mut state = self.0.lock();
        state.epoch += 1;
        FaultyJournal { disk: self.clone(), epoch: state.epoch, loaded: false, poisoned: false }
    }

    /// Makes the `nth` durable write from now on (1: the next) fail.
    pub fn fail_at(&self, nth: u64, fault: Fault) {
        let mut state = self.0.lock();
        let at = state.writes + nth;
        state.faults.insert(at, fault);
    }

    /// Fills the disk, or makes space on it.
    pub fn set_full(&self, full: bool) {
        self.0.lock().full = full;
    }

    /// Power loss: what is not durable is gone, and open journals are dead.
    pub fn crash(&self) {
        let mut state = self.0.lock();
        state.epoch += 1;
        state.pending.clear();
        state.live = state.durable.clone();
    }

    /// Durable writes so far, those that failed included.
    #[must_use]
    pub fn writes(&self) -> u64 {
        self.0.lock().writes
    }

    /// The numbers of the durable records.
    #[must_use]
    pub fn durable(&self) -> Vec<u64> {
        self.0.lock().durable.records.keys().copied().collect()
    }
}

/// [`Journal`] on a [`Disk`].
#[derive(Debug)]
pub struct FaultyJournal {
    disk: Disk,
    epoch: u64,
    loaded: bool,
    poisoned: bool,
}

impl FaultyJournal {
    fn ready(&self) -> Result<(), StorageError> {
        if self.poisoned || self.disk.0.lock().epoch != self.epoch {
            return Err(StorageError::Poisoned);
        }
        if self.loaded { Ok(()) } else { Err(StorageError::NotLoaded) }
    }

    /// Writes `change` if there is one, and makes everything durable.
    fn flush(&mut self, change: Option<Change>) -> Result<(), StorageError> {
        let mut guard = self.disk.0.lock();
        let state = &mut *guard;
        state.writes += 1;
        let fault = state.faults.remove(&state.writes);
        if state.full || fault == Some(Fault::NoSpace) {
            return Err(StorageError::NoSpace { path: PathBuf::from("memory") });
        }
        if let Some(change) = change {
            state.live.apply(&change);
            state.live.high_water = state.live.high_water.max(state.live.in_use());
            state.pending.push(change);
        }
        if fault != Some(Fault::Flush) {
            for change in state.pending.drain(..) {
                state.durable.apply(&change);
            }
            state.durable.high_water = state.live.high_water;
        }
        if fault.is_some() {
            self.poisoned = true;
            return Err(StorageError::Io {
                doing: "sync",
                path: PathBuf::from("memory"),
                source: std::io::Error::other("injected"),
            });
        }
        Ok(())
    }
}

impl Journal for FaultyJournal {
    fn last_head(&self) -> Option<Bytes> {
        self.disk.0.lock().live.head.clone()
    }

    fn load(&mut self, visit: &mut dyn FnMut(u64, Bytes) -> Result<(), StorageError>) -> Result<(), StorageError> {
        let live = self.disk.0.lock().live.clone();
        for (number, record) in live.records {
            visit(number, record)?;
        }
        self.loaded = true;
        self.ready()
    }

    fn append(&mut self, group: &Group) -> Result<AppendStats, StorageError> {
        self.ready()?;
        let next = self.disk.0.lock().live.next;
        if !group.records.is_empty() && next != 0 && next != group.first {
            return Err(StorageError::OutOfOrder { expected: next, got: group.first });
        }
        let count = group.records.len() as u64;
        let next = if count == 0 { next } else { group.first + count };
        let records: Vec<_> = (group.first..).zip(group.records.iter().cloned().map(Some)).collect();
        let bytes = group.records.iter().map(|r| r.len() as u64).sum::<u64>() + group.head.len() as u64;
        self.flush(Some(Change { records, next, head: Some(group.head.clone()) }))?;
        Ok(AppendStats { bytes, write: Duration::ZERO, sync: Duration::ZERO })
    }

    fn trim(
        &mut self,
        dead: &mut BTreeSet<u64>,
        max_bytes: usize,
        keep: &mut dyn FnMut(u64, &Bytes) -> Option<Bytes>,
    ) -> Result<(), StorageError> {
        self.ready()?;
        let mut guard = self.disk.0.lock();
        let state = &mut *guard;
        let mut change = Change { records: Vec::new(), next: state.live.next, head: None };
        let mut read = 0;
        while read < max_bytes {
            let Some(number) = dead.pop_first() else { break };
            let Some(record) = state.live.records.get(&number) else { continue };
            read += record.len() + 1;
            change.records.push((number, keep(number, record)));
        }
        state.live.apply(&change);
        state.pending.push(change);
        Ok(())
    }

    fn read(&mut self, number: u64) -> Result<Option<Bytes>, StorageError> {
        Ok(self.disk.0.lock().live.records.get(&number).cloned())
    }

    fn head(&mut self, head: Bytes) -> Result<(), StorageError> {
        self.append(&Group { first: 0, records: Vec::new(), head }).map(drop)
    }

    fn sync(&mut self) -> Result<(), StorageError> {
        self.ready()?;
        self.flush(None)
    }

    fn defragment(&mut self) -> Result<(), StorageError> {
        self.ready()?;
        self.flush(None)?;
        let mut state = self.disk.0.lock();
        let in_use = state.live.in_use();
        state.live.high_water = in_use;
        state.durable.high_water = in_use;
        Ok(())
    }

    fn size_in_use(&self) -> u64 {
        self.disk.0.lock().live.in_use()
    }

    fn size_allocated(&self) -> u64 {
        self.disk.0.lock().live.high_water
    }

    fn size_on_disk(&self) -> u64 {
        self.size_allocated()
    }

    fn doubt(&self) -> Option<Doubt> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(first: u64, head: &'static str) -> Group {
        Group { first, records: vec![Bytes::from_static(b"r")], head: Bytes::from_static(head.as_bytes()) }
    }

    fn numbers(journal: &mut FaultyJournal) -> (Vec<u64>, Option<Bytes>) {
        let mut numbers = Vec::new();
        let load = journal.load(&mut |n, _| {
            numbers.push(n);
            Ok(())
        });
        load.expect("load");
        (numbers, journal.last_head())
    }

    #[test]
    fn a_crash_loses_what_a_failed_flush_left_and_nothing_else() {
        for (fault, kept) in [(Fault::Flush, vec![1]), (Fault::FlushButWritten, vec![1, 2])] {
            let disk = Disk::new();
            let mut journal = disk.open();
            assert!(matches!(journal.append(&group(1, "a")), Err(StorageError::NotLoaded)));
            assert_eq!(numbers(&mut journal), (vec![], None));
            journal.append(&group(1, "a")).expect("append");
            disk.fail_at(1, fault);
            assert!(matches!(journal.append(&group(2, "b")), Err(StorageError::Io { .. })));
            assert!(matches!(journal.append(&group(2, "b")), Err(StorageError::Poisoned)));
            disk.crash();
            assert_eq!(numbers(&mut disk.open()).0, kept, "{fault:?}");
        }
    }

    #[test]
    fn a_full_disk_changes_nothing_and_can_be_retried() {
        let disk = Disk::new();
        let mut journal = disk.open();
        numbers(&mut journal);
        disk.fail_at(1, Fault::NoSpace);
        assert!(matches!(journal.append(&group(5, "a")), Err(StorageError::NoSpace { .. })));
        journal.append(&group(5, "a")).expect("retry");
        assert!(matches!(journal.append(&group(5, "a")), Err(StorageError::OutOfOrder { expected: 6, got: 5 })));
        let mut dead = BTreeSet::from([5]);
        journal.trim(&mut dead, 100, &mut |_, _| None).expect("trim");
        disk.crash();
        assert_eq!(numbers(&mut disk.open()), (vec![5], Some(Bytes::from_static(b"a"))), "the trim was not flushed");
    }
}
