//! A replica whose state is not what its entries say: found by comparing hashes, and named.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use eddy_crdt::{ChangeKind, Digest, Head, Keyspace, Record};
use eddy_proto::admin::Equality;
use eddy_proto::etcdserverpb::alarm_request::AlarmAction;
use eddy_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use eddy_proto::etcdserverpb::{AlarmMember, AlarmRequest, AlarmType};
use eddy_server::storage::{DiskJournal, Journal, Options};

use crate::cluster::{Cluster, PATIENCE, Replica, binary, eventually};

/// Gives a key another value on the disk of a stopped replica, so well that its own checks find nothing. This stands
/// for what memory or a disk did before the checksums were made, or for a fault in a program.
fn alter(data_dir: &Path, key: &str, to: &'static str) -> Result<()> {
    let mut journal = DiskJournal::open(data_dir, Options::default())?;
    let mut records = Vec::new();
    journal.load(&mut |number, record| {
        records.push((number, record));
        Ok(())
    })?;
    let mut head = Head::decode(&journal.last_head().context("a head")?)?;
    let mut digest = Digest::new(head.state_hash);
    let mut altered = None;
    for (number, bytes) in records {
        let mut record = Record::decode(bytes)?;
        let mut is_it = false;
        for change in record.changes.iter_mut().filter(|change| change.key == key.as_bytes()) {
            let ChangeKind::Put { value, lease, version } = &mut change.kind else { continue };
            digest.remove(Keyspace::Client, key.as_bytes(), value, *version, *lease);
            *value = Bytes::from_static(to.as_bytes());
            digest.add(Keyspace::Client, key.as_bytes(), value, *version, *lease);
            is_it = true;
        }
        if is_it {
            // Of a record that is no entry any more, no chain hash is left.
            record.trimmed = true;
            altered = Some((number, record.encode()));
        }
    }
    let (number, record) = altered.context("a record with that key")?;
    journal.trim(&mut BTreeSet::from([number]), usize::MAX, &mut |_, _| Some(record.clone()))?;
    head.state_hash = digest.get();
    journal.head(head.encode())?;
    Ok(())
}

/// What `etcdctl alarm list` asks for.
async fn alarms(replica: &Replica) -> Result<Vec<AlarmMember>> {
    let mut maintenance = MaintenanceClient::new(replica.server.connect().await?);
    let request = AlarmRequest { action: AlarmAction::Get.into(), ..AlarmRequest::default() };
    Ok(maintenance.alarm(request).await?.into_inner().alarms)
}

#[tokio::test]
async fn a_state_that_differs_at_equal_vectors_raises_the_corrupt_alarm_with_the_first_key() -> Result<()> {
    let mut cluster = Cluster::start(3).await?;
    for n in 0..150 {
        cluster.replicas[n % 3].put(&format!("key-{n:03}"), "right").await?;
    }
    cluster.settled().await?;
    let corrupt = &mut cluster.replicas[1];
    let id = corrupt.status().await?.member_id;
    corrupt.server.signal("TERM")?;
    corrupt.server.ended(PATIENCE).await?;
    alter(corrupt.server.data_dir(), "key-077", "wrong")?;
    alter(corrupt.server.data_dir(), "key-123", "wrong")?;
    corrupt.server.restart().await?;
    ensure!(corrupt.get("key-077").await?.as_deref() == Some("wrong"), "its own checks find nothing");

    let raised = AlarmMember { member_id: id, alarm: AlarmType::Corrupt.into() };
    for replica in &cluster.replicas {
        eventually("all list the alarm", || async {
            let alarms = alarms(replica).await?;
            ensure!(alarms.contains(&raised), "{alarms:?}");
            Ok(())
        })
        .await?;
        ensure!(replica.status().await?.alarms.contains(&format!("memberID:{id} alarm:CORRUPT")));
    }
    for replica in [&cluster.replicas[0], &cluster.replicas[2]] {
        eventually("the first key that differs is named", || async {
            let status = replica.status().await?;
            let peer = status.peers.iter().find(|peer| peer.member_id == id).context("the peer")?;
            ensure!(peer.equality() == Equality::Different, "{peer:?}");
            ensure!(peer.first_difference == "key-077".as_bytes(), "{peer:?}");
            Ok(())
        })
        .await?;
        let table = replica.status_table()?;
        ensure!(table.contains("alarm:CORRUPT") && table.contains("DIFFERENT"), "{table}");
        ensure!(table.contains("differs from \"key-077\" on"), "{table}");
        let json = Command::new(binary()).args(["status", "--json", "--endpoints", &replica.server.url()]).output()?;
        ensure!(String::from_utf8(json.stdout)?.contains("\"first_difference\": \"key-077\""));
        let hex = format!("{id:x}");
        ensure!(replica.logged(&["raising the CORRUPT alarm", &hex]) == 1, "{}", replica.server.log());
        ensure!(replica.metric(&format!("eddy_peer_states_differ{{peer=\"{hex}\"}}")).await? == 1);
    }
    // As in etcd nothing is written on top of it, and everything can be read.
    let refused = cluster.replicas[0].put("more", "x").await.err().context("it is refused")?;
    ensure!(format!("{refused:#}").contains("corrupt cluster"), "{refused:#}");
    ensure!(cluster.replicas[0].get("key-077").await?.as_deref() == Some("right"));
    Ok(())
}
