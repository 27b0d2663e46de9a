//! Status, alarms, hashes and health.

use std::time::{Duration, Instant};

use eddy_proto::etcdserverpb::{self as pb, AlarmType};
use eddy_proto::health::HealthCheckRequest;
use eddy_proto::health::health_client::HealthClient;
use tonic::Code;

use super::{MEMBER, Served, error, header};
use crate::backup::read::{BadDatabase, Database};
use crate::backup::schema::VersionPlace;
use crate::storage::faulty::Fault;

#[tokio::test]
async fn the_status_is_that_of_a_leader() {
    let served = Served::start().await;
    served.put("a", "1").await.unwrap();
    let mut maintenance = served.maintenance();
    let status = maintenance.status(pb::StatusRequest {}).await.unwrap().into_inner();
    assert_eq!((status.header, status.leader, status.raft_term), (header(2), MEMBER, 2));
    assert_eq!((&status.version[..], &status.storage_version[..]), ("3.7.3", "3.7.0"));
    assert_eq!((status.db_size_quota, status.errors.len(), status.is_learner), (2 << 30, 0, false));
    assert!(status.raft_index >= status.raft_applied_index && status.raft_applied_index > 0);
    assert!(status.db_size >= status.db_size_in_use && status.db_size_in_use > 0, "{status:?}");
    let own = pb::MoveLeaderRequest { target_id: MEMBER };
    assert!(maintenance.move_leader(own).await.is_ok());
    let other = pb::MoveLeaderRequest { target_id: 5 };
    let bad = (Code::FailedPrecondition, "etcdserver: bad leader transferee".to_owned());
    assert_eq!(error(maintenance.move_leader(other).await), bad);
}

#[tokio::test]
async fn alarms_stop_writes_until_they_are_lowered() {
    let served = Served::start().await;
    let mut maintenance = served.maintenance();
    let alarm = |action, kind: AlarmType| pb::AlarmRequest { action, member_id: MEMBER, alarm: kind.into() };
    let member = || pb::AlarmMember { member_id: MEMBER, alarm: AlarmType::Nospace.into() };
    for _ in 0..2 {
        let raised = maintenance.alarm(alarm(1, AlarmType::Nospace)).await.unwrap().into_inner();
        assert_eq!((raised.header, raised.alarms), (header(1), vec![member()]));
    }
    for (kind, expected) in [(AlarmType::None, 1), (AlarmType::Nospace, 1), (AlarmType::Corrupt, 0)] {
        assert_eq!(maintenance.alarm(alarm(0, kind)).await.unwrap().into_inner().alarms.len(), expected);
    }
    let full = (Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded".to_owned());
    assert_eq!(error(served.put("a", "1").await), full);
    let status = maintenance.status(pb::StatusRequest {}).await.unwrap().into_inner();
    assert_eq!(status.errors, [format!("memberID:{MEMBER} alarm:NOSPACE")]);
    assert!(maintenance.alarm(alarm(1, AlarmType::None)).await.unwrap().into_inner().alarms.is_empty());
    for expected in [vec![member()], vec![]] {
        assert_eq!(maintenance.alarm(alarm(2, AlarmType::Nospace)).await.unwrap().into_inner().alarms, expected);
    }
    assert_eq!(served.put("a", "1").await.unwrap().header, header(2));
}

/// Versions that are read by a backup outlive a compaction that comes while it is made, and writes go on.
#[tokio::test]
async fn a_backup_is_of_one_revision_whatever_happens_meanwhile() {
    let served = Served::start().await;
    let put = |n: i64| served.put("a", vec![n as u8; 60_000]);
    for n in 2..=80 {
        assert_eq!(put(n).await.unwrap().header, header(n));
    }
    let mut parts = served.maintenance().snapshot(pb::SnapshotRequest {}).await.unwrap().into_inner();
    let first = parts.message().await.unwrap().unwrap();
    assert_eq!((&first.version[..], first.blob.len()), ("3.7.0", 32 << 10));
    for n in 81..=100 {
        assert_eq!(put(n).await.unwrap().header, header(n));
    }
    served.kv().compact(pb::CompactionRequest { revision: 100, physical: false }).await.unwrap();
    served.put("b", "new").await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(served.node.look(eddy_crdt::Replica::versions), 100, "nothing is swept");
    let mut whole = first.blob.to_vec();
    let (mut remaining, mut last) = (first.remaining_bytes, vec![]);
    while let Some(part) = parts.message().await.unwrap() {
        if part.remaining_bytes > 0 {
            assert_eq!(part.remaining_bytes, remaining - part.blob.len() as u64);
        }
        (remaining, last) = (part.remaining_bytes, part.blob.to_vec());
        whole.extend_from_slice(&part.blob);
    }
    assert_eq!((remaining, last.len()), (0, 32));
    let len = whole.len() as u64 - 32;
    let mut database = Database::open(std::io::Cursor::new(&whole), len).unwrap();
    let (_, keys) = database.buckets().unwrap().into_iter().find(|(name, _)| name == b"key").unwrap();
    let mut seen = vec![];
    let read = database.each(&keys, |key, value| {
        let kv = <eddy_proto::mvccpb::KeyValue as prost::Message>::decode(value).unwrap();
        seen.push((VersionPlace::decode(key).unwrap().main, kv.value[0], kv.version));
        Ok::<(), BadDatabase>(())
    });
    read.unwrap();
    assert_eq!(seen, (2..=80).map(|n| (n, n as u8, n - 1)).collect::<Vec<_>>());
    // The sweep goes on by itself when the backup has ended.
    let deadline = Instant::now() + Duration::from_secs(20);
    while served.node.look(eddy_crdt::Replica::versions) > 2 {
        assert!(Instant::now() < deadline, "the sweep does not go on");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn equal_histories_have_equal_hashes() {
    let (one, two) = (Served::start().await, Served::start().await);
    let mut hashes = vec![];
    for served in [&one, &two] {
        served.put("a", "1").await.unwrap();
        served.put("b", "2").await.unwrap();
        let now = served.maintenance().hash_kv(pb::HashKvRequest { revision: 0 }).await.unwrap().into_inner();
        assert_eq!((now.header, now.compact_revision, now.hash_revision), (header(3), -1, 3));
        let before = served.maintenance().hash_kv(pb::HashKvRequest { revision: 2 }).await.unwrap().into_inner();
        assert_eq!((before.header, before.hash_revision), (header(3), 2));
        assert_ne!(before.hash, now.hash);
        hashes.push((before.hash, now.hash));
    }
    assert_eq!(hashes[0], hashes[1]);
    let future = error(one.maintenance().hash_kv(pb::HashKvRequest { revision: 4 }).await);
    assert_eq!(future, (Code::OutOfRange, "etcdserver: mvcc: required revision is a future revision".to_owned()));
}

#[tokio::test]
async fn health_is_that_of_the_server_and_a_failed_flush_ends_it() {
    let served = Served::start().await;
    let mut health = HealthClient::new(served.channel.clone());
    let ask = |service: &str| HealthCheckRequest { service: service.to_owned() };
    assert_eq!(health.check(ask("")).await.unwrap().into_inner().status, 1);
    assert_eq!(error(health.check(ask("x")).await), (Code::NotFound, "unknown service".to_owned()));
    let mut unknown = health.watch(ask("x")).await.unwrap().into_inner();
    assert_eq!(unknown.message().await.unwrap().unwrap().status, 3);

    served.put("a", "1").await.unwrap();
    served.disk.fail_at(1, Fault::Flush);
    assert_eq!(error(served.put("a", "2").await).0, Code::Unavailable);
    assert_eq!(error(served.put("a", "3").await).0, Code::Unavailable);
    assert_eq!(&served.get("a").await.kvs[0].value[..], b"1", "reads go on at the last durable revision");
    assert_eq!(health.check(ask("")).await.unwrap().into_inner().status, 2);
    let status = served.maintenance().status(pb::StatusRequest {}).await.unwrap().into_inner();
    assert_eq!((status.header, status.errors.len()), (header(2), 1));
}
