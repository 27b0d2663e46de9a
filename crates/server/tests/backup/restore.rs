//! `eddy restore`: from what etcd wrote, and from what eddy wrote.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::support::{self, Server};
use super::tools::Tools;
use super::{eddy, load};

/// `eddy restore`; what it said.
fn restore(file: &Path, data_dir: &Path, more: &[&str]) -> Result<String> {
    let output = Command::new(eddy())
        .arg("restore")
        .arg(file)
        .arg("--data-dir")
        .arg(data_dir)
        .args(more)
        .stdin(Stdio::null())
        .output()?;
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "{}{err}", out);
    Ok(out.into_owned())
}

/// What a restored eddy shows, and where it goes on.
async fn compare(one: &Server, restored: &Server, revision: i64) -> Result<()> {
    ensure!(load::all(one, 0).await? == load::all(restored, 0).await?, "the keys differ");
    ensure!(load::leases(one).await? == load::leases(restored).await?, "the leases differ");
    let at = load::revision(restored).await?;
    ensure!(at > revision && load::all(restored, revision).await.is_err(), "at {at}, from {revision}");
    let (before, next) = (load::get(restored, "k1").await?, load::put(restored, "k1", "on").await?);
    let after = load::get(restored, "k1").await?;
    ensure!((after.create_revision, after.version) == (before.create_revision, before.version + 1), "{after:?}");
    ensure!(next > at && after.mod_revision == next, "{next} after {at}");
    Ok(())
}

#[tokio::test]
async fn eddy_serves_what_etcd_held() -> Result<()> {
    let (tools, folder) = (Tools::find()?, tempfile::tempdir()?);
    let mut etcd = Server::start(&tools.etcd(), &folder.path().join("etcd"), &[]).await?;
    let (_, revision) = load::history(&etcd).await?;
    let file = folder.path().join("a.db");
    tools.save(&etcd, &file)?;
    let said = restore(&file, &folder.path().join("eddy"), &[])?;
    ensure!(said.contains(&format!("of revision {revision} ")), "{said}");
    let mut restored = Server::start(&eddy(), &folder.path().join("eddy"), &[]).await?;
    compare(&etcd, &restored, revision).await?;
    restored.kill()?;
    restored.restart().await?;
    ensure!(load::get(&restored, "k1").await?.value == "on");
    drop(restored);
    // A copy out of a data dir has no hash, and the free pages of a database that was in use.
    etcd.kill()?;
    let copy = etcd.data_dir().join("member/snap/db");
    let refused = restore(&copy, &folder.path().join("copied"), &[]).err().context("a copy passes")?.to_string();
    ensure!(refused.contains("--skip-hash-check"), "{refused}");
    restore(&copy, &folder.path().join("copied"), &["--skip-hash-check"])?;
    let copied = Server::start(&eddy(), &folder.path().join("copied"), &[]).await?;
    etcd.restart().await?;
    ensure!(load::all(&etcd, 0).await? == load::all(&copied, 0).await?, "the keys of the copy differ");
    // etcd's own way to raise revisions leaves a version without a key.
    let raised = folder.path().join("raised");
    tools.restore_with(&file, &raised, &["--bump-revision", "1000000", "--mark-compacted"])?;
    let said = restore(&raised.join("member/snap/db"), &folder.path().join("again"), &["--skip-hash-check"])?;
    ensure!(said.contains(&format!("of revision {} ", revision + 1_000_000)), "{said}");
    Ok(())
}

#[tokio::test]
async fn eddy_serves_what_eddy_held_and_never_counts_again() -> Result<()> {
    let (tools, folder) = (Tools::find()?, tempfile::tempdir()?);
    let first = Server::start(&eddy(), &folder.path().join("first"), &[]).await?;
    let (_, revision) = load::history(&first).await?;
    let file = folder.path().join("a.db");
    tools.save(&first, &file)?;
    let mut seen = vec![];
    for name in ["b", "c"] {
        let data_dir = folder.path().join(name);
        restore(&file, &data_dir, &[])?;
        let again = restore(&file, &data_dir, &[]).err().context("restored over another")?.to_string();
        ensure!(again.contains("not empty"), "{again}");
        let restored = Server::start(&eddy(), &data_dir, &[]).await?;
        compare(&first, &restored, revision).await?;
        seen.push(load::revision(&restored).await? >> 32);
    }
    ensure!(seen[0] != seen[1], "both restores count in space {}", seen[0]);
    let far = revision + (1 << 61);
    let (data_dir, bump) = (folder.path().join("d"), (1_u64 << 61).to_string());
    restore(&file, &data_dir, &["--bump-revision", &bump, "--mark-compacted"])?;
    let restored = Server::start(&eddy(), &data_dir, &[]).await?;
    ensure!(load::revision(&restored).await? > far);
    ensure!(restore(&file, &folder.path().join("e"), &["--bump-revision", "5"]).is_err());
    Ok(())
}

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
    let keys =
        |kvs: Vec<eddy_proto::mvccpb::KeyValue>| kvs.into_iter().map(|kv| (kv.key, kv.value)).collect::<Vec<_>>();
    ensure!(keys(load::all(&members[0], 0).await?) == keys(load::all(&members[2], 0).await?));
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

#[tokio::test]
async fn what_is_no_backup_is_refused_by_name() -> Result<()> {
    let (tools, folder) = (Tools::find()?, tempfile::tempdir()?);
    let etcd = Server::start(&tools.etcd(), &folder.path().join("etcd"), &[]).await?;
    load::history(&etcd).await?;
    let file = folder.path().join("a.db");
    tools.save(&etcd, &file)?;
    let good = std::fs::read(&file)?;
    let mut altered = good.clone();
    altered[good.len() / 2] ^= 1;
    for (bytes, told) in [
        (&good[..good.len() / 2], "truncated"),
        (&good[..good.len() - 5], "no hash at its end"),
        (&altered[..], "were altered"),
        (&b"PK\x03\x04 something else, and longer than the first page of a database"[..], "ends within its first page"),
        (&[7; 20_000][..], "no bbolt database"),
    ] {
        let bad = folder.path().join("bad.db");
        std::fs::write(&bad, bytes)?;
        let data_dir = folder.path().join("none");
        let said = restore(&bad, &data_dir, &[]).err().context("it passes")?.to_string();
        ensure!(said.contains(told) && said.contains("bad.db"), "{told}: {said}");
        ensure!(!data_dir.join("eddy").exists());
    }
    let missing = restore(&folder.path().join("missing"), &folder.path().join("none"), &[]);
    ensure!(missing.err().context("it passes")?.to_string().contains("No such file"));
    Ok(())
}
