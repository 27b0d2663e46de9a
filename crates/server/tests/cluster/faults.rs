//! Kills and pauses.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::cluster::{Cluster, Setup, eventually};

#[tokio::test]
async fn a_killed_replica_catches_up() -> Result<()> {
    let mut cluster = Cluster::start(3).await?;
    cluster.replicas[1].put("before", "1").await?;
    cluster.replicas[0].shows("before", Some("1")).await?;
    cluster.replicas[1].server.kill()?;
    for n in 0..50 {
        cluster.replicas[0].put(&format!("while-{n}"), "x").await?;
        cluster.replicas[2].put("contended", &n.to_string()).await?;
    }
    cluster.replicas[1].server.restart().await?;
    cluster.replicas[1].shows("while-49", Some("x")).await?;
    cluster.replicas[1].shows("contended", Some("49")).await?;
    cluster.settled().await
}

#[tokio::test]
async fn nothing_acknowledged_is_lost_when_all_are_killed_at_once() -> Result<()> {
    let mut cluster = Cluster::start(3).await?;
    let mut written = Vec::new();
    for n in 0..30 {
        for (place, replica) in cluster.replicas.iter().enumerate() {
            let key = format!("{place}-{n}");
            replica.put(&key, "x").await?;
            written.push(key);
        }
    }
    for replica in &mut cluster.replicas {
        replica.server.kill()?;
    }
    for replica in &mut cluster.replicas {
        replica.server.respawn()?;
    }
    for replica in &mut cluster.replicas {
        replica.server.ready().await?;
    }
    for replica in &cluster.replicas {
        for key in &written {
            replica.shows(key, Some("x")).await?;
        }
    }
    cluster.settled().await
}

#[tokio::test]
async fn a_paused_replica_holds_nobody_up() -> Result<()> {
    let cluster = Cluster::start(3).await?;
    cluster.replicas[2].server.signal("STOP")?;
    // More than sockets and queues hold, so that it would be felt if anyone waited for the paused one.
    let value = "x".repeat(64 << 10);
    for n in 0..200 {
        cluster.replicas[0].put(&format!("{n}"), &value).await?;
    }
    cluster.replicas[1].shows("199", Some(&value)).await?;
    cluster.replicas[2].server.signal("CONT")?;
    cluster.replicas[2].shows("199", Some(&value)).await?;
    cluster.settled().await
}

/// No packet says so when a cable is pulled. Operators see it within 5 s all the same, and within another second that the
/// link is back.
#[tokio::test]
async fn a_link_that_is_cut_in_silence_shows_within_5_seconds() -> Result<()> {
    let cluster = Cluster::with(2, Setup { relays: true, ..Setup::default() }).await?;
    cluster.settled().await?;
    let gauge = |other: u64| format!("eddy_peer_connected{{peer=\"{other:x}\"}}");
    let ids = [cluster.replicas[0].status().await?.member_id, cluster.replicas[1].status().await?.member_id];
    for (replica, other) in cluster.replicas.iter().zip([ids[1], ids[0]]) {
        ensure!(replica.metric(&gauge(other)).await? == 1, "the metrics do not say that it is connected");
    }
    let since = Instant::now();
    cluster.relays()?.cut_all();
    for (replica, other) in cluster.replicas.iter().zip([ids[1], ids[0]]) {
        eventually("the cut shows", || async {
            let peers = replica.status().await?.peers;
            ensure!(peers.iter().all(|peer| !peer.connected), "{peers:?}");
            Ok(())
        })
        .await?;
        ensure!(replica.metric(&gauge(other)).await? == 0, "the metrics say that it is connected");
    }
    let shown = since.elapsed();
    // Half a second for the questions themselves.
    ensure!(shown < Duration::from_millis(5_500), "it showed after {shown:?}");
    cluster.relays()?.heal();
    cluster.replicas[0].put("after", "x").await?;
    cluster.replicas[1].shows("after", Some("x")).await?;
    cluster.settled().await
}
