//! Reads of the past, as a server makes them: what left memory is read back from the journal, by its place.

use bytes::Bytes;
use eddy_crdt::{Commit, EventsAsked, PastValues, Replica, Revision, values_of};

use super::disk::Disk;

/// Reads until nothing is missing.
pub fn whole<T>(disk: &Disk, mut read: impl FnMut(&PastValues) -> T) -> T {
    let mut past = PastValues::default();
    loop {
        let found = read(&past);
        let missing = past.missing();
        if missing.is_empty() {
            return found;
        }
        past.add(recall(disk, missing));
    }
}

/// Those values, which must be on the disk.
pub fn recall(disk: &Disk, missing: Vec<eddy_crdt::PastPlace>) -> PastValues {
    let mut past = PastValues::default();
    for place in missing {
        let record: Bytes = disk.record(place.number).unwrap_or_else(|| panic!("no record for {place:?}")).clone();
        let value = values_of(record, &[place]).expect("our own").pop().flatten();
        past.give(place, value.unwrap_or_else(|| panic!("no value for {place:?}")));
    }
    past
}

/// The events of all keys from one revision to another, each look at most about `limit` changes.
pub fn events(disk: &Disk, replica: &Replica, from: Revision, to: Revision, limit: usize) -> Vec<Commit> {
    let (mut all, mut from, mut past) = (vec![], from, PastValues::default());
    while from <= to {
        let (commits, reached) = replica.events(&EventsAsked { from, to, limit, concerns: &|_| true }, &past);
        all.extend(commits);
        let missing = past.missing();
        assert!(!missing.is_empty() || reached >= from, "no way on from {from:?}");
        past.add(recall(disk, missing));
        from = reached.next();
    }
    all
}
