//! Members whose clocks are hours and decades off. The test build of the server has a clock that can be.

#![cfg(debug_assertions)]

use std::path::Path;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use eddy_crdt::{CLOCK_DRAG_MAX_MS, Head};
use eddy_proto::etcdserverpb::lease_client::LeaseClient;
use eddy_proto::etcdserverpb::{LeaseGrantRequest, LeaseTimeToLiveRequest, PutRequest};
use eddy_server::storage::{DiskJournal, Journal, Options};

use crate::cluster::{Cluster, PATIENCE, Replica, Setup, eventually};

const HOUR_MS: i64 = 3_600_000;
const DECADE_MS: i64 = 10 * 365 * 24 * HOUR_MS;

/// How far the clock of each replica is off.
const OFF_MS: [i64; 5] = [0, 3 * HOUR_MS, -3 * HOUR_MS, 5 * DECADE_MS, -5 * DECADE_MS];

/// Above what the whole test takes; what a replica shows of it is never more, and never nothing.
const TTL_S: i64 = 600;

async fn grant(replica: &Replica, id: i64, ttl: i64) -> Result<()> {
    let mut leases = LeaseClient::new(replica.server.connect().await?);
    leases.lease_grant(LeaseGrantRequest { id, ttl }).await?;
    let put = PutRequest { key: format!("lease-{id}").into(), lease: id, ..PutRequest::default() };
    replica.kv().await?.put(put).await?;
    Ok(())
}

/// Granted and remaining time, seconds.
async fn time_to_live(replica: &Replica, id: i64) -> Result<(i64, i64)> {
    let mut leases = LeaseClient::new(replica.server.connect().await?);
    let answer = leases.lease_time_to_live(LeaseTimeToLiveRequest { id, keys: false }).await?.into_inner();
    Ok((answer.granted_ttl, answer.ttl))
}

/// The highest time that a stopped replica has given or seen, milliseconds since the Unix epoch.
fn clock_on_disk(data_dir: &Path) -> Result<i64> {
    let journal = DiskJournal::open(data_dir, Options::default())?;
    Ok(Head::decode(&journal.last_head().context("a head")?)?.stamp.wall_ms() as i64)
}

#[tokio::test]
async fn clocks_that_are_hours_and_decades_off_break_ties_and_nothing_else() -> Result<()> {
    let env = |place: usize| vec![("EDDY_FAULT_CLOCK_MS", OFF_MS[place].to_string())];
    let mut cluster = Cluster::with(OFF_MS.len(), Setup { env: Some(&env), ..Setup::default() }).await?;
    let mut ids = Vec::new();
    for replica in &cluster.replicas {
        ids.push(replica.status().await?.member_id);
    }
    let began = Instant::now();
    for (place, replica) in cluster.replicas.iter().enumerate() {
        grant(replica, 100 + place as i64, TTL_S).await?;
        // One that runs out while the test looks at the others.
        grant(replica, 200 + place as i64, 2).await?;
        replica.put(&format!("by-{}", replica.name), "x").await?;
    }
    // The alarm names each that is off, and each way.
    for (place, off_ms) in OFF_MS.iter().enumerate().filter(|(_, off_ms)| **off_ms != 0) {
        let (prefix, way) =
            (format!("memberID:{} alarm:CLOCK (", ids[place]), if *off_ms > 0 { "ahead" } else { "behind" });
        eventually("the alarm names it", || async {
            let alarms = cluster.replicas[0].status().await?.alarms;
            let named = alarms.iter().find(|alarm| alarm.starts_with(&prefix)).context(format!("{alarms:?}"))?;
            let seconds: i64 = named[prefix.len()..].split(' ').next().context("seconds")?.parse()?;
            ensure!((seconds - off_ms.abs() / 1000).abs() < 60 && named.ends_with(&format!("s {way})")), "{named}");
            Ok(())
        })
        .await?;
    }
    // Causality does not care: a replica that saw a value and writes another wins, whatever the clocks say.
    for (round, writer) in [3, 4, 0, 1, 2, 3, 0].into_iter().enumerate() {
        cluster.replicas[writer].put("relay", &round.to_string()).await?;
        for replica in &cluster.replicas {
            replica.shows("relay", Some(&round.to_string())).await?;
        }
    }
    // No lease expires early, nor is it prolonged; those that ran out go everywhere.
    for replica in &cluster.replicas {
        for place in 0..OFF_MS.len() as i64 {
            replica.shows(&format!("lease-{}", 200 + place), None).await?;
            let (granted, left) = time_to_live(replica, 100 + place).await?;
            let least = TTL_S - 1 - i64::try_from(began.elapsed().as_secs())?;
            ensure!(granted == TTL_S && left >= least, "{}: lease {place}: {left} of {granted} s", replica.name);
            replica.shows(&format!("lease-{}", 100 + place), Some("")).await?;
            replica.shows(&format!("by-r{place}"), Some("x")).await?;
        }
    }
    cluster.settled().await?;
    // Nobody was dragged further than the bound by the ones that are decades ahead.
    for (replica, off_ms) in cluster.replicas.iter_mut().zip(OFF_MS) {
        replica.server.signal("TERM")?;
        replica.server.ended(PATIENCE).await?;
        let now_ms = i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis())?;
        let ahead_ms = clock_on_disk(replica.server.data_dir())? - (now_ms + off_ms);
        ensure!(ahead_ms <= CLOCK_DRAG_MAX_MS as i64, "{} was dragged {ahead_ms} ms ahead", replica.name);
    }
    Ok(())
}
