//! Leases that are kept alive at one site while another one hears nothing of it.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use eddy_proto::etcdserverpb::lease_client::LeaseClient;
use eddy_proto::etcdserverpb::{LeaseGrantRequest, LeaseKeepAliveRequest, PutRequest, WatchCreateRequest};
use eddy_proto::mvccpb::event::EventType;

use crate::cluster::{Cluster, Replica, Setup};

/// Seconds. The others wait as long, and 5 s of grace, for the last renewal that they heard of.
const TTL_S: i64 = 2;

/// Keeps a lease alive until that moment; fails when it is gone.
async fn keep_alive(replica: &Replica, id: i64, until: Instant) -> Result<()> {
    let mut leases = LeaseClient::new(replica.server.connect().await?);
    while Instant::now() < until {
        let request = tokio_stream::once(LeaseKeepAliveRequest { id });
        let answer = leases.lease_keep_alive(request).await?.into_inner().message().await?.context("no answer")?;
        ensure!(answer.ttl > 0, "the lease is gone");
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    Ok(())
}

/// The kinds of the events that a watch of the key has seen by now.
async fn seen(events: &mut tonic::Streaming<eddy_proto::etcdserverpb::WatchResponse>) -> Result<Vec<i32>> {
    let mut kinds = Vec::new();
    while let Ok(response) = tokio::time::timeout(Duration::from_millis(500), events.message()).await {
        let response = response?.context("the watch ended")?;
        ensure!(!response.canceled, "the watch was cancelled: {}", response.cancel_reason);
        kinds.extend(response.events.iter().map(|event| event.r#type));
    }
    Ok(kinds)
}

#[tokio::test]
async fn what_hangs_on_a_lease_that_is_kept_alive_outlives_a_cut() -> Result<()> {
    let cluster = Cluster::with(2, Setup { relays: true, ..Setup::default() }).await?;
    let [owner, other] = &cluster.replicas[..] else { anyhow::bail!("another number of replicas") };
    let mut leases = LeaseClient::new(owner.server.connect().await?);
    let id = leases.lease_grant(LeaseGrantRequest { id: 0, ttl: TTL_S }).await?.into_inner().id;
    let put = PutRequest { key: "lock".into(), value: "mine".into(), lease: id, ..Default::default() };
    owner.kv().await?.put(put).await?;
    other.shows("lock", Some("mine")).await?;
    let mut watch = owner.watch(WatchCreateRequest { key: "lock".into(), ..Default::default() }).await?;

    cluster.relays()?.refuse();
    let cut = Instant::now();
    let (kept, gone) = tokio::join!(
        keep_alive(owner, id, cut + Duration::from_secs(12)),
        // The other one cannot know better: TTL and grace are over without a word of the owner.
        other.shows("lock", None),
    );
    kept?;
    gone?;
    cluster.relays()?.heal();
    let (kept, back) = tokio::join!(
        keep_alive(owner, id, Instant::now() + Duration::from_secs(6)),
        other.shows("lock", Some("mine")),
    );
    kept?;
    back?;
    ensure!(owner.get("lock").await?.as_deref() == Some("mine"), "the key is gone where its lease is kept alive");
    let kinds = seen(&mut watch).await?;
    ensure!(!kinds.contains(&(EventType::Delete as i32)), "its own site was told that it went: {kinds:?}");

    // It still hangs on the lease, everywhere: when nobody keeps that alive, the key goes.
    other.shows("lock", None).await?;
    owner.shows("lock", None).await?;
    cluster.settled().await
}
