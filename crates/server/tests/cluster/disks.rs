//! Disks that lost something: wiped, or put back from an old copy.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::cluster::{Cluster, PATIENCE, Replica, Setup, eventually};

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_wiped_data_dir_is_filled_again() -> Result<()> {
    let mut cluster = Cluster::start(3).await?;
    for (place, replica) in cluster.replicas.iter().enumerate() {
        for n in 0..10 {
            replica.put(&format!("{place}-{n}"), "x").await?;
        }
    }
    cluster.settled().await?;
    let before = cluster.replicas[2].status().await?;
    cluster.replicas[2].server.kill()?;
    fs::remove_dir_all(cluster.replicas[2].server.data_dir())?;
    cluster.replicas[0].put("meanwhile", "y").await?;
    cluster.replicas[2].server.restart().await?;
    for key in ["0-9", "1-9", "2-9"] {
        cluster.replicas[2].shows(key, Some("x")).await?;
    }
    cluster.replicas[2].shows("meanwhile", Some("y")).await?;
    let after = cluster.replicas[2].status().await?;
    assert_eq!(after.member_id, before.member_id);
    assert_ne!(after.birth, before.birth);
    assert!(after.revision >> 32 > before.revision >> 32, "it leapt");
    cluster.replicas[2].put("after", "z").await?;
    cluster.replicas[0].shows("after", Some("z")).await?;
    cluster.settled().await
}

/// How often a member loses its disk, one time after the other; `EDDY_LOST_DISKS` says otherwise. After 59 times no member of
/// the first build took writes any more, nor after a restart: each lost disk left something in all vectors for good.
const LOST_DISKS: usize = 59;

#[tokio::test]
async fn a_disk_that_is_lost_again_and_again_stops_nobody_and_leaves_nothing() -> Result<()> {
    let times = std::env::var("EDDY_LOST_DISKS").ok().and_then(|times| times.parse().ok()).unwrap_or(LOST_DISKS);
    let mut cluster = Cluster::start(3).await?;
    cluster.settled().await?;
    for time in 0..times {
        cluster.replicas[2].server.kill()?;
        fs::remove_dir_all(cluster.replicas[2].server.data_dir())?;
        cluster.replicas[0].put("meanwhile", &time.to_string()).await?;
        cluster.replicas[2].server.restart().await?;
        cluster.replicas[2].shows("meanwhile", Some(&time.to_string())).await?;
        // Each time another key: two births of the member may make the same one apart, and the last made wins then.
        let after = format!("after {time}");
        cluster.replicas[2].put(&after, "x").await?;
        cluster.replicas[1].shows(&after, Some("x")).await?;
    }
    for place in 0..3 {
        cluster.replicas[place].server.kill()?;
        cluster.replicas[place].server.restart().await?;
        cluster.replicas[place].put("restarted", &place.to_string()).await?;
    }
    cluster.settled().await?;
    for replica in &cluster.replicas {
        let vector = replica.status().await?.vector;
        // The newest four births of a member that are over are kept, and who founded the cluster.
        ensure!(vector.len() <= 3 + 1 + 4, "{} has entries of {} births: {vector:?}", replica.name, vector.len());
    }
    Ok(())
}

/// A backup is put back while the network is down, and written to. The member sees that it is a copy.
#[tokio::test]
async fn a_disk_put_back_from_an_old_copy_takes_nothing_back() -> Result<()> {
    put_back(true, "the data dir is a copy").await
}

/// The same where nothing tells the copy from the original, as when a file system is set back. The member believes the
/// copy and writes on, under names that its peers know for other writes.
#[tokio::test]
async fn a_disk_set_back_unseen_takes_nothing_back() -> Result<()> {
    put_back(false, "peers know entries of this replica that it has lost").await
}

async fn put_back(is_seen: bool, said: &str) -> Result<()> {
    let mut cluster = Cluster::with(3, Setup { relays: true, ..Setup::default() }).await?;
    let backup = cluster.path("backup");
    cluster.replicas[2].put("mine", "old").await?;
    cluster.settled().await?;
    let restored = &mut cluster.replicas[2];
    restored.server.signal("TERM")?;
    restored.server.ended(PATIENCE).await?;
    copy(restored.server.data_dir(), &backup)?;
    restored.server.restart().await?;
    restored.put("mine", "new").await?;
    restored.put("told", "x").await?;
    for replica in &cluster.replicas {
        replica.shows("told", Some("x")).await?;
    }
    let before = cluster.replicas[2].status().await?;

    let restored = &mut cluster.replicas[2];
    restored.server.kill()?;
    fs::remove_dir_all(restored.server.data_dir())?;
    copy(&backup, restored.server.data_dir())?;
    if !is_seen {
        fs::remove_file(restored.server.data_dir().join("eddy/place"))?;
    }
    cluster.relays()?.refuse();
    let restored = &mut cluster.replicas[2];
    restored.server.restart().await?;
    ensure!(restored.get("mine").await?.as_deref() == Some("old"), "the old disk is there");
    ensure!(restored.get("told").await?.is_none(), "and what came after is not");
    restored.put("later", "y").await?;
    restored.put("contended", "restored").await?;
    // Later, also by clocks that count milliseconds. At both, so that either of them can give it in the snapshot.
    tokio::time::sleep(Duration::from_millis(20)).await;
    cluster.replicas[0].put("contended", "peer").await?;
    cluster.replicas[1].put("contended", "peer").await?;
    cluster.relays()?.heal();

    for replica in &cluster.replicas {
        for (key, value) in [("mine", "new"), ("told", "x"), ("later", "y"), ("contended", "peer")] {
            replica.shows(key, Some(value)).await?;
        }
    }
    cluster.settled().await?;
    let (restored, after) = (&cluster.replicas[2], cluster.replicas[2].status().await?);
    assert_eq!(after.member_id, before.member_id);
    assert_ne!(after.birth, before.birth);
    assert!(after.revision >> 32 > before.revision >> 32, "it leapt");
    restored.logs(said).await?;
    let reported = restored.logged(&["a write from before the loss gave something up", "contended"]);
    ensure!(reported == 1, "what was dropped is reported: {}", restored.server.log());
    Ok(())
}

/// The disks of all members are put back from copies, as when a machine room is set back. Nobody is left who knows more: they go on
/// together, and settle again.
#[tokio::test]
async fn members_that_are_all_put_back_from_old_copies_go_on_together() -> Result<()> {
    let mut cluster = Cluster::start(3).await?;
    for replica in &cluster.replicas {
        replica.put(&replica.name, "old").await?;
    }
    cluster.settled().await?;
    // The copies are not of one moment: each knows something that another does not.
    for place in 0..3 {
        let backup = cluster.path(&format!("backup {place}"));
        let replica = &mut cluster.replicas[place];
        replica.put(&format!("last of {place}"), "x").await?;
        replica.server.kill()?;
        copy(replica.server.data_dir(), &backup)?;
        replica.server.restart().await?;
    }
    for replica in &cluster.replicas {
        replica.put(&replica.name, "lost").await?;
    }
    cluster.settled().await?;
    for replica in &mut cluster.replicas {
        replica.server.kill()?;
    }
    for (place, replica) in cluster.replicas.iter().enumerate() {
        fs::remove_dir_all(replica.server.data_dir())?;
        copy(&cluster.path(&format!("backup {place}")), replica.server.data_dir())?;
    }
    for replica in &mut cluster.replicas {
        replica.server.respawn()?;
    }
    for (place, replica) in cluster.replicas.iter_mut().enumerate() {
        replica.server.ready().await?;
        // Two of them begin anew from another one once they meet, and answer nobody for a moment.
        let key = format!("after {place}");
        eventually("it takes a write", async || replica.put(&key, "y").await.map(drop)).await?;
    }
    for replica in &cluster.replicas {
        replica.logs("the data dir is a copy").await?;
        for place in 0..3 {
            replica.shows(&format!("last of {place}"), Some("x")).await?;
            replica.shows(&format!("after {place}"), Some("y")).await?;
            replica.shows(&cluster.replicas[place].name, Some("old")).await?;
        }
    }
    cluster.settled().await
}

/// Leaves the data dir of a replica as a process leaves it that is stopped while it begins anew from that member.
fn begins_anew(replica: &Replica, giver: u64) -> Result<()> {
    Ok(fs::write(replica.server.data_dir().join("eddy/anew"), giver.to_string())?)
}

/// Two disks are lost at once, and the third member never comes back. One of the two began by itself and took a write, the
/// other one is a copy. Each is to begin anew from the other: both waited for the third for ever.
#[tokio::test]
async fn two_that_lost_their_disks_do_not_wait_for_one_that_never_comes_back() -> Result<()> {
    let soon = |_| vec!["--join-timeout=1s".to_owned()];
    let mut cluster = Cluster::with(3, Setup { flags: Some(&soon), ..Setup::default() }).await?;
    for replica in &cluster.replicas {
        replica.put(&replica.name, "x").await?;
    }
    cluster.settled().await?;
    let members = [cluster.replicas[0].status().await?.member_id, cluster.replicas[1].status().await?.member_id];
    cluster.replicas[2].server.kill()?;
    cluster.replicas[0].server.kill()?;
    let (data, backup) = (cluster.replicas[0].server.data_dir().to_owned(), cluster.path("backup"));
    copy(&data, &backup)?;
    fs::remove_dir_all(&data)?;
    copy(&backup, &data)?;
    cluster.replicas[1].server.kill()?;
    fs::remove_dir_all(cluster.replicas[1].server.data_dir())?;
    cluster.replicas[1].server.restart().await?;
    cluster.replicas[1].put("alone", "x").await?;
    cluster.replicas[1].server.kill()?;
    for (waits, giver) in [(0, 1), (1, 0)] {
        begins_anew(&cluster.replicas[waits], members[giver])?;
        cluster.replicas[waits].server.respawn()?;
    }
    for replica in &mut cluster.replicas[..2] {
        replica.server.ready().await?;
        for key in ["r0", "r1", "r2", "alone"] {
            replica.shows(key, Some("x")).await?;
        }
    }
    let went_on = |replica: &Replica| replica.logged(&["going on with what is on this disk"]);
    ensure!(cluster.replicas[..2].iter().any(|replica| went_on(replica) > 0), "neither waited for the other");
    Ok(())
}

/// A member was to begin anew from another one, which is gone since. It serves what it has, and begins anew from that one later.
#[tokio::test]
async fn one_that_is_to_begin_anew_does_not_wait_for_ever_for_one_that_is_gone() -> Result<()> {
    let soon = |_| vec!["--join-timeout=1s".to_owned()];
    let mut cluster = Cluster::with(2, Setup { flags: Some(&soon), ..Setup::default() }).await?;
    cluster.replicas[0].put("mine", "x").await?;
    cluster.replicas[1].put("theirs", "x").await?;
    cluster.settled().await?;
    let giver = cluster.replicas[1].status().await?.member_id;
    cluster.replicas[1].put("later", "x").await?;
    cluster.replicas[1].server.kill()?;
    let waiting = &mut cluster.replicas[0];
    waiting.server.kill()?;
    begins_anew(waiting, giver)?;
    waiting.server.restart().await?;
    waiting.put("alone", "x").await?;
    ensure!(waiting.logged(&["going on with what is on this disk"]) == 1, "it began anew: {}", waiting.server.log());
    cluster.replicas[1].server.restart().await?;
    for replica in &cluster.replicas {
        for key in ["mine", "theirs", "later", "alone"] {
            replica.shows(key, Some("x")).await?;
        }
    }
    cluster.settled().await
}
