//! Leases of the real binary while its process is held up.

use std::time::Duration;

use anyhow::{Result, ensure};
use eddy_proto::etcdserverpb::{LeaseKeepAliveRequest, lease_client::LeaseClient};

use crate::client::{Client, serve};

async fn gone(client: &Client, key: &str) -> Result<()> {
    let waited = tokio::time::timeout(Duration::from_secs(30), async {
        while client.get(key).await?.is_some() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok::<_, anyhow::Error>(())
    });
    waited.await.map_err(|_| anyhow::anyhow!("{key} outlived its lease"))?
}

/// The monotonic clock goes on while a process is stopped: what ran out meanwhile is gone, what did not stays.
#[tokio::test]
async fn a_stopped_process_ends_short_leases_and_keeps_long_ones() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let (server, client) = serve(dir.path()).await?;
    for (ttl, key) in [(2, "short"), (60, "long")] {
        let lease = client.grant(ttl).await?;
        client.put_leased(key, b"x", lease).await?;
    }
    server.signal("STOP")?;
    std::thread::sleep(Duration::from_secs(3));
    server.signal("CONT")?;
    gone(&client, "short").await?;
    ensure!(client.get("long").await?.is_some(), "a lease of 60 s ended after 3");
    Ok(())
}

/// Keep-alives sent all the time: a lease either lives and answers, or is gone and says so; never gone with its keys
/// still there, never answered alive after its keys went.
#[tokio::test]
async fn a_keep_alive_that_races_with_the_expiry_has_one_outcome() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let (_server, client) = serve(dir.path()).await?;
    let mut tasks = Vec::new();
    for n in 0..40_u64 {
        let client = client.clone();
        tasks.push(tokio::spawn(async move {
            let key = format!("k{n}");
            let lease = client.grant(2).await?;
            client.put_leased(&key, b"x", lease).await?;
            // Around the moment when it runs out.
            tokio::time::sleep(Duration::from_millis(1900 + n * 10)).await;
            let mut leases = LeaseClient::new(client.channel.clone());
            let ask = LeaseKeepAliveRequest { id: lease };
            let mut answers = leases.lease_keep_alive(tokio_stream::iter([ask])).await?.into_inner();
            let ttl = answers.message().await?.map_or(0, |answer| answer.ttl);
            let there = client.get(&key).await?.is_some();
            ensure!((ttl > 0) == there, "lease {n}: TTL {ttl}, its key is {}", if there { "there" } else { "gone" });
            gone(&client, &key).await?;
            Ok(ttl > 0)
        }));
    }
    for task in tasks {
        task.await??;
    }
    Ok(())
}
