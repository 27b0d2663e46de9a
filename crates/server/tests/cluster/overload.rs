//! More writes at all replicas than there are cores to apply them everywhere.

use std::time::Duration;

use anyhow::{Result, ensure};
use eddy_proto::etcdserverpb::PutRequest;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::cluster::{Cluster, Setup};

const REPLICAS: usize = 15;
/// Clients of each replica.
const CLIENTS: usize = 66;
/// How long they write.
const LOAD: Duration = Duration::from_secs(14);
/// Keys that all of them write.
const KEYS: usize = 2_000;

/// Replicas that fall behind must not send each other everything again: that would cost what there is too little of. Each entry
/// comes from its maker once; a few may come twice.
#[tokio::test]
async fn replicas_that_are_behind_are_sent_hardly_anything_twice() -> Result<()> {
    let cluster = Cluster::with(REPLICAS, Setup::default()).await?;
    cluster.settled().await?;
    let until = Instant::now() + LOAD;
    let mut clients = JoinSet::new();
    for replica in &cluster.replicas {
        let kv = replica.kv().await?;
        for client in 0..CLIENTS {
            let mut kv = kv.clone();
            clients.spawn(async move {
                let mut n = client * 7;
                while Instant::now() < until {
                    let key = format!("key {}", n % KEYS);
                    kv.put(PutRequest { key: key.into(), value: vec![7; 256].into(), ..PutRequest::default() }).await?;
                    n += 13;
                }
                anyhow::Ok(())
            });
        }
    }
    while let Some(ended) = clients.join_next().await {
        ended??;
    }
    cluster.settled().await?;
    let (mut new, mut doubled) = (0, 0);
    for replica in &cluster.replicas {
        let page = replica.server.get("/metrics").await?;
        let sum = |kind: &str| -> u64 {
            let of_kind = |line: &&str| line.starts_with(&format!("eddy_peer_received_entries_total{{kind=\"{kind}\""));
            let values = page.lines().filter(of_kind).filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
            values.sum::<f64>() as u64
        };
        (new, doubled) = (new + sum("new"), doubled + sum("doubled"));
    }
    println!("{new} entries were received, and {doubled} again");
    ensure!(new > 10_000 && doubled < new / 4, "{new} entries were received, and {doubled} again");
    Ok(())
}
