//! What is written at one replica is read at the others.

use anyhow::Result;

use crate::cluster::{Cluster, Setup};

#[tokio::test]
async fn what_is_written_at_one_is_read_at_the_others() -> Result<()> {
    let cluster = Cluster::start(3).await?;
    let revisions = [
        cluster.replicas[0].put("a", "0").await?,
        cluster.replicas[1].put("b", "1").await?,
        cluster.replicas[2].put("c", "2").await?,
    ];
    let spaces: std::collections::BTreeSet<i64> = revisions.iter().map(|revision| revision >> 40).collect();
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
async fn writes_to_one_key_while_apart_end_in_the_same_bytes_everywhere() -> Result<()> {
    let cluster = Cluster::with(3, Setup { relays: true, ..Setup::default() }).await?;
    cluster.replicas[0].put("shared", "before").await?;
    for replica in &cluster.replicas {
        replica.shows("shared", Some("before")).await?;
    }
    for relay in &cluster.relays {
        relay.cut();
    }
    for (place, replica) in cluster.replicas.iter().enumerate() {
        for round in 0..20 {
            replica.put("shared", &format!("{place}-{round}")).await?;
            replica.put(&format!("own-{place}-{round}"), "x").await?;
        }
        replica.shows("shared", Some(&format!("{place}-19"))).await?;
    }
    for relay in &cluster.relays {
        relay.heal();
    }
    // The last to write wins.
    for replica in &cluster.replicas {
        replica.shows("shared", Some("2-19")).await?;
    }
    cluster.settled().await?;
    assert_eq!(cluster.replicas[0].contents().await?.len(), 61);
    Ok(())
}
