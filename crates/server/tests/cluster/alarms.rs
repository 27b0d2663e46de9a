//! What operators are told when a member is not as it should be. The faults are made by the test build of the server.

#![cfg(debug_assertions)]

use std::process::Command;

use anyhow::{Context, Result, ensure};
use eddy_proto::etcdserverpb::alarm_request::AlarmAction;
use eddy_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use eddy_proto::etcdserverpb::{AlarmRequest, AlarmType};

use crate::cluster::{Cluster, Replica, Setup, binary, eventually};
use crate::support::free_ports;

const HOUR_MS: i64 = 3_600_000;

/// Entries for the absent member wait, nothing settles, and the operator is told which member is away.
#[tokio::test]
async fn a_member_that_is_away_is_shown_as_such_with_its_name() -> Result<()> {
    let mut cluster = Cluster::start(3).await?;
    cluster.settled().await?;
    let id = cluster.replicas[2].status().await?.member_id;
    cluster.replicas[2].server.kill()?;
    cluster.replicas[0].put("meanwhile", "x").await?;
    for replica in &cluster.replicas[..2] {
        let prefix = format!("memberID:{id} alarm:AWAY (silent for ");
        eventually("the alarm names it", || async {
            let status = replica.status().await?;
            ensure!(status.alarms.iter().any(|alarm| alarm.starts_with(&prefix)), "{:?}", status.alarms);
            let peer = status.peers.iter().find(|peer| peer.member_id == id).context("the peer")?;
            ensure!(!peer.connected && peer.holds_back && peer.entries_behind == 1, "{peer:?}");
            Ok(())
        })
        .await?;
        let table = replica.status_table()?;
        ensure!(table.contains("alarm:AWAY"), "{table}");
        let row = table.lines().find(|line| line.contains(" r2 ")).context("a row")?.to_owned();
        ensure!(row.contains("  no  ") && row.contains("holds settling back"), "{row}");
        ensure!(replica.metric(&format!("eddy_peer_alarm{{kind=\"away\",peer=\"{id:x}\"}}")).await? == 1);
        replica.logs("no connection to the peer").await?;
        ensure!(replica.status().await?.windows > 0, "nothing settles without it");
    }
    cluster.replicas[2].server.restart().await?;
    cluster.settled().await?;
    for replica in &cluster.replicas {
        eventually("no alarm is left", || async {
            let alarms = replica.status().await?.alarms;
            ensure!(alarms.is_empty(), "{alarms:?}");
            Ok(())
        })
        .await?;
        let log = replica.server.log();
        for line in log.lines().filter(|line| line.contains("no connection to the peer")) {
            ensure!((0..3).any(|place| line.contains(&format!("r{place}"))), "{line}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_clock_that_is_off_is_told_by_the_others_with_the_members_name() -> Result<()> {
    let env = |place: usize| match place {
        1 => vec![("EDDY_FAULT_CLOCK_MS", HOUR_MS.to_string())],
        2 => vec![("EDDY_FAULT_CLOCK_MS", (-HOUR_MS).to_string())],
        _ => vec![],
    };
    let cluster = Cluster::with(3, Setup { env: Some(&env), ..Setup::default() }).await?;
    let right = &cluster.replicas[0];
    let ids = [cluster.replicas[1].status().await?.member_id, cluster.replicas[2].status().await?.member_id];
    for (id, way) in ids.into_iter().zip(["ahead", "behind"]) {
        eventually("the alarm names it", || async {
            let alarms = right.status().await?.alarms;
            let prefix = format!("memberID:{id} alarm:CLOCK (");
            ensure!(
                alarms.iter().any(|alarm| alarm.starts_with(&prefix) && alarm.ends_with(&format!("s {way})"))),
                "{alarms:?}"
            );
            Ok(())
        })
        .await?;
        let metrics = right.server.get("/metrics").await?;
        ensure!(metrics.contains(&format!("eddy_peer_alarm{{kind=\"clock\",peer=\"{id:x}\"}} 1")), "{metrics}");
    }
    // Each only breaks ties: what they write arrives and is merged.
    for replica in &cluster.replicas {
        replica.put(&format!("by-{}", replica.name), "x").await?;
    }
    cluster.settled().await?;
    let log = right.server.log();
    for id in ids {
        let told = |line: &&str| line.contains("the peer's clock is off") && line.contains(&format!("{id:x}"));
        assert_eq!(log.lines().filter(told).count(), 1, "told once: {log}");
    }
    let output = Command::new(binary()).args(["status", "--endpoints", &right.server.url()]).output()?;
    let table = String::from_utf8(output.stdout)?;
    ensure!(table.contains("alarm:CLOCK"), "{table}");
    Ok(())
}

async fn set_alarm(at: &Replica, action: AlarmAction, alarm: AlarmType, member_id: u64) -> Result<()> {
    let mut maintenance = MaintenanceClient::new(at.server.connect().await?);
    maintenance.alarm(AlarmRequest { action: action.into(), alarm: alarm.into(), member_id }).await?;
    Ok(())
}

/// A balancer that asks each member must not drop the healthy ones for the one that is not.
#[tokio::test]
async fn only_the_member_that_an_alarm_stops_is_unhealthy() -> Result<()> {
    let cluster = Cluster::start(3).await?;
    cluster.settled().await?;
    let id = cluster.replicas[1].status().await?.member_id;
    for (alarm, name) in [(AlarmType::Nospace, "NOSPACE"), (AlarmType::Corrupt, "CORRUPT")] {
        set_alarm(&cluster.replicas[0], AlarmAction::Activate, alarm, id).await?;
        for (place, replica) in cluster.replicas.iter().enumerate() {
            eventually("all list the alarm", || async {
                let alarms = replica.status().await?.alarms;
                ensure!(alarms.contains(&format!("memberID:{id} alarm:{name}")), "{alarms:?}");
                Ok(())
            })
            .await?;
            let (health, ready) = (replica.server.get("/health").await?, replica.server.get("/readyz").await?);
            if place == 1 {
                let reason = format!("{{\"health\":\"false\",\"reason\":\"ALARM {name}\"}}");
                ensure!(health.starts_with("HTTP/1.1 503") && health.contains(&reason), "{health}");
                ensure!(ready.starts_with("HTTP/1.1 503") == (name == "CORRUPT"), "{ready}");
            } else {
                ensure!(health.starts_with("HTTP/1.1 200"), "{}: {health}", replica.name);
                ensure!(ready.starts_with("HTTP/1.1 200"), "{}: {ready}", replica.name);
                replica.put("meanwhile", "x").await?;
            }
        }
        set_alarm(&cluster.replicas[0], AlarmAction::Deactivate, alarm, id).await?;
        eventually("it is healthy again", || async {
            let health = cluster.replicas[1].server.get("/health").await?;
            ensure!(health.starts_with("HTTP/1.1 200"), "{health}");
            Ok(())
        })
        .await?;
    }
    Ok(())
}

/// The metrics port is often open to all; what the admin API tells names keys.
#[tokio::test]
async fn the_metrics_port_tells_nothing_of_the_data() -> Result<()> {
    let [metrics, _] = free_ports()?;
    let flags = |_| vec![format!("--listen-metrics-urls=http://127.0.0.1:{metrics}")];
    let cluster = Cluster::with(1, Setup { flags: Some(&flags), ..Setup::default() }).await?;
    let server = &cluster.replicas[0].server;
    for path in ["/eddy/v1/status", "/eddy/v1/merges"] {
        ensure!(server.get(path).await?.starts_with("HTTP/1.1 200"), "{path} on the client URL");
        let answer = server.get_at(metrics, path).await?;
        ensure!(answer.starts_with("HTTP/1.1 404"), "{path}: {answer}");
    }
    for path in ["/metrics", "/health", "/livez", "/readyz"] {
        ensure!(server.get_at(metrics, path).await?.starts_with("HTTP/1.1 200"), "{path}");
    }
    Ok(())
}
