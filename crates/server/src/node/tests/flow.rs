//! Commands: groups, durability, failures, limits, the end.

use std::time::Duration;

use eddy_crdt::{
    Alarm, AlarmKind, Compare, CompareResult, CompareTarget, Input, KeyRange, LeaseId, RangeOp, Refusal, Revision, Txn,
    VersionVector,
};
use futures::future::join_all;
use futures::poll;
use tokio::time::timeout;

use super::support::*;
use crate::node::{NodeError, NodeState, start};
use crate::storage::faulty::{Disk, Fault};

/// Polls until the condition holds, for instance of the queue's length. The committer is known to be stuck meanwhile.
async fn until(condition: impl Fn() -> bool) {
    while !condition() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn nothing_leaves_before_the_flush_and_what_waits_becomes_one_group() {
    let disk = Disk::new();
    let (node, gate) = gated(&disk);
    gate.close();
    let mut first = Box::pin(node.put(put("a", "1")));
    assert!(poll!(&mut first).is_pending());
    gate.wait_for_append();
    assert_eq!(node.revision(), Revision::FIRST);
    assert_eq!(get(&node, "a"), None, "a read must not show what is not durable");
    // The second group is applied while the first is flushed; all others collect into the next ones.
    let mut rest: Vec<_> = (0..100).map(|n| Box::pin(node.put(put(&format!("k{n}"), "v")))).collect();
    for write in &mut rest {
        assert!(poll!(write).is_pending());
    }
    assert_eq!(node.revision(), Revision::FIRST);
    gate.open();
    first.await.unwrap();
    let revisions: Vec<i64> = join_all(rest).await.into_iter().map(|reply| reply.unwrap().revision.get()).collect();
    assert_eq!(revisions, (3..103).collect::<Vec<i64>>());
    let groups = gate.groups();
    assert_eq!(groups.iter().sum::<usize>(), 101);
    assert!(groups.len() <= 5, "{groups:?}");
    assert_eq!(node.revision().get(), 102);
    node.shutdown();
}

#[tokio::test]
async fn answers_without_records_wait_for_what_they_saw() {
    let disk = Disk::new();
    let (node, gate) = gated(&disk);
    put_ok(&node, "a", "1").await;
    gate.close();
    let mut write = Box::pin(node.put(put("a", "2")));
    assert!(poll!(&mut write).is_pending());
    gate.wait_for_append();
    // This compare fails because of a write that is not durable: the answer would give it away.
    let compare =
        Compare { range: KeyRange::Key(key("a")), target: CompareTarget::Version(1), result: CompareResult::Equal };
    let txn = Txn { compares: vec![compare], success: vec![], failure: vec![] };
    let mut failed = Box::pin(node.txn(txn));
    let mut lease = Box::pin(node.lease(LeaseId::new(1)));
    assert!(poll!(&mut failed).is_pending());
    assert!(poll!(&mut lease).is_pending());
    gate.open();
    assert!(!failed.await.unwrap().succeeded);
    assert_eq!(lease.await, Ok(None));
    write.await.unwrap();
    node.shutdown();
}

#[tokio::test]
async fn every_acknowledged_write_survives_whichever_flush_fails() {
    for fault in [Fault::Flush, Fault::FlushButWritten] {
        for nth in 1..12 {
            let disk = Disk::new();
            let node = node(&disk);
            disk.fail_at(nth, fault);
            let mut acknowledged = Vec::new();
            let mut last = Revision::FIRST;
            for round in 0..8 {
                let writes: Vec<String> = (0..5).map(|n| format!("{round}.{n}")).collect();
                let results = join_all(writes.iter().map(|name| node.put(put(name, name)))).await;
                for (name, result) in writes.into_iter().zip(results) {
                    match result {
                        Ok(reply) => {
                            last = last.max(reply.revision);
                            acknowledged.push(name);
                        }
                        Err(NodeError::WritesStopped(_)) => {}
                        other => panic!("{fault:?} {nth}: {other:?}"),
                    }
                }
            }
            let failed = node.state() != NodeState::Running;
            assert_eq!(failed, acknowledged.len() < 40);
            if failed {
                assert!(writes_stopped(node.put(put("late", "x")).await));
                assert!(matches!(node.lease(LeaseId::new(1)).await, Err(NodeError::WritesStopped(_)) | Ok(None)));
            }
            assert_eq!(node.revision(), last);
            let seen = node.range(&RangeOp::all(everything())).await.unwrap();
            assert_eq!(seen.revision, last);
            assert_eq!(seen.kvs.len(), acknowledged.len(), "reads go on, at what is durable");
            node.shutdown();

            disk.crash();
            let node = super::support::node(&disk);
            for name in &acknowledged {
                assert_eq!(get(&node, name), Some(key(name)), "{fault:?} at {nth}");
            }
            assert!(node.revision() >= last);
            if failed {
                assert_eq!(put_ok(&node, "again", "x").await, node.revision());
                assert!(node.revision() > last);
            }
            node.shutdown();
        }
    }
}

#[tokio::test]
async fn a_restart_brings_everything_back_and_the_identity_stays() {
    let disk = Disk::new();
    let first = node(&disk);
    put_ok(&first, "a", "1").await;
    first.lease_grant(LeaseId::new(7), 100).await.unwrap();
    first.shutdown();
    disk.crash();
    let mut options = options();
    options.identity.birth = eddy_crdt::Birth::new(99);
    let second = start(Box::new(disk.open()), options).unwrap();
    assert_eq!(second.identity(), identity());
    assert_eq!(get(&second, "a"), Some(key("1")));
    assert_eq!(second.leases().await.unwrap(), [LeaseId::new(7)]);
    second.shutdown();
}

#[tokio::test]
async fn a_full_queue_says_so_at_once() {
    let disk = Disk::new();
    let (node, gate) = gated(&disk);
    gate.close();
    let mut waiting = vec![Box::pin(node.put(put("a", "1")))];
    assert!(poll!(&mut waiting[0]).is_pending());
    gate.wait_for_append();
    let mut refused = 0;
    while refused == 0 {
        let mut write = Box::pin(node.put(put("b", "1")));
        match poll!(&mut write) {
            std::task::Poll::Ready(Err(NodeError::TooManyRequests)) => refused += 1,
            std::task::Poll::Ready(other) => panic!("{other:?}"),
            std::task::Poll::Pending => waiting.push(write),
        }
        assert!(waiting.len() < 100_000, "the queue has no bound");
    }
    gate.open();
    for result in join_all(waiting).await {
        result.unwrap();
    }
    put_ok(&node, "c", "1").await;
    node.shutdown();
}

#[tokio::test]
async fn what_a_peer_sent_waits_for_a_place_in_a_full_queue() {
    let disk = Disk::new();
    let (node, gate) = gated(&disk);
    gate.close();
    let mut writes = vec![Box::pin(node.put(put("a", "1")))];
    assert!(poll!(&mut writes[0]).is_pending());
    gate.wait_for_append();
    loop {
        let mut write = Box::pin(node.put(put("b", "1")));
        if poll!(&mut write).is_ready() {
            break;
        }
        writes.push(write);
    }
    let mut handed_on = Box::pin(node.hand_on(Input::Acks { own: VersionVector::default(), acks: vec![] }));
    assert!(poll!(&mut handed_on).is_pending(), "it was refused, or it found a place");
    let before = node.status().waiting;
    gate.open();
    for write in join_all(writes).await {
        write.unwrap();
    }
    assert_eq!(handed_on.await, Ok(false));
    assert!(before > 0, "the queue was not full");
    node.shutdown();
}

#[tokio::test]
async fn a_client_does_not_wait_for_all_that_a_peer_sent() {
    const COUNT: usize = 20_000;
    let disk = Disk::new();
    let (node, news) = with_news(&disk, COUNT);
    let before = node.revision();
    let mut applied = Box::pin(node.hand_on(news));
    assert!(poll!(&mut applied).is_pending());
    let revision = put_ok(&node, "a", "1").await;
    assert!(revision.get() - before.get() < COUNT as i64, "it was the last: {before:?}, {revision:?}");
    assert_eq!(applied.await, Ok(false), "something was refused");
    put_ok(&node, "b", "1").await;
    let reply = node.range(&RangeOp::all(everything())).await.unwrap();
    assert_eq!(reply.count, COUNT as i64 + 2);
    node.shutdown();
}

#[tokio::test]
async fn shutdown_answers_what_waits_and_refuses_what_comes() {
    let disk = Disk::new();
    let (node, gate) = gated(&disk);
    gate.close();
    let mut writes: Vec<_> = (0..50).map(|n| Box::pin(node.put(put(&n.to_string(), "x")))).collect();
    for write in &mut writes {
        assert!(poll!(write).is_pending());
    }
    gate.wait_for_append();
    let stopping = node.clone();
    let stopped = std::thread::spawn(move || stopping.shutdown());
    until(|| node.engine.queue.is_closed()).await;
    assert_eq!(node.put(put("late", "x")).await, Err(NodeError::Stopped));
    gate.open();
    for result in join_all(writes).await {
        result.unwrap();
    }
    stopped.join().unwrap();
    let mut stream = node.watch_stream();
    assert!(stream.next().await.is_none());
    disk.crash();
    let again = super::support::node(&disk);
    assert_eq!(again.revision().get(), 51);
    again.shutdown();
}

#[tokio::test]
async fn the_quota_raises_an_alarm_that_forbids_growth_but_not_deletes() {
    let disk = Disk::new();
    let mut options = options();
    options.quota = Some(2000);
    let node = start(Box::new(disk.open()), options).unwrap();
    let large = "x".repeat(500);
    let mut refused = None;
    for n in 0..10 {
        if let Err(error) = node.put(put(&n.to_string(), &large)).await {
            refused = Some(error);
            break;
        }
    }
    assert_eq!(refused, Some(NodeError::NoSpace));
    let alarm = Alarm { member: identity().replica, kind: AlarmKind::NoSpace };
    assert_eq!(node.alarms(), [alarm]);
    let small = node.put(put("small", "")).await;
    assert_eq!(small, Err(NodeError::NoSpace));
    assert_eq!(node.lease_grant(LeaseId::new(1), 10).await, Err(NodeError::NoSpace));
    node.delete(eddy_crdt::DeleteOp { range: everything(), prev_kv: false }).await.unwrap();
    node.compact(node.revision().get(), true).await.unwrap();
    node.defragment().await.unwrap();
    node.set_alarm(alarm, false).await.unwrap();
    put_ok(&node, "small", "").await;
    node.shutdown();
}

#[tokio::test]
async fn a_corrupt_alarm_stops_changes_but_not_reads() {
    let disk = Disk::new();
    let node = node(&disk);
    put_ok(&node, "a", "1").await;
    let alarm = Alarm { member: identity().replica, kind: AlarmKind::Corrupt };
    node.set_alarm(alarm, true).await.unwrap();
    assert_eq!(node.put(put("a", "2")).await, Err(NodeError::Corrupt));
    assert_eq!(node.delete(delete("a")).await, Err(NodeError::Corrupt));
    assert_eq!(node.compact(2, false).await, Err(NodeError::Corrupt));
    assert_eq!(get(&node, "a"), Some(key("1")));
    node.shutdown();
}

#[tokio::test]
async fn a_physical_compaction_is_answered_when_the_disk_holds_no_more_than_the_rest() {
    let disk = Disk::new();
    let node = node(&disk);
    for n in 0..3000 {
        put_ok(&node, &format!("k{}", n % 3), &n.to_string()).await;
    }
    let before = disk.durable().len();
    node.compact(node.revision().get(), true).await.unwrap();
    assert_eq!((before, disk.durable().len()), (3000, 3));
    assert_eq!(node.compact(5, false).await, Err(NodeError::Refused(Refusal::Compacted)));
    assert_eq!(node.compact(9999, false).await, Err(NodeError::Refused(Refusal::FutureRevision)));
    node.shutdown();
    disk.crash();
    let node = super::support::node(&disk);
    assert_eq!(get(&node, "k2"), Some(key("2999")));
    assert_eq!(node.status().compacted, Some(Revision::new(3001)));
    node.shutdown();
}

#[tokio::test]
async fn what_is_dead_goes_without_a_compaction_after_many_records_or_many_bytes() {
    // Leases that ended leave dead records.
    for (leases, puts, value, left) in [(2200, 0, 0, 1000), (100, 9, 1 << 20, 20)] {
        let disk = Disk::new();
        let node = node(&disk);
        for n in 1..=leases {
            node.lease_grant(LeaseId::new(n), 60).await.unwrap();
            node.lease_revoke(LeaseId::new(n)).await.unwrap();
        }
        let large = "x".repeat(value);
        for n in 0..puts {
            put_ok(&node, &n.to_string(), &large).await;
        }
        let swept = async {
            while disk.durable().len() > left {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let swept = timeout(Duration::from_secs(20), swept).await;
        assert!(swept.is_ok(), "{} records are left of {leases} leases", disk.durable().len());
        node.shutdown();
    }
}

#[tokio::test]
async fn crashes_around_compactions_never_leave_a_damaged_journal() {
    for nth in 1..60 {
        let disk = Disk::new();
        let node = node(&disk);
        disk.fail_at(nth, if nth % 2 == 0 { Fault::Flush } else { Fault::FlushButWritten });
        for n in 0..40 {
            let _written = tokio::join!(node.put(put("a", "1")), node.put(put("b", "2")), node.delete(delete("a")));
            if n % 5 == 4 && node.compact(node.revision().get() - 2, n % 2 == 0).await.is_err() {
                break;
            }
        }
        let durable = node.revision();
        node.shutdown();
        disk.crash();
        let node = super::support::node(&disk);
        assert!(node.revision() >= durable);
        node.shutdown();
    }
}

#[tokio::test]
async fn leases_run_out_without_anybody_asking() {
    let disk = Disk::new();
    let node = node(&disk);
    node.lease_grant(LeaseId::new(5), 1).await.unwrap();
    let mut op = put("leased", "x");
    op.lease = eddy_crdt::PutLease::Set(Some(LeaseId::new(5)));
    node.put(op).await.unwrap();
    let mut stream = node.watch_stream();
    let spec = super::watching::spec(everything(), None);
    stream.create(spec).unwrap();
    // Two seconds is the shortest lease; the event comes by itself.
    let item = timeout(Duration::from_secs(20), stream.next()).await.unwrap();
    assert!(matches!(item, Some(crate::node::watch::WatchItem::Events { .. })));
    assert_eq!(get(&node, "leased"), None);
    assert_eq!(node.leases().await.unwrap(), []);
    node.shutdown();
}
