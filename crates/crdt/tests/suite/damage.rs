//! Whatever happens to a record or to the head: start-up says so, and never gives another state in silence.

use bytes::Bytes;
use eddy_crdt::merge::{ENGINE, Rules, UnknownRules};
use eddy_crdt::{
    Alarm, AlarmKind, Command, Damage, Genesis, Identity, Input, Key, KeyRange, LeaseId, Loader, Now, Op, PastValues,
    RangeOp, Replica, ReplicaId, Txn,
};

use crate::support::build::{add, delete, delete_op, found, genesis, identity, put, put_leased, put_op};
use crate::support::disk;
use crate::support::node::Node;

const IDENTITY: Identity = identity(1, 3);

/// Some of everything, compacted in the middle and trimmed. Its history has versions that are only visible in the past,
/// tombstones at the compacted revision, and records that lost some of their changes. The node also has leases, alarms,
/// and keys of this replica alone.
fn store() -> Node {
    let mut node = Node::empty(IDENTITY);
    let txn = |success: Vec<Op>| Command::Txn(Txn { success, ..Txn::default() });
    let alarm = Alarm { member: ReplicaId::new(2), kind: AlarmKind::NoSpace };
    for command in [
        Command::LeaseGrant { id: LeaseId::new(7), ttl: 60 },
        Command::LeaseGrant { id: LeaseId::new(8), ttl: 60 },
        put("a", "old"),
        put("a", "seen by the compaction alone"),
        txn(vec![
            Op::Put(put_op("b", "1", Some(7))),
            Op::Put(put_op("c", "1", Some(8))),
            Op::Put(put_op("d", "1", None)),
        ]),
        put("compact_rev_key", "1"),
        Command::SetAlarm { alarm, raised: true },
        Command::LeaseRevoke(LeaseId::new(8)),
        txn(vec![Op::Put(put_op("d", "2", None)), Op::Delete(delete_op("b"))]),
        Command::Compact(7),
        put("a", "new"),
        put_leased("b", "", Some(7)),
        put("compact_rev_key", "2"),
        delete("d"),
    ] {
        let effects = node.handle(Now::default(), Input::Client(command));
        assert!(effects.reply.is_some_and(|reply| reply.is_ok()));
    }
    while !node.sweep(2) {}
    node.trim(usize::MAX);
    node
}

fn load(records: &[(u64, Bytes)], head: Option<&Bytes>) -> Result<Replica, Damage> {
    let records = records.iter().map(|(number, record)| (number, record));
    disk::load(records, head, Now::default(), IDENTITY)
}

fn whole() -> (Vec<(u64, Bytes)>, Bytes) {
    let node = store();
    let (records, head): (Vec<_>, _) = (node.disk.durable.records.into_iter().collect(), node.replica.head().encode());
    assert!(load(&records, Some(&head)).is_ok());
    (records, head)
}

#[test]
fn every_record_that_is_missing_shows() {
    let (records, head) = whole();
    for place in 0..records.len() {
        let mut fewer = records.clone();
        let (number, _) = fewer.remove(place);
        assert!(load(&fewer, Some(&head)).is_err(), "record {number}");
    }
    for len in 0..records.len() {
        assert!(load(&records[..len], Some(&head)).is_err(), "the first {len} records");
    }
}

#[test]
fn doubled_swapped_and_misplaced_records_show() {
    let (records, head) = whole();
    for place in 1..records.len() {
        let mut doubled = records.clone();
        doubled.insert(place, records[place - 1].clone());
        assert!(load(&doubled, Some(&head)).is_err(), "doubled {place}");
        let mut swapped = records.clone();
        swapped.swap(place - 1, place);
        assert!(load(&swapped, Some(&head)).is_err(), "swapped {place}");
        let mut misplaced = records.clone();
        misplaced[place].1 = records[place - 1].1.clone();
        assert!(load(&misplaced, Some(&head)).is_err(), "misplaced {place}");
    }
}

#[test]
fn every_flipped_bit_and_every_cut_shows() {
    let (records, head) = whole();
    let flips = |bytes: &Bytes| {
        let bytes = bytes.clone();
        (0..bytes.len() * 8).map(move |bit| {
            let mut flipped = bytes.to_vec();
            flipped[bit / 8] ^= 1 << (bit % 8);
            Bytes::from(flipped)
        })
    };
    let cuts = |bytes: &Bytes| {
        let bytes = bytes.clone();
        (0..bytes.len()).map(move |len| bytes.slice(..len))
    };
    for (place, (number, record)) in records.iter().enumerate() {
        for damaged in flips(record).chain(cuts(record)) {
            let mut records = records.clone();
            records[place].1 = damaged;
            assert!(load(&records, Some(&head)).is_err(), "record {number}");
        }
    }
    for damaged in flips(&head).chain(cuts(&head)) {
        assert!(load(&records, Some(&damaged)).is_err(), "head");
    }
}

#[test]
fn a_head_that_is_not_the_records_own_shows() {
    let (records, head) = whole();
    assert!(matches!(load(&records, None), Err(Damage::NoHead)));
    let mut other = Replica::new(IDENTITY);
    let mut older = vec![other.head().encode()];
    for value in ["1", "2", "3"] {
        other.handle(Now::default(), Input::Client(put("a", value)));
        older.push(other.head().encode());
    }
    for older in &older {
        assert!(load(&records, Some(older)).is_err());
    }
    assert!(load(&[], Some(&head)).is_err());
}

/// What a window stands on is read a second time.
#[test]
fn a_record_that_cannot_be_read_again_is_named() {
    let mut node = store();
    for command in [add(1), put("a", "again"), put("a", "and again")] {
        let effects = node.handle(Now::default(), Input::Client(command));
        assert!(effects.reply.is_some_and(|reply| reply.is_ok()));
    }
    let image = node.disk.written();
    let a = RangeOp::all(KeyRange::Key(Key::from_static(b"a")));
    let base = node.replica.range(&a, node.replica.revision(), &PastValues::default());
    let other = image.records.values().next().cloned().expect("a record");
    let load = |again: &mut dyn FnMut(u64) -> Option<Bytes>| {
        let mut loader = Loader::new(image.head.as_ref())?;
        for (number, record) in &image.records {
            loader.record(*number, record.clone())?;
        }
        loader.finish(Now::default(), IDENTITY, again)
    };
    let mut asked = vec![];
    let whole = load(&mut |number| {
        asked.push(number);
        image.records.get(&number).cloned()
    });
    assert!(whole.is_ok_and(|replica| replica.range(&a, replica.revision(), &PastValues::default()) == base));
    assert!(!asked.is_empty(), "no window stands on anything");
    for again in [None, Some(Bytes::from_static(b"no record")), Some(other)] {
        let failed = load(&mut |_| again.clone()).err();
        assert!(matches!(failed, Some(Damage::Again { number }) if asked.contains(&number)), "{failed:?}");
    }
}

/// A build that merged by other rules than its peers would hold another state than they.
#[test]
fn rules_that_need_another_engine_are_refused_by_their_number() {
    let rules = Rules { engine: 9, ..Rules::default() };
    let (_, image) = found(identity(0, 3), &Genesis { rules, ..genesis(2) });
    let records: Vec<(u64, Bytes)> = image.records.into_iter().collect();
    let error = load(&records, image.head.as_ref()).err();
    assert!(
        matches!(error, Some(Damage::Rules(UnknownRules::Engine { number: 1, engine: 9, newest: ENGINE }))),
        "{error:?}"
    );
}
