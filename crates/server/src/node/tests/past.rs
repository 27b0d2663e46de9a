//! Replaced values leave memory, and are read back from the journal.

use std::time::Duration;

use eddy_crdt::{DeleteOp, KeyRange, Op, OpReply, PastPlace, RangeOp, ReadAt, Refusal, Revision};
use futures::poll;

use super::support::*;
use super::watching::spec;
use crate::node::watch::WatchItem;
use crate::node::{NodeError, start};
use crate::storage::faulty::Disk;
use crate::storage::{DiskJournal, Options};

fn at(name: &str, revision: i64) -> RangeOp {
    RangeOp { at: ReadAt::Revision(Revision::new(revision)), ..RangeOp::all(KeyRange::Key(key(name))) }
}

#[tokio::test]
async fn clients_read_and_watch_what_was_replaced() {
    let disk = Disk::new();
    let node = node(&disk);
    for n in 1..=5 {
        put_ok(&node, "a", &format!("value {n}")).await;
    }
    let values = |kvs: &[eddy_crdt::KeyValue]| kvs.iter().map(|kv| kv.value.clone()).collect::<Vec<_>>();
    let read_back = || node.engine.metrics.past_values_read.get();
    assert_eq!(values(&node.range(&at("a", 3)).await.unwrap().kvs), ["value 2"]);
    assert_eq!(read_back(), 1);
    let reads = vec![Op::Range(at("a", 2)), Op::Range(at("a", 4))];
    let only = node.read_txn(&txn(reads.clone())).await.unwrap().replies;
    let written = node.txn(txn([reads, vec![Op::Put(put("a", "value 6"))]].concat())).await.unwrap().replies;
    for replies in [only, written] {
        let [OpReply::Range(first), OpReply::Range(second), ..] = &replies[..] else { panic!("{replies:?}") };
        assert_eq!([values(&first.kvs), values(&second.kvs)].concat(), ["value 1", "value 3"]);
    }
    assert_eq!(read_back(), 5);
    // Of keys alone, of counts and of the present nothing is read back.
    node.range(&RangeOp { keys_only: true, ..at("a", 3) }).await.unwrap();
    node.range(&RangeOp { count_only: true, ..at("a", 3) }).await.unwrap();
    node.range(&at("a", 7)).await.unwrap();
    assert_eq!(read_back(), 5);

    let mut stream = node.watch_stream();
    stream.create(spec(everything(), Some(2))).unwrap();
    let mut seen = vec![];
    while seen.len() < 6 {
        let Some(WatchItem::Events { events, .. }) = stream.next().await else { panic!("it ends") };
        seen.extend(events.iter().map(|event| (event.written().cloned(), event.prev.clone())));
    }
    for (n, (written, prev)) in (1..).zip(seen) {
        assert_eq!(written.unwrap().value, format!("value {n}"));
        assert_eq!(prev.map(|prev| prev.value), (n > 1).then(|| format!("value {}", n - 1).into()));
    }
    node.shutdown();
}

/// One that deletes everything may be the last. What it replaced would stay in memory until others come.
#[tokio::test]
async fn what_the_last_command_replaced_leaves_memory() {
    let disk = Disk::new();
    let node = node(&disk);
    let value = "v".repeat(4 << 10);
    for n in 0..300 {
        put_ok(&node, &format!("k{n}"), &value).await;
    }
    node.delete(DeleteOp { range: everything(), prev_kv: false }).await.unwrap();
    let replaced = || node.engine.replica.read().replaced_bytes();
    for _ in 0..500 {
        if replaced() == 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(replaced(), 0);
    node.shutdown();
}

#[tokio::test]
async fn while_the_past_is_read_nobody_waits_for_it() {
    let disk = Disk::new();
    let (node, gate) = gated(&disk);
    for n in 1..=3 {
        put_ok(&node, "a", &format!("value {n}")).await;
    }
    gate.close();
    let mut write = Box::pin(node.put(put("b", "1")));
    assert!(poll!(&mut write).is_pending());
    gate.wait_for_append();
    // The thread that reads is held up.
    let op = at("a", 2);
    let mut past = Box::pin(node.range(&op));
    assert!(poll!(&mut past).is_pending());
    assert_eq!(get(&node, "a"), Some(key("value 3")));
    gate.open();
    assert_eq!(past.await.unwrap().kvs[0].value, "value 1");
    write.await.unwrap();
    node.shutdown();
}

#[tokio::test]
async fn what_a_compaction_took_meanwhile_is_compacted() {
    let disk = Disk::new();
    let node = node(&disk);
    put_ok(&node, "a", "value").await;
    let gone = PastPlace { number: 1 << 20, sub: 0, len: 5, crc: 0 };
    let refused = Err(NodeError::Refused(Refusal::Compacted));
    assert_eq!(node.engine.recall(vec![gone]).await.map(drop), refused);
    // The record is there, and does not hold that value any more.
    let other = PastPlace { number: node.journal_number() - 1, ..gone };
    assert_eq!(node.engine.recall(vec![other]).await.map(drop), refused);
    node.shutdown();
}

#[tokio::test]
async fn a_past_that_cannot_be_read_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let journal = DiskJournal::open(dir.path(), Options::default()).unwrap();
    let node = start(Box::new(journal), options()).unwrap();
    for n in 1..=3 {
        put_ok(&node, "a", &format!("a value to be found {n}")).await;
    }
    let log = std::fs::read_dir(dir.path().join("eddy/wal")).unwrap().next().unwrap().unwrap().path();
    let mut bytes = std::fs::read(&log).unwrap();
    let value = b"a value to be found 1";
    let place = bytes.windows(value.len()).position(|window| window == value).unwrap();
    bytes[place] ^= 1;
    std::fs::write(&log, bytes).unwrap();
    let Err(NodeError::Storage(told)) = node.range(&at("a", 2)).await else { panic!("it was read") };
    assert!(told.contains("does not check out") && told.contains("wal"), "{told}");
    let mut stream = node.watch_stream();
    stream.create(spec(everything(), Some(2))).unwrap();
    assert!(stream.next().await.is_none(), "a watcher is told something else than what happened");
    assert_eq!(get(&node, "a"), Some(key("a value to be found 3")), "the present goes on");
    put_ok(&node, "a", "next").await;
    node.shutdown();
}
