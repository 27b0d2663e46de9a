//! Whatever happens to a record or to the head: start-up says so, and never gives another state in silence.

use std::collections::BTreeMap;

use bytes::Bytes;
use eddy_crdt::{
    Alarm, AlarmKind, Birth, ClusterId, Command, Damage, DeleteOp, Identity, Input, KeyRange, LeaseId, Loader, Now, Op,
    PutLease, PutOp, PutValue, Replica, ReplicaId, Txn,
};

const IDENTITY: Identity =
    Identity { cluster: ClusterId::new(1), replica: ReplicaId::new(2), birth: Birth::new(3), ordinal: 0 };

struct Store {
    records: BTreeMap<u64, Bytes>,
    head: Bytes,
}

fn put(key: &'static str, value: &'static str, lease: Option<i64>) -> PutOp {
    PutOp {
        key: Bytes::from_static(key.as_bytes()),
        value: PutValue::Set(Bytes::from_static(value.as_bytes())),
        lease: PutLease::Set(lease.map(LeaseId::new)),
        prev_kv: false,
    }
}

fn delete(key: &'static str) -> DeleteOp {
    DeleteOp { range: KeyRange::Key(Bytes::from_static(key.as_bytes())), prev_kv: false }
}

/// Some of everything, compacted in the middle and trimmed: versions that are only visible in the past, records that
/// lost some of their changes, tombstones at the compacted revision, leases, alarms, keys of this replica alone.
fn store() -> Store {
    let mut replica = Replica::new(IDENTITY);
    let mut records = BTreeMap::new();
    let mut run = |replica: &mut Replica, command| {
        let first = replica.next_number();
        let effects = replica.handle(Now::default(), Input::Client(command));
        assert!(effects.reply.is_some_and(|reply| reply.is_ok()));
        records.extend((first..).zip(effects.records));
    };
    let txn = |success: Vec<Op>| Command::Txn(Txn { success, ..Txn::default() });
    let alarm = Alarm { member: ReplicaId::new(2), kind: AlarmKind::NoSpace };
    for command in [
        Command::LeaseGrant { id: LeaseId::new(7), ttl: 60 },
        Command::LeaseGrant { id: LeaseId::new(8), ttl: 60 },
        Command::Put(put("a", "old", None)),
        Command::Put(put("a", "seen by the compaction alone", None)),
        txn(vec![Op::Put(put("b", "1", Some(7))), Op::Put(put("c", "1", Some(8))), Op::Put(put("d", "1", None))]),
        Command::Put(put("compact_rev_key", "1", None)),
        Command::SetAlarm { alarm, raised: true },
        Command::LeaseRevoke(LeaseId::new(8)),
        txn(vec![Op::Put(put("d", "2", None)), Op::Delete(delete("b"))]),
        Command::Compact(7),
        Command::Put(put("a", "new", None)),
        Command::Put(put("b", "", Some(7))),
        Command::Put(put("compact_rev_key", "2", None)),
        Command::Delete(delete("d")),
    ] {
        run(&mut replica, command);
    }
    let mut dead = vec![];
    loop {
        let sweep = replica.sweep(2);
        dead.extend(sweep.dead);
        if sweep.done {
            break;
        }
    }
    for number in dead {
        if let Some(record) = records.remove(&number)
            && let Some(record) = replica.trim(&record)
        {
            records.insert(number, record);
        }
    }
    Store { records, head: replica.head().encode() }
}

fn load(records: &[(u64, Bytes)], head: Option<&Bytes>) -> Result<Replica, Damage> {
    let mut loader = Loader::new();
    for (number, record) in records {
        loader.record(*number, record.clone())?;
    }
    loader.finish(Now::default(), head, IDENTITY)
}

fn whole() -> (Vec<(u64, Bytes)>, Bytes) {
    let Store { records, head } = store();
    let records: Vec<_> = records.into_iter().collect();
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
        other.handle(Now::default(), Input::Client(Command::Put(put("a", value, None))));
        older.push(other.head().encode());
    }
    for older in &older {
        assert!(load(&records, Some(older)).is_err());
    }
    assert!(load(&[], Some(&head)).is_err());
}
