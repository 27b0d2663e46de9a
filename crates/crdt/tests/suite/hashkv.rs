//! `hash_kv` gives what a real etcd 3.7.3 gave for the same commands. `golden/hashkv.py` recorded etcd's answers in
//! `golden/hashkv.txt`. The commands are puts, deletes, transactions, leases, and compactions at and above tombstones.

use bytes::Bytes;
use eddy_crdt::{
    Command, DeleteOp, HashWalk, Input, KeyRange, LeaseId, Now, Op, PutLease, PutOp, PutValue, Replica, Revision, Txn,
};

use crate::support::build::identity;

fn text(word: &str) -> Bytes {
    Bytes::copy_from_slice(if word == "~" { b"" } else { word.as_bytes() })
}

fn step(line: &str) -> Op {
    match line.split(' ').collect::<Vec<_>>()[..] {
        ["put", key, value, lease] => Op::Put(PutOp {
            key: text(key),
            value: PutValue::Set(text(value)),
            lease: PutLease::Set(LeaseId::from_wire(lease.parse().unwrap())),
            prev_kv: false,
        }),
        ["del", key, end] => Op::Delete(DeleteOp { range: KeyRange::from_wire(text(key), text(end)), prev_kv: false }),
        _ => panic!("{line}"),
    }
}

fn command(line: &str) -> Command {
    let (name, rest) = line.split_once(' ').unwrap();
    let number = |word: &str| word.parse::<i64>().unwrap();
    match (name, step) {
        ("txn", step) => Command::Txn(Txn { success: rest.split(';').map(step).collect(), ..Txn::default() }),
        ("grant", _) => {
            let (id, ttl) = rest.split_once(' ').unwrap();
            Command::LeaseGrant { id: LeaseId::new(number(id)), ttl: number(ttl) }
        }
        ("revoke", _) => Command::LeaseRevoke(LeaseId::new(number(rest))),
        ("compact", _) => Command::Compact(number(rest)),
        (_, step) => match step(line) {
            Op::Put(op) => Command::Put(op),
            Op::Delete(op) => Command::Delete(op),
            Op::Range(_) | Op::Txn(_) => unreachable!(),
        },
    }
}

/// `swept`: whether compactions are swept at once, as they are in the recording; etcd's answers do not depend on it.
/// `released`: whether replaced values leave memory at once.
fn check(swept: bool, released: bool) {
    let mut replica = Replica::new(identity(1, 3));
    let mut hashes = 0;
    // Hashes that are taken version by version while the replica goes on, with what they must become.
    let mut slow: Vec<(HashWalk, u32)> = vec![];
    for (place, line) in include_str!("golden/hashkv.txt").lines().enumerate() {
        if let Some(answer) = line.strip_prefix("hash ") {
            let [at, hash, compacted]: [i64; 3] =
                answer.split(' ').map(|n| n.parse().unwrap()).collect::<Vec<_>>().try_into().unwrap();
            assert_eq!(replica.compacted().map_or(-1, Revision::get), compacted, "line {}", place + 1);
            let named = Some(Revision::new(at));
            let (ours, revision) = replica.hash_kv(named).unwrap();
            assert_eq!((i64::from(ours), revision.get()), (hash, at), "line {}: revision {at}", place + 1);
            let mut walk = replica.begin_hash(named).unwrap();
            let most = 1 + place % 4;
            while !replica.hash_on(&mut walk, most).unwrap() {}
            assert_eq!(walk.finish(), ours, "line {}: {most} at a time", place + 1);
            slow.push((replica.begin_hash(named).unwrap(), ours));
            hashes += 1;
        } else if line != "restart" {
            let effects = replica.handle(Now::default(), Input::Client(command(line)));
            assert!(effects.reply.unwrap().is_ok(), "line {}: {line}", place + 1);
            while swept && !replica.sweep(7, true).done {}
            if released {
                replica.release(replica.revision(), usize::MAX);
            }
            for (walk, _) in &mut slow {
                replica.hash_on(walk, 1).unwrap();
            }
        }
    }
    assert!(hashes > 100);
    // A sweep would take from them what they have yet to see.
    for (mut walk, expected) in slow.into_iter().filter(|_| !swept) {
        while !replica.hash_on(&mut walk, 1).unwrap() {}
        assert_eq!(walk.finish(), expected);
    }
}

#[test]
fn hash_kv_is_etcds_when_compactions_are_swept() {
    check(true, false);
}

#[test]
fn hash_kv_does_not_depend_on_how_far_a_compaction_was_swept() {
    check(false, false);
}

#[test]
fn hash_kv_does_not_depend_on_which_values_are_in_memory() {
    check(true, true);
    check(false, true);
}
