//! Written, read again, altered, restored.

use std::collections::BTreeMap;
use std::io::Cursor;

use bytes::Bytes;
use eddy_crdt::{
    Birth, ClusterId, Command, DeleteOp, Founder, Genesis, Identity, Input, Key, KeyRange, LeaseId, Now, Op, PastPlace,
    PastValues, PutLease, PutOp, PutValue, Replica, ReplicaId, Txn,
};

use super::give::{HASH_BYTES, Take, give};
use super::order::Look;
use super::page::PAGE_SIZE;
use super::read::{BadDatabase, Database};
use super::write::{Part, Sink, Trees, first_pages};
use crate::node::{Captured, NodeError};

mod format;
mod giving;
mod restoring;

#[derive(Default)]
struct Memory(Vec<u8>);

impl Sink for Memory {
    type Error = std::convert::Infallible;

    fn take(&mut self, page: Option<Vec<u8>>) -> Result<(), Self::Error> {
        self.0.extend(page.expect("whole pages"));
        Ok(())
    }
}

type Contents = BTreeMap<Vec<u8>, Vec<u8>>;

/// A database with one bucket for each name.
fn database(buckets: &[(&'static str, &Contents)]) -> Vec<u8> {
    let (mut trees, mut roots) = (Trees::new(Memory::default()), vec![]);
    for (name, contents) in buckets {
        for (key, value) in *contents {
            let Ok(()) = trees.push(Part::Bytes(key), Part::Bytes(value));
        }
        let Ok(root) = trees.finish();
        roots.push((*name, root));
    }
    let (pages, Memory(rest)) = trees.end();
    let bytes = [first_pages(pages, &roots), rest].concat();
    assert_eq!(bytes.len() as u64, pages * PAGE_SIZE as u64);
    bytes
}

fn contents(bytes: &[u8]) -> Result<BTreeMap<String, Contents>, BadDatabase> {
    let mut database = Database::open(Cursor::new(bytes), bytes.len() as u64)?;
    let mut all = BTreeMap::new();
    for (name, bucket) in database.buckets()? {
        let mut found = Contents::new();
        database.each(&bucket, |key, value| {
            assert!(found.insert(key.to_vec(), value.to_vec()).is_none());
            Ok::<(), BadDatabase>(())
        })?;
        all.insert(String::from_utf8_lossy(&name).into_owned(), found);
    }
    Ok(all)
}

const FULL: Now = Now { wall_ms: 1_700_000_000_000, mono_ms: 1 };

/// A replica that nothing changes.
struct Still(Replica);

impl Look for Still {
    fn look<T>(&self, look: impl FnOnce(&Replica) -> T) -> T {
        look(&self.0)
    }

    fn recall(&self, _: Vec<PastPlace>) -> Result<PastValues, NodeError> {
        unreachable!("nothing left memory")
    }
}

fn new_replica() -> Replica {
    let (cluster, replica) = (ClusterId::new(3), ReplicaId::new(7));
    let founder = Founder { id: replica, name: "m".to_owned(), peer_urls: vec!["http://a:2380".to_owned()] };
    let genesis = Genesis { founders: vec![founder], ..Genesis::default() };
    Replica::found(Identity { cluster, replica, birth: Birth::new(1), ordinal: 0 }, &genesis).0
}

fn command(replica: &mut Replica, command: Command) -> Vec<Bytes> {
    let effects = replica.handle(FULL, Input::Client(command));
    assert!(matches!(effects.reply, Some(Ok(_))), "{:?}", effects.reply);
    effects.records.into_iter().collect()
}

fn put(key: impl Into<Bytes>, value: impl Into<Bytes>, lease: Option<LeaseId>) -> PutOp {
    PutOp { key: key.into(), value: PutValue::Set(value.into()), lease: PutLease::Set(lease), prev_kv: false }
}

/// Puts, deletes, transactions of several keys, a lease, a compaction.
fn with_history() -> Replica {
    with_records().0
}

/// The same with its records.
fn with_records() -> (Replica, BTreeMap<u64, Bytes>) {
    let (mut replica, mut records) = (new_replica(), BTreeMap::new());
    let mut command =
        |replica: &mut Replica, asked| records.extend((replica.next_number()..).zip(command(replica, asked)));
    let lease = LeaseId::new(77);
    command(&mut replica, Command::LeaseGrant { id: lease, ttl: 600 });
    for n in 0..40_u32 {
        let key = format!("k{}", n % 9);
        command(&mut replica, Command::Put(put(key, format!("v{n}"), (n % 5 == 0).then_some(lease))));
        if n % 6 == 5 {
            let range = KeyRange::Span(Key::from_static(b"k2"), Key::from_static(b"k5"));
            command(&mut replica, Command::Delete(DeleteOp { range, prev_kv: false }));
        }
        if n % 10 == 3 {
            let ops = ["x", "y", "z"].map(|key| Op::Put(put(key, format!("t{n}"), None)));
            command(&mut replica, Command::Txn(Txn { success: ops.into(), ..Txn::default() }));
        }
    }
    command(&mut replica, Command::Compact(20));
    (replica, records)
}

#[derive(Default)]
struct Taken {
    bytes: Vec<u8>,
    remaining: Vec<u64>,
}

impl Take for Taken {
    fn take(&mut self, part: Bytes, remaining: u64) -> bool {
        self.bytes.extend_from_slice(&part);
        self.remaining.push(remaining);
        true
    }
}

fn taken(replica: &Still) -> Taken {
    let mut taken = Taken::default();
    give(replica, &Captured::of(&replica.0, 2), &mut taken).unwrap();
    taken
}

/// The database without its hash, which is right.
fn checked(taken: &Taken) -> &[u8] {
    let (database, hash) = taken.bytes.split_at(taken.bytes.len() - HASH_BYTES);
    assert_eq!(hash, ring::digest::digest(&ring::digest::SHA256, database).as_ref());
    assert_eq!(database.len() % PAGE_SIZE, 0);
    database
}
