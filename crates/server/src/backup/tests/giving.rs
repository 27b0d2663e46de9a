//! Backups of replicas.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use eddy_crdt::{Command, Key, KeyRange, PastPlace, PastValues, RangeOp, ReadAt, Revision, values_of};
use eddy_proto::mvccpb;
use prost::Message;

use super::{Still, Taken, checked, command, contents, new_replica, put, taken, with_history, with_records};
use crate::backup::give::{GiveError, Take, give, give_runs};
use crate::backup::order::{Look, Runs};
use crate::backup::pace::Paced;
use crate::backup::schema::{self, VersionPlace};
use crate::node::{Captured, NodeError};

#[test]
fn a_backup_has_every_version_that_no_compaction_hides() {
    let replica = Still(with_history());
    let taken = taken(&replica);
    assert!(taken.remaining.is_sorted_by(|a, b| a >= b) && taken.remaining.last() == Some(&0));
    let read = contents(checked(&taken)).unwrap();
    assert_eq!(read["lease"].keys().collect::<Vec<_>>(), [&77_i64.to_be_bytes()]);
    assert_eq!(read["meta"][schema::COMPACTED], schema::revision(Revision::new(20)));
    assert_eq!(read["members"].keys().map(|key| &key[..]).collect::<Vec<_>>(), [b"7"]);
    let now = replica.0.revision();
    // What a reader of the database sees at each revision is what clients see.
    for at in 20..=now.get() {
        let mut seen = BTreeMap::new();
        for (place, value) in &read["key"] {
            let place = VersionPlace::decode(place).unwrap();
            let kv = mvccpb::KeyValue::decode(&value[..]).unwrap();
            if place.main <= at {
                seen.insert(kv.key.clone(), (!place.tombstone).then_some(kv));
            }
        }
        let op = RangeOp {
            at: ReadAt::Revision(Revision::new(at)),
            ..RangeOp::all(KeyRange::From(Key::from_static(b"\0")))
        };
        let expected = replica.0.range(&op, now, &PastValues::default()).unwrap().kvs;
        let expected: Vec<mvccpb::KeyValue> = expected
            .into_iter()
            .map(|kv| schema::version(eddy_crdt::StoredVersion { key: kv.key.clone(), kv: Some(kv) }))
            .collect();
        assert_eq!(seen.into_values().flatten().collect::<Vec<_>>(), expected, "at {at}");
    }
    let (first, last) = (read["key"].keys().next().unwrap(), read["key"].keys().last().unwrap());
    assert!(VersionPlace::decode(first).unwrap().main < 20, "what was written before the compaction and is there");
    assert_eq!(VersionPlace::decode(last).unwrap().main, now.get());
}

#[test]
fn runs_of_any_length_give_the_same_backup() {
    let replica = Still(with_history());
    let whole = taken(&replica).bytes;
    for most in [1, 2, 3, 10, 40, 1000] {
        let captured = Captured::of(&replica.0, 2);
        let runs = Runs::new(&replica, captured.point, 0).of(most);
        let mut taken = Taken::default();
        give_runs(&replica, &captured, runs, &mut taken).unwrap();
        assert!(taken.bytes == whole, "{most}");
    }
}

/// A replica whose replaced values have left memory, with its journal.
struct Released(eddy_crdt::Replica, BTreeMap<u64, Bytes>, Cell<usize>);

impl Look for Released {
    fn look<T>(&self, look: impl FnOnce(&eddy_crdt::Replica) -> T) -> T {
        look(&self.0)
    }

    fn recall(&self, places: Vec<PastPlace>) -> Result<PastValues, NodeError> {
        let mut past = PastValues::default();
        for place in places {
            let value = values_of(self.1[&place.number].clone(), &[place]).unwrap().remove(0).unwrap();
            past.give(place, value);
            self.2.set(self.2.get() + 1);
        }
        Ok(past)
    }
}

#[test]
fn values_that_left_memory_are_read_back() {
    let (mut replica, records) = with_records();
    assert!(replica.release(replica.revision(), usize::MAX));
    let released = Released(replica, records, Cell::new(0));
    let mut again = Taken::default();
    give(&released, &Captured::of(&released.0, 2), &mut again).unwrap();
    assert!(again.bytes == taken(&Still(with_history())).bytes);
    assert!(released.2.get() > 10, "{} were read back", released.2.get());
}

/// A walk goes on within a key that has more versions than it looks at under one lock.
#[test]
fn a_key_with_many_versions_is_there_with_all_of_them() {
    let mut replica = new_replica();
    for n in 0..1500_u32 {
        command(&mut replica, Command::Put(put(if n % 100 == 0 { "a" } else { "hot" }, n.to_string(), None)));
    }
    let replica = Still(replica);
    let read = contents(checked(&taken(&replica))).unwrap();
    let places: Vec<i64> = read["key"].keys().map(|key| VersionPlace::decode(key).unwrap().main).collect();
    assert_eq!(places, (2..1502).collect::<Vec<_>>());
}

/// A leap leaves a revision without a version: etcd takes the present revision from `meta` then.
#[test]
fn a_revision_without_a_version_is_told_as_compacted() {
    let mut replica = with_history();
    command(&mut replica, Command::Leap);
    let revision = replica.revision();
    assert!(revision.get() > 1 << 40);
    let read = contents(checked(&taken(&Still(replica)))).unwrap();
    assert_eq!(read["meta"][schema::COMPACTED], schema::revision(revision));
    let last = read["key"].keys().last().unwrap();
    assert!(VersionPlace::decode(last).unwrap().main < 100);
    let fresh = contents(checked(&taken(&Still(new_replica())))).unwrap();
    assert!(fresh["key"].is_empty() && !fresh["meta"].contains_key(schema::COMPACTED));
}

#[test]
fn nobody_needs_to_take_it() {
    struct Gone;
    impl Take for Gone {
        fn take(&mut self, _: Bytes, _: u64) -> bool {
            false
        }
    }
    let replica = Still(with_history());
    let ended = give(&replica, &Captured::of(&replica.0, 2), &mut Gone);
    assert!(matches!(ended, Err(GiveError::Gone)));
}

/// A replica that is written to between two looks.
struct Written(RefCell<eddy_crdt::Replica>);

impl Look for Written {
    fn look<T>(&self, look: impl FnOnce(&eddy_crdt::Replica) -> T) -> T {
        look(&self.0.borrow())
    }

    fn recall(&self, _: Vec<PastPlace>) -> Result<PastValues, NodeError> {
        unreachable!("nothing left memory")
    }
}

#[test]
fn it_pauses_after_a_slice_only_while_somebody_writes() {
    let replica = Written(RefCell::new(new_replica()));
    let pauses = Cell::new(0);
    let count = || pauses.set(pauses.get() + 1);
    let write = || command(&mut replica.0.borrow_mut(), Command::Put(put("k", "v", None)));
    let at_once = Paced::new(&replica, Duration::ZERO, count);
    let steps = [(false, 0), (false, 0), (true, 1), (false, 1), (true, 2)];
    for (is_written, expected) in steps {
        if is_written {
            write();
        }
        at_once.look(eddy_crdt::Replica::revision);
        assert_eq!(pauses.get(), expected);
    }
    // Within a slice it goes on whatever is written.
    let patient = Paced::new(&replica, Duration::MAX, count);
    for _ in 0..3 {
        write();
        patient.look(eddy_crdt::Replica::revision);
    }
    assert_eq!(pauses.get(), 2);
}
