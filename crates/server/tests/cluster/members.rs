//! Members come and go while the cluster runs.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use eddy_server::node::identity;

use crate::cluster::{Cluster, PATIENCE, Replica, eventually, flags, spawn};
use crate::support::free_ports;

#[tokio::test]
async fn a_member_is_added_joins_and_is_removed() -> Result<()> {
    let mut cluster = Cluster::start(3).await?;
    for n in 0..20 {
        cluster.replicas[n % 3].put(&format!("old-{n}"), "x").await?;
    }
    cluster.settled().await?;
    let (ports, name) = (free_ports()?, "r3".to_owned());
    let peer_url = format!("http://127.0.0.1:{}", ports[1]);
    let added = cluster.replicas[1].add_learner(&peer_url).await?;
    // Whether or not they know of it yet.
    for replica in &cluster.replicas {
        ensure!(replica.promote(added.id).await.is_err(), "it was promoted before it had started");
    }
    let list: Vec<String> = cluster.replicas.iter().map(|r| format!("{}={}", r.name, r.peer_url)).collect();
    let mut all = flags(&name, &peer_url, &format!("{},{name}={peer_url}", list.join(",")));
    all.push("--initial-cluster-state=existing".to_owned());
    let mut server = spawn(&cluster.path(&name), ports, &all)?;
    server.ready().await?;
    cluster.replicas.push(Replica { server, name, ports, peer_url });
    for n in 0..20 {
        cluster.replicas[3].shows(&format!("old-{n}"), Some("x")).await?;
    }
    cluster.replicas[3].put("new", "y").await?;
    for replica in &cluster.replicas {
        replica.shows("new", Some("y")).await?;
        eventually("all know the name of the new member", || async {
            let members = replica.members().await?;
            ensure!(members.len() == 4 && members.iter().any(|m| m.id == added.id && m.name == "r3"), "{members:?}");
            Ok(())
        })
        .await?;
    }
    cluster.replicas[0].promote(added.id).await?;
    cluster.settled().await?;
    ensure!(cluster.replicas[1].members().await?.iter().all(|member| !member.is_learner), "a learner is left");

    cluster.replicas[0].remove(added.id).await?;
    let mut removed = cluster.replicas.pop().context("the new member")?;
    let status = removed.server.ended(PATIENCE).await?;
    assert!(status.success(), "{status}: {}", removed.server.log_tail());
    removed.logs("the member has been permanently removed from the cluster").await?;
    for replica in &cluster.replicas {
        eventually("it is in no list", || async {
            ensure!(replica.members().await?.len() == 3, "it is");
            Ok(())
        })
        .await?;
    }
    cluster.replicas[2].put("without", "z").await?;
    cluster.replicas[0].shows("without", Some("z")).await?;
    cluster.settled().await
}

/// The one with the larger id is dialled, and by nobody once it was removed; the one with the smaller dials.
#[tokio::test]
async fn whoever_was_removed_while_it_was_away_learns_of_it_when_it_comes_back() -> Result<()> {
    for removes_last in [true, false] {
        let mut cluster = Cluster::start(3).await?;
        let mut ids = Vec::new();
        for replica in &cluster.replicas {
            ids.push(replica.status().await?.member_id);
        }
        let id = if removes_last { ids.iter().max() } else { ids.iter().min() }.copied().context("members")?;
        let place = ids.iter().position(|other| *other == id).context("its place")?;
        let mut removed = cluster.replicas.remove(place);
        removed.server.kill()?;
        cluster.replicas[0].remove(id).await?;
        removed.server.respawn()?;
        let status = removed.server.ended(PATIENCE).await?;
        assert!(status.success(), "{status}: {}", removed.server.log_tail());
        removed.logs("the member has been permanently removed from the cluster").await?;
        cluster.settled().await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_replica_of_another_cluster_gets_nothing() -> Result<()> {
    let cluster = Cluster::start(2).await?;
    cluster.replicas[0].put("secret", "x").await?;
    let name = "stranger".to_owned();
    // The one with the smaller id dials: take ports until that is the stranger.
    let (ports, peer_url, list) = loop {
        let ports = free_ports()?;
        let peer_url = format!("http://127.0.0.1:{}", ports[1]);
        let list = format!("r0={},{name}={peer_url}", cluster.replicas[0].peer_url);
        if identity::derive(&name, &list, "etcd-cluster")?.identity.ordinal == 0 {
            break (ports, peer_url, list);
        }
    };
    let mut all = flags(&name, &peer_url, &list);
    all.push("--join-timeout=300ms".to_owned());
    let mut server = spawn(&cluster.path(&name), ports, &all)?;
    server.ready().await?;
    let stranger = Replica { server, name, ports, peer_url };
    stranger.logs("the peer belongs to another cluster").await?;
    stranger.put("foreign", "y").await?;
    stranger.logs("belongs to cluster").await?;
    cluster.replicas[0].logs("belongs to cluster").await?;
    assert_eq!(stranger.get("secret").await?, None);
    assert_eq!(cluster.replicas[0].get("foreign").await?, None);
    cluster.settled().await
}

#[tokio::test]
async fn a_new_member_of_several_takes_nothing_before_it_has_met_one() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let [a, b] = [free_ports()?, free_ports()?];
    let url = |ports: [u16; 2]| format!("http://127.0.0.1:{}", ports[1]);
    let list = format!("a={},b={}", url(a), url(b));
    let mut first = spawn(&dir.path().join("a"), a, &flags("a", &url(a), &list))?;
    let refused = async || -> Result<String> {
        let mut kv = eddy_proto::etcdserverpb::kv_client::KvClient::new(first.connect().await?);
        let put = eddy_proto::etcdserverpb::PutRequest { key: "k".into(), ..Default::default() };
        let status = kv.put(put).await.err().context("it took a write")?;
        ensure!(status.code() == tonic::Code::Unavailable, "{status}");
        Ok(status.message().to_owned())
    };
    eventually("it says that it waits", || async {
        let text = refused().await?;
        ensure!(text.contains("not joined yet"), "{text}");
        Ok(())
    })
    .await?;
    let mut second = spawn(&dir.path().join("b"), b, &flags("b", &url(b), &list))?;
    let both = async { tokio::try_join!(first.ready(), second.ready()) };
    tokio::time::timeout(Duration::from_secs(20), both).await.context("well before the 30 s are over")??;
    Ok(())
}
