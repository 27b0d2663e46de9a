//! Revisions say which replica they belong to.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use eddy_proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use eddy_proto::etcdserverpb::{Compare, RangeRequest, TxnRequest, WatchCreateRequest, WatchResponse};
use tonic::{Code, Streaming};

use crate::cluster::{Cluster, PATIENCE, Replica, Setup, binary, eventually};

/// A watcher of all keys from a revision on, just created.
struct Watcher(Streaming<WatchResponse>);

impl Watcher {
    async fn start(replica: &Replica, start_revision: i64) -> Result<Watcher> {
        let (key, range_end) = ("\0".into(), "\0".into());
        let create = WatchCreateRequest { key, range_end, start_revision, ..WatchCreateRequest::default() };
        Ok(Watcher(replica.watch(create).await?))
    }

    async fn next(&mut self) -> Result<WatchResponse> {
        tokio::time::timeout(PATIENCE, self.0.message()).await??.context("the stream ended")
    }

    /// That it is cancelled next, as one whose history was compacted.
    async fn is_compacted(&mut self) -> Result<()> {
        let response = self.next().await?;
        ensure!(response.canceled && response.compact_revision > 0, "{response:?}");
        Ok(())
    }
}

/// That a read at that revision is answered as compacted.
async fn reads_compacted_at(replica: &Replica, revision: i64) -> Result<()> {
    let request = RangeRequest { key: "k".into(), revision, ..RangeRequest::default() };
    let status = replica.kv().await?.range(request).await.err().context("an error")?;
    ensure!(status.code() == Code::OutOfRange && status.message().contains("has been compacted"), "{status}");
    Ok(())
}

#[tokio::test]
async fn a_revision_of_another_replica_is_answered_as_compacted() -> Result<()> {
    let cluster = Cluster::start(3).await?;
    let mut revisions = Vec::new();
    for (place, replica) in cluster.replicas.iter().enumerate() {
        revisions.push(replica.put(&format!("k{place}"), "v").await?);
    }
    cluster.settled().await?;
    for (place, replica) in cluster.replicas.iter().enumerate() {
        let foreign = revisions.iter().enumerate().filter(|(other, _)| *other != place);
        for (_, revision) in foreign {
            reads_compacted_at(replica, *revision).await?;
            Watcher::start(replica, *revision).await?.is_compacted().await?;
            let compare = Compare {
                key: format!("k{place}").into(),
                target: CompareTarget::Mod.into(),
                result: CompareResult::Equal.into(),
                target_union: Some(TargetUnion::ModRevision(*revision)),
                ..Compare::default()
            };
            let txn = TxnRequest { compare: vec![compare], ..TxnRequest::default() };
            ensure!(!replica.kv().await?.txn(txn).await?.into_inner().succeeded, "it compares unequal");
        }
        replica.logs("a client asked for a revision of another replica").await?;
        // Its own are as ever.
        let mut watcher = Watcher::start(replica, revisions[place]).await?;
        let response = watcher.next().await?;
        ensure!(response.events.first().is_some_and(|event| event.kv.is_some()), "{response:?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_leap_moves_above_all_and_has_clients_list_again() -> Result<()> {
    let cluster = Cluster::start(3).await?;
    let mut before = Vec::new();
    for (place, replica) in cluster.replicas.iter().enumerate() {
        before.push(replica.put(&format!("k{place}"), "v").await?);
    }
    cluster.settled().await?;
    let replica = &cluster.replicas[0];
    let mut watcher = Watcher::start(replica, 0).await?;
    let output = Command::new(binary()).args(["leap", "--endpoints", &replica.server.url()]).output()?;
    ensure!(output.status.success(), "{output:?}");
    let printed = String::from_utf8(output.stdout)?;
    let leapt: i64 =
        printed.trim().rsplit(' ').next().context("a revision")?.parse().with_context(|| printed.clone())?;
    assert!(before.iter().all(|revision| leapt > *revision), "{leapt} {before:?}");
    // What was being watched, and whatever was seen before.
    watcher.is_compacted().await?;
    for revision in &before {
        reads_compacted_at(replica, *revision).await?;
        Watcher::start(replica, *revision).await?.is_compacted().await?;
    }
    for place in 0..3 {
        replica.shows(&format!("k{place}"), Some("v")).await?;
    }
    let mut watcher = Watcher::start(replica, leapt + 1).await?;
    let after = replica.put("after", "v").await?;
    assert!(after > leapt);
    let response = watcher.next().await?;
    let seen = response.events.first().and_then(|event| event.kv.as_ref()).map(|kv| kv.mod_revision);
    assert_eq!(seen, Some(after));
    cluster.settled().await
}

#[tokio::test]
async fn what_a_removed_member_never_told_can_be_rescued_from_its_disk() -> Result<()> {
    let mut cluster = Cluster::with(3, Setup { relays: true, ..Setup::default() }).await?;
    cluster.replicas[2].put("shared", "x").await?;
    cluster.settled().await?;
    cluster.relays()?.refuse();
    let mut removed = cluster.replicas.pop().context("three replicas")?;
    removed.put("alone", "only here").await?;
    removed.delete("shared").await?;
    let id = removed.status().await?.member_id;
    removed.server.kill()?;
    cluster.replicas[0].remove(id).await?;
    cluster.relays()?.heal();
    // A member that has not heard of the removal takes what the removed one writes, and passes it on.
    eventually("all know of the removal", || async {
        let members = cluster.replicas[1].members().await?;
        ensure!(members.len() == 2, "{members:?}");
        Ok(())
    })
    .await?;
    removed.server.respawn()?;
    let status = removed.server.ended(PATIENCE).await?;
    ensure!(status.success(), "{status}: {}", removed.server.log_tail());
    cluster.settled().await?;
    assert_eq!(cluster.replicas[0].get("alone").await?, None, "nothing more is taken from a removed member");
    assert_eq!(cluster.replicas[0].get("shared").await?.as_deref(), Some("x"));

    let output = Command::new(binary()).args(["rescue", "--data-dir"]).arg(removed.server.data_dir()).output()?;
    ensure!(output.status.success(), "{output:?}");
    let lines: Vec<serde_json::Value> =
        String::from_utf8(output.stdout)?.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    let writes: Vec<[&str; 3]> =
        lines.iter().map(|line| ["op", "key", "value"].map(|name| line[name].as_str().unwrap_or_default())).collect();
    assert_eq!(writes, [["put", "alone", "only here"], ["delete", "shared", ""]]);
    Ok(())
}
