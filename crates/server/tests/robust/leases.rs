//! Leases of the real binary while its process is held up.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use eddy_proto::etcdserverpb::watch_request::RequestUnion;
use eddy_proto::etcdserverpb::{
    LeaseGrantRequest, LeaseKeepAliveRequest, LeaseRevokeRequest, WatchCreateRequest, WatchRequest, WatchResponse,
    lease_client::LeaseClient, watch_client::WatchClient,
};
use tokio_util::sync::CancellationToken;
use tonic::Streaming;

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

/// Keep-alives sent all the time: a lease either lives and answers, or is gone and says so. It is never gone with its
/// keys still there, and never answered alive after its keys went.
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

/// The revision at which a key was deleted, as the watch tells it next.
async fn next_delete(events: &mut Streaming<WatchResponse>) -> Result<i64> {
    loop {
        let response = events.message().await?.context("the watch ended")?;
        if let Some(event) = response.events.iter().find(|event| event.r#type == 1) {
            return Ok(event.kv.as_ref().context("a key")?.mod_revision);
        }
    }
}

/// Beside other writers a revoke shares its flush with writes that come after it. A client that watches from the
/// revision of the revoke's answer must see the deletes all the same.
#[tokio::test]
async fn answers_of_leases_carry_the_revision_at_which_they_were_applied() -> Result<()> {
    const REVOKES: usize = 200;
    let dir = tempfile::tempdir()?;
    let (_server, client) = serve(dir.path()).await?;
    let stop = CancellationToken::new();
    let writers: Vec<_> = (0..4)
        .map(|n| {
            let (client, stop) = (client.clone(), stop.clone());
            tokio::spawn(async move {
                while !stop.is_cancelled() {
                    client.put(&format!("other-{n}"), b"x").await?;
                }
                Ok::<_, anyhow::Error>(())
            })
        })
        .collect();
    let create = WatchCreateRequest { key: "leased".into(), ..Default::default() };
    let create = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
    let requests = tokio_stream::StreamExt::chain(tokio_stream::iter([create]), tokio_stream::pending());
    let mut events = WatchClient::new(client.channel.clone()).watch(requests).await?.into_inner();
    events.message().await?.context("the watch is created")?;

    let mut leases = LeaseClient::new(client.channel.clone());
    let mut late = 0;
    for _ in 0..REVOKES {
        let granted = leases.lease_grant(LeaseGrantRequest { ttl: 60, id: 0 }).await?.into_inner();
        let at = granted.header.context("a header")?.revision;
        let put = client.put_leased("leased", b"x", granted.id).await?;
        ensure!(at < put, "a grant at {at}, before a put at {put}");
        let revoked = leases.lease_revoke(LeaseRevokeRequest { id: granted.id }).await?.into_inner();
        let (told, deleted) = (revoked.header.context("a header")?.revision, next_delete(&mut events).await?);
        ensure!(told >= deleted, "the answer says {told}, before the delete at {deleted}");
        late += usize::from(told > deleted);
    }
    stop.cancel();
    for writer in writers {
        writer.await??;
    }
    ensure!(late == 0, "{late} of {REVOKES} answers say a later revision than that of the delete");
    Ok(())
}
