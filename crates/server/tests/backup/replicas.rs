//! Restores of one, some and all replicas of a cluster, as `docs/operations.md` tells them.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::restore::restore;
use super::support::{self, Server};
use super::tools::Tools;
use super::{eddy, load};

/// Three members of a cluster.
struct Three {
    list: String,
    ports: Vec<[u16; 2]>,
    folder: PathBuf,
}

impl Three {
    fn new(folder: &Path) -> Result<Self> {
        let ports = (0..3).map(|_| support::free_ports()).collect::<Result<Vec<_>>>()?;
        let one = |(n, ports): (usize, &[u16; 2])| format!("m{n}=http://127.0.0.1:{}", ports[1]);
        let list = ports.iter().enumerate().map(one).collect::<Vec<_>>().join(",");
        Ok(Self { list, ports, folder: folder.to_owned() })
    }

    fn data_dir(&self, n: usize) -> PathBuf {
        self.folder.join(format!("m{n}"))
    }

    fn restore(&self, n: usize, file: &Path) -> Result<String> {
        let (name, url) = (format!("m{n}"), format!("http://127.0.0.1:{}", self.ports[n][1]));
        let flags = ["--name", &name, "--initial-cluster", &self.list, "--initial-advertise-peer-urls", &url];
        restore(file, &self.data_dir(n), &flags)
    }

    fn spawn(&self, n: usize, state: &str) -> Result<Server> {
        let name = format!("m{n}");
        let flags = ["--name", &name, "--initial-cluster", &self.list, "--initial-cluster-state", state];
        Server::spawn_on(&eddy(), &self.data_dir(n), self.ports[n], &flags)
    }
}

/// The keys and values that a member holds.
async fn held(server: &Server) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let kvs = load::all(server, 0).await?;
    Ok(kvs.into_iter().map(|kv| (kv.key.to_vec(), kv.value.to_vec())).collect())
}

/// Waits until a key has that value.
async fn arrives(server: &Server, key: &'static str, value: &str) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        if load::get(server, key).await.is_ok_and(|kv| kv.value == value) {
            return Ok(());
        }
        if Instant::now() > deadline {
            bail!("{key} does not become {value}:\n{}", server.log_tail());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// All members from one backup, or one of them and the others from it; a backup of another moment is another cluster; and
/// none is restored beside a cluster that runs.
#[tokio::test]
async fn a_cluster_is_restored_from_one_backup() -> Result<()> {
    let (tools, folder) = (Tools::find()?, tempfile::tempdir()?);
    let first = Server::start(&eddy(), &folder.path().join("first"), &[]).await?;
    load::history(&first).await?;
    let (file, later) = (folder.path().join("a.db"), folder.path().join("b.db"));
    tools.save(&first, &file)?;
    let before = load::all(&first, 0).await?;
    let leases = load::leases(&first).await?;
    load::put(&first, "later", "x").await?;
    tools.save(&first, &later)?;
    let three = Three::new(folder.path())?;
    let said = [three.restore(0, &file)?, three.restore(1, &file)?];
    ensure!(said[0].contains("--initial-cluster-state existing"), "{}", said[0]);
    let mut members = vec![three.spawn(0, "new")?, three.spawn(1, "new")?];
    for member in &mut members {
        member.ready().await?;
        ensure!(load::all(member, 0).await? == before && load::leases(member).await? == leases);
    }
    load::put(&members[0], "a", "from 0").await?;
    load::put(&members[1], "b", "from 1").await?;
    arrives(&members[1], "a", "from 0").await?;
    arrives(&members[0], "b", "from 1").await?;
    // The cluster runs: a member of it begins anew from the others.
    let refused = three.restore(2, &file).err().context("restored beside a running cluster")?.to_string();
    ensure!(refused.contains("the cluster is running"), "{refused}");
    members.push(three.spawn(2, "existing")?);
    members[2].ready().await?;
    arrives(&members[2], "b", "from 1").await?;
    ensure!(held(&members[0]).await? == held(&members[2]).await?);
    // All of its keys are stamped anew, at one revision.
    let (file, sub) = (folder.path().join("joined.db"), folder.path().join("joined"));
    tools.save(&members[2], &file)?;
    std::fs::create_dir(&sub)?;
    let etcd = super::etcd_from(&tools, &file, &sub, None).await?;
    ensure!(
        load::all(&members[2], 0).await? == load::all(&etcd, 0).await?,
        "etcd has other keys than the one that joined"
    );
    for member in &members {
        let alarms = load::alarms(member).await?;
        ensure!(alarms.is_empty(), "{alarms:?}:\n{}", member.log_tail());
    }
    // One that is restored from another moment is a stranger to them, and changes nothing there.
    members[2].kill()?;
    std::fs::remove_dir_all(three.data_dir(2))?;
    let moved = Three { list: three.list.clone(), ports: three.ports.clone(), folder: folder.path().join("moved") };
    std::fs::create_dir(&moved.folder)?;
    drop(members);
    moved.restore(2, &later)?;
    let mut members = vec![moved.spawn(2, "new")?, three.spawn(0, "new")?];
    for member in &mut members {
        member.ready().await?;
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    ensure!(load::get(&members[0], "later").await.is_ok() && load::get(&members[0], "a").await.is_err());
    ensure!(load::get(&members[1], "later").await.is_err() && load::get(&members[1], "a").await.is_ok());
    let is_told = |member: &Server| member.log().contains("the peer belongs to cluster");
    ensure!(members.iter().any(is_told), "{}", members[0].log_tail());
    Ok(())
}

/// A cluster of three that runs, and holds what `load::history` writes and a key for each member.
async fn running(three: &Three) -> Result<Vec<Server>> {
    let mut members = (0..3).map(|n| three.spawn(n, "new")).collect::<Result<Vec<_>>>()?;
    for member in &mut members {
        member.ready().await?;
    }
    load::history(&members[0]).await?;
    for (member, key) in members.iter().zip(KEYS) {
        load::put(member, key, "before").await?;
    }
    all_see(&members, "before").await?;
    Ok(members)
}

/// One key for each member.
const KEYS: [&str; 3] = ["m0", "m1", "m2"];

/// Waits until each member has that value of each member's key, and holds what the others hold.
async fn all_see(members: &[Server], value: &str) -> Result<()> {
    for member in members {
        for key in KEYS {
            arrives(member, key, value).await?;
        }
        ensure!(held(member).await? == held(&members[0]).await?, "the members hold different keys");
        let alarms = load::alarms(member).await?;
        ensure!(alarms.is_empty(), "{alarms:?}:\n{}", member.log_tail());
    }
    Ok(())
}

/// Stops all members and deletes what they had.
fn lose(three: &Three, members: Vec<Server>) -> Result<()> {
    drop(members);
    for n in 0..3 {
        std::fs::remove_dir_all(three.data_dir(n))?;
    }
    Ok(())
}

/// Writes at each member, and waits until all have it.
async fn goes_on(members: &[Server]) -> Result<()> {
    for (member, key) in members.iter().zip(KEYS) {
        load::put(member, key, "after").await?;
    }
    all_see(members, "after").await
}

/// All disks are lost: each member is restored from the backup of one of them.
#[tokio::test]
async fn all_three_are_restored_from_one_backup() -> Result<()> {
    let (tools, folder) = (Tools::find()?, tempfile::tempdir()?);
    let three = Three::new(folder.path())?;
    let members = running(&three).await?;
    let file = folder.path().join("a.db");
    tools.save(&members[1], &file)?;
    let (before, leases) = (load::all(&members[1], 0).await?, load::leases(&members[1]).await?);
    lose(&three, members)?;
    for n in 0..3 {
        three.restore(n, &file)?;
    }
    let mut members = (0..3).map(|n| three.spawn(n, "new")).collect::<Result<Vec<_>>>()?;
    for member in &mut members {
        member.ready().await?;
        // With all numbers of the replica that made the backup.
        ensure!(load::all(member, 0).await? == before && load::leases(member).await? == leases);
    }
    goes_on(&members).await
}

/// All disks are lost: one member is restored, and the others begin anew from it.
#[tokio::test]
async fn one_is_restored_and_the_others_begin_empty() -> Result<()> {
    let (tools, folder) = (Tools::find()?, tempfile::tempdir()?);
    let three = Three::new(folder.path())?;
    let members = running(&three).await?;
    let file = folder.path().join("a.db");
    tools.save(&members[1], &file)?;
    let before = held(&members[1]).await?;
    lose(&three, members)?;
    three.restore(2, &file)?;
    let mut members = vec![three.spawn(0, "existing")?, three.spawn(1, "existing")?, three.spawn(2, "new")?];
    for member in &mut members {
        member.ready().await?;
        ensure!(held(member).await? == before);
    }
    goes_on(&members).await
}

/// One disk is lost, and the others live. They have newer writes than the backup: it is not taken while one of them answers.
/// Taken behind their back, it is another cluster, and changes nothing with them. An empty disk is what brings the member back.
#[tokio::test]
async fn one_is_restored_from_an_older_backup_while_the_others_live() -> Result<()> {
    let (tools, folder) = (Tools::find()?, tempfile::tempdir()?);
    let three = Three::new(folder.path())?;
    let mut members = running(&three).await?;
    let file = folder.path().join("a.db");
    tools.save(&members[2], &file)?;
    for (member, key) in members.iter().zip(KEYS) {
        load::put(member, key, "newer").await?;
    }
    all_see(&members, "newer").await?;
    members[2].kill()?;
    std::fs::remove_dir_all(three.data_dir(2))?;
    let refused = three.restore(2, &file).err().context("restored beside a running cluster")?.to_string();
    ensure!(refused.contains("the cluster is running"), "{refused}");
    ensure!(!three.data_dir(2).exists(), "what was refused left a data dir");
    // The others cannot be asked for a moment.
    members[0].kill()?;
    members[1].kill()?;
    three.restore(2, &file)?;
    members[0].restart().await?;
    members[1].restart().await?;
    members[2].restart().await?;
    ensure!(load::get(&members[2], KEYS[2]).await?.value == "before");
    load::put(&members[2], "stranger", "x").await?;
    load::put(&members[0], KEYS[0], "newest").await?;
    arrives(&members[1], KEYS[0], "newest").await?;
    let is_told = |member: &Server| member.log().contains("the peer belongs to cluster");
    let deadline = Instant::now() + Duration::from_secs(30);
    while !members.iter().any(is_told) {
        ensure!(Instant::now() < deadline, "nobody tells of the stranger: {}", members[2].log_tail());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    ensure!(load::get(&members[2], KEYS[0]).await?.value == "before", "a stranger took the cluster's writes");
    for member in &members[..2] {
        ensure!(load::get(member, "stranger").await.is_err(), "the cluster took a stranger's write");
        ensure!(load::get(member, KEYS[2]).await?.value == "newer");
    }
    // On an empty disk it begins anew from them.
    members[2].kill()?;
    std::fs::remove_dir_all(three.data_dir(2))?;
    members[2] = three.spawn(2, "existing")?;
    members[2].ready().await?;
    goes_on(&members).await
}
