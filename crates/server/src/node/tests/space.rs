//! A disk that is full, and one that does not answer.

use std::time::Duration;

use eddy_crdt::LeaseId;

use super::support::{delete, gated, get, key, node, put, put_ok};
use crate::node::{Handle, NodeError, NodeState, REQUEST_TIMEOUT};
use crate::storage::faulty::Disk;

async fn until_running(node: &Handle) {
    let running = async {
        while node.state() != NodeState::Running {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), running).await.expect("writes must come back");
}

#[tokio::test]
async fn a_full_disk_refuses_writes_until_there_is_space_and_loses_nothing() {
    let disk = Disk::new();
    let node = node(&disk);
    node.lease_grant(LeaseId::new(7), 100).await.unwrap();
    put_ok(&node, "a", "1").await;
    let before = node.revision();
    disk.set_full(true);
    // The one that finds out may be written later.
    assert_eq!(node.put(put("found-out", "x")).await, Err(NodeError::TimedOut));
    assert!(matches!(node.state(), NodeState::WritesPaused { .. }));
    // The others are refused for good.
    for _ in 0..10 {
        assert_eq!(node.put(put("b", "1")).await, Err(NodeError::NoSpace));
        assert_eq!(node.delete(delete("a")).await, Err(NodeError::NoSpace));
    }
    assert_eq!(node.compact(before.get(), false).await, Err(NodeError::NoSpace));
    let renewed = node.lease_renew(LeaseId::new(7)).await;
    assert_eq!(renewed, Ok(100), "leases are kept alive");
    assert_eq!((node.revision(), get(&node, "a")), (before, Some(key("1"))), "reads go on");
    assert_eq!(get(&node, "found-out"), None, "what is not on disk is not shown");

    disk.set_full(false);
    until_running(&node).await;
    assert_eq!(put_ok(&node, "b", "2").await.get(), before.get() + 2);
    assert_eq!(get(&node, "found-out"), Some(key("x")));
    assert!(node.shutdown());
    disk.crash();
    let node = super::support::node(&disk);
    assert_eq!(node.revision().get(), before.get() + 2);
    assert_eq!(get(&node, "b"), Some(key("2")));
    assert!(node.shutdown());
}

#[tokio::test]
async fn a_node_stopped_on_a_full_disk_keeps_what_it_acknowledged() {
    let disk = Disk::new();
    let node = node(&disk);
    put_ok(&node, "a", "1").await;
    disk.set_full(true);
    assert_eq!(node.put(put("lost", "x")).await, Err(NodeError::TimedOut));
    assert!(node.shutdown());
    disk.set_full(false);
    disk.crash();
    let node = super::support::node(&disk);
    assert_eq!((get(&node, "a"), get(&node, "lost")), (Some(key("1")), None));
    assert_eq!(put_ok(&node, "b", "1").await.get(), 3);
    assert!(node.shutdown());
}

#[tokio::test]
async fn a_disk_that_does_not_answer_holds_up_nobody_for_ever() {
    let disk = Disk::new();
    let (node, gate) = gated(&disk);
    gate.close();
    let began = std::time::Instant::now();
    let results = futures::future::join_all((0..5).map(|n| node.put(put(&n.to_string(), "x")))).await;
    assert!(results.iter().all(|result| *result == Err(NodeError::TimedOut)), "{results:?}");
    assert!(began.elapsed() >= REQUEST_TIMEOUT);
    assert!(matches!(node.state(), NodeState::WritesPaused { .. }), "{:?}", node.state());
    assert_eq!(get(&node, "0"), None, "reads go on");
    assert!(!node.shutdown(), "it stops without the disk");
    gate.open();
}
