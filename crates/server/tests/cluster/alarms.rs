//! What operators are told when a member is not as it should be. The faults are made by the test build of the server.

#![cfg(debug_assertions)]

use std::process::Command;

use anyhow::{Result, ensure};

use crate::cluster::{Cluster, Setup, binary, eventually};

const HOUR_MS: i64 = 3_600_000;

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
