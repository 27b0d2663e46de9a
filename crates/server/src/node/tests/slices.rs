//! Long reads in slices: between two of them clients write, and compactions are swept.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use eddy_crdt::{KeyRange, Op, RangeOp};
use tokio::time::timeout;

use super::support::*;
use crate::node::hold::Hold;
use crate::node::{Options, SweepPace, start};
use crate::storage::faulty::Disk;

/// Several times what one lock is held for.
const KEYS: usize = 20;

fn all_keys(value: &str) -> Vec<Op> {
    (0..KEYS).map(|n| Op::Put(put(&format!("k{n:02}"), value))).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_range_is_of_one_moment_whatever_is_written_and_swept_meanwhile() {
    let pace = SweepPace { batch: 5, pause: Duration::ZERO };
    let node = start(Box::new(Disk::new().open()), Options { sweep: pace, ..options() }).unwrap();
    node.txn(txn(all_keys("first"))).await.unwrap();
    let done = Arc::new(AtomicBool::new(false));
    let readers: Vec<_> = (0..2)
        .map(|_| {
            let (node, done) = (node.clone(), Arc::clone(&done));
            tokio::spawn(async move {
                let (mut reads, mut last) = (0, node.revision());
                while !done.load(Ordering::Acquire) {
                    let reply = node.range(&RangeOp::all(everything())).await.unwrap();
                    let values: Vec<_> = reply.kvs.iter().map(|kv| kv.value.clone()).collect();
                    assert_eq!(values.len(), KEYS, "at {:?}", reply.revision);
                    assert!(values.iter().all(|value| *value == values[0]), "at {:?}: {values:?}", reply.revision);
                    assert!(reply.revision >= last);
                    (reads, last) = (reads + 1, reply.revision);
                    tokio::task::yield_now().await;
                }
                reads
            })
        })
        .collect();
    for round in 0..1000 {
        let written = node.txn(txn(all_keys(&round.to_string()))).await.unwrap().revision;
        node.compact(written.get(), round % 8 == 0).await.unwrap();
    }
    done.store(true, Ordering::Release);
    for reader in readers {
        assert!(reader.await.unwrap() > 0);
    }
    node.shutdown();
}

#[tokio::test]
async fn a_walk_holds_back_the_sweeps_of_later_compactions_only() {
    let disk = Disk::new();
    let node = node(&disk);
    let mut written = vec![];
    for n in 0..10 {
        written.push(put_ok(&node, "a", &n.to_string()).await);
    }
    let old = Hold::new(&node.engine, Some(written[4]));
    node.compact(written[4].get(), true).await.unwrap();
    assert_eq!(disk.durable().len(), 6, "what it reads at is swept to");
    let mut later = Box::pin(node.compact(written[8].get(), true));
    let waits = timeout(Duration::from_millis(50), &mut later).await.is_err();
    assert_eq!((waits, disk.durable().len()), (true, 6), "nothing above is");
    // One that begins later does not make it wait longer: there can be one at any time.
    let new = Hold::new(&node.engine, Some(written[8]));
    drop(old);
    later.await.unwrap();
    drop(new);
    let reply = node.range(&RangeOp::all(KeyRange::Key(key("a")))).await.unwrap();
    assert_eq!(reply.kvs[0].value, "9");
    node.shutdown();
}
