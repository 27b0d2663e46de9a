//! What is written at one replica is read at the others.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use eddy_proto::admin::Merge;

use crate::cluster::{Cluster, Setup, eventually};

#[tokio::test]
async fn what_is_written_at_one_is_read_at_the_others() -> Result<()> {
    let cluster = Cluster::start(3).await?;
    let revisions = [
        cluster.replicas[0].put("a", "0").await?,
        cluster.replicas[1].put("b", "1").await?,
        cluster.replicas[2].put("c", "2").await?,
    ];
    let spaces: std::collections::BTreeSet<i64> = revisions.iter().map(|revision| revision >> 32).collect();
    assert_eq!(spaces.len(), 3, "each counts in a space of its own: {revisions:?}");
    for replica in &cluster.replicas {
        for (key, value) in [("a", "0"), ("b", "1"), ("c", "2")] {
            replica.shows(key, Some(value)).await?;
        }
    }
    cluster.replicas[1].delete("a").await?;
    for replica in &cluster.replicas {
        replica.shows("a", None).await?;
        let names: Vec<String> = replica.members().await?.into_iter().map(|member| member.name).collect();
        assert_eq!(names.len(), 3, "{names:?}");
    }
    cluster.settled().await
}

#[tokio::test]
async fn what_a_merge_gave_up_is_told_with_its_revision() -> Result<()> {
    let cluster = Cluster::with(2, Setup { relays: true, ..Setup::default() }).await?;
    cluster.settled().await?;
    cluster.relays()?.refuse();
    cluster.replicas[0].put("contended", "first").await?;
    // Stamps count milliseconds: which of two within one is the later one nobody can tell.
    tokio::time::sleep(Duration::from_millis(5)).await;
    let later = cluster.replicas[1].put("contended", "second").await?;
    cluster.relays()?.heal();
    cluster.settled().await?;
    // Where it was the other's that stayed, clients saw it come; where it was the own one, they saw nothing.
    let (loser, winner) = (&cluster.replicas[0], &cluster.replicas[1]);
    let told = |merges: &[Merge]| -> Option<(String, i64, usize)> {
        let merge = merges.iter().find(|merge| merge.key == "contended".as_bytes())?;
        Some((merge.rule.clone(), merge.revision, merge.given_up.len()))
    };
    let seen = loser.mod_revision_of("contended").await?.context("it is there")?;
    assert_eq!(told(&loser.merges().await?), Some(("created-last".to_owned(), seen, 1)));
    assert_eq!(told(&winner.merges().await?), Some(("created-last".to_owned(), 0, 1)));
    assert_eq!(winner.mod_revision_of("contended").await?, Some(later));
    let given = loser.merges().await?.into_iter().find_map(|merge| merge.given_up.into_iter().next());
    let given = given.context("a loss")?;
    let (lost, stands) = (given.lost.context("who lost")?, given.stands.context("what stands")?);
    assert_eq!((lost.member.as_str(), stands.member.as_str()), ("r0", "r1"));
    assert!(given.what == "its whole value" && 0 < lost.written_ms && lost.written_ms <= stands.written_ms);
    for replica in [loser, winner] {
        let line = ["a merge gave something up", "contended", "created-last", "\"r0\"", "\"r1\"", "its whole value"];
        eventually("it is in the log once", || async {
            ensure!(replica.logged(&line) == 1, "{}", replica.server.log_tail());
            Ok(())
        })
        .await?;
        assert_eq!(replica.metric("eddy_merge_losses_total{rule=\"created-last\"}").await?, 1);
    }
    let json = loser.server.get("/eddy/v1/merges").await?;
    ensure!(json.contains(&format!("\"revision\":{seen}")) && json.contains("\"contended\""), "{json}");
    Ok(())
}

#[tokio::test]
async fn writes_to_one_key_while_apart_end_in_the_same_bytes_everywhere() -> Result<()> {
    let cluster = Cluster::with(3, Setup { relays: true, ..Setup::default() }).await?;
    cluster.replicas[0].put("shared", "before").await?;
    for replica in &cluster.replicas {
        replica.shows("shared", Some("before")).await?;
    }
    cluster.relays()?.refuse();
    for (place, replica) in cluster.replicas.iter().enumerate() {
        for round in 0..20 {
            replica.put("shared", &format!("{place}-{round}")).await?;
            replica.put(&format!("own-{place}-{round}"), "x").await?;
        }
        replica.shows("shared", Some(&format!("{place}-19"))).await?;
    }
    cluster.relays()?.heal();
    // The last to write wins.
    for replica in &cluster.replicas {
        replica.shows("shared", Some("2-19")).await?;
    }
    cluster.settled().await?;
    assert_eq!(cluster.replicas[0].contents().await?.len(), 61);
    Ok(())
}

/// A node with that label, and the time of its last heartbeat.
fn node(label: &str, heartbeat: usize) -> String {
    format!(
        r#"{{"apiVersion":"v1","kind":"Node","metadata":{{"name":"edge","uid":"u1","labels":{{"zone":"{label}"}}}},"status":{{"conditions":[{{"type":"Ready","status":"True","lastHeartbeatTime":"2026-01-01T00:00:{heartbeat:02}Z"}}]}}}}"#
    )
}

/// One site edits a label, then sends heartbeats. Another one edits the label later, but before the last heartbeat. The later
/// edit stays: a run of versions must not get the stamp of its last one.
#[tokio::test]
async fn a_label_that_was_edited_later_stays_whatever_heartbeats_follow_the_earlier_edit() -> Result<()> {
    const KEY: &str = "/registry/minions/edge";
    let cluster = Cluster::with(2, Setup { relays: true, ..Setup::default() }).await?;
    let [here, there] = &cluster.replicas[..] else { anyhow::bail!("another number of replicas") };
    there.put(KEY, &node("before", 0)).await?;
    here.shows(KEY, Some(&node("before", 0))).await?;
    cluster.settled().await?;
    cluster.relays()?.refuse();
    there.put(KEY, &node("earlier", 0)).await?;
    tokio::time::sleep(Duration::from_millis(20)).await;
    here.put(KEY, &node("later", 0)).await?;
    tokio::time::sleep(Duration::from_millis(20)).await;
    for heartbeat in 1..30 {
        there.put(KEY, &node("earlier", heartbeat)).await?;
    }
    cluster.relays()?.heal();
    cluster.settled().await?;
    for replica in [here, there] {
        let contents = replica.contents().await?;
        let (value, _) = contents.get(KEY.as_bytes()).context("the node is gone")?;
        let value = String::from_utf8_lossy(value);
        let is_both = value.contains(r#""zone":"later""#) && value.contains("00:00:29Z");
        ensure!(is_both, "{}: {value}", replica.name);
    }
    Ok(())
}

/// A ping goes out every five seconds. Who looks at the metrics meanwhile changes nothing.
#[tokio::test]
async fn a_round_trip_is_counted_when_it_is_measured() -> Result<()> {
    let cluster = Cluster::start(2).await?;
    let started = std::time::Instant::now();
    let [own, other] = [&cluster.replicas[0], &cluster.replicas[1]];
    let member = own.members().await?.into_iter().find(|member| member.name == "r1").context("r1")?.id;
    let count = format!("etcd_network_peer_round_trip_time_seconds_count{{To=\"{member:x}\"}}");
    eventually("a round trip", || async {
        ensure!(own.metric(&count).await? > 0);
        Ok(())
    })
    .await?;
    for _ in 0..50 {
        own.server.get("/metrics").await?;
    }
    let (counted, pings) = (own.metric(&count).await?, started.elapsed().as_secs() / 5 + 2);
    ensure!(counted <= pings, "{counted} round trips of at most {pings} pings");
    other.put("a", "b").await?;
    own.shows("a", Some("b")).await
}
