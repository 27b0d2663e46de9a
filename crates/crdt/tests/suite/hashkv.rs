//! `hash_kv` gives what a real etcd 3.7.3 gave for the same commands. `golden/hashkv.py` recorded etcd's answers in
//! `golden/hashkv.txt`. The commands are puts, deletes, transactions, leases, and compactions at and above tombstones.

use bytes::Bytes;
use eddy_crdt::{Command, DeleteOp, Input, KeyRange, LeaseId, Now, Op, PutLease, PutOp, PutValue, Replica, Txn};

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
fn check(swept: bool) {
    let mut replica = Replica::new(identity(1, 3));
    let mut hashes = 0;
    for (place, line) in include_str!("golden/hashkv.txt").lines().enumerate() {
        if let Some(answer) = line.strip_prefix("hash ") {
            let [at, hash, compacted]: [i64; 3] =
                answer.split(' ').map(|n| n.parse().unwrap()).collect::<Vec<_>>().try_into().unwrap();
            assert_eq!(replica.compacted().map_or(-1, eddy_crdt::Revision::get), compacted, "line {}", place + 1);
            let (ours, revision) = replica.hash_kv(Some(eddy_crdt::Revision::new(at))).unwrap();
            assert_eq!((i64::from(ours), revision.get()), (hash, at), "line {}: revision {at}", place + 1);
            hashes += 1;
        } else if line != "restart" {
            let effects = replica.handle(Now::default(), Input::Client(command(line)));
            assert!(effects.reply.unwrap().is_ok(), "line {}: {line}", place + 1);
            while swept && !replica.sweep(7, true).done {}
        }
    }
    assert!(hashes > 100);
}

#[test]
fn hash_kv_is_etcds_when_compactions_are_swept() {
    check(true);
}

#[test]
fn hash_kv_does_not_depend_on_how_far_a_compaction_was_swept() {
    check(false);
}
