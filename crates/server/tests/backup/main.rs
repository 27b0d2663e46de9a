//! Backups beside etcd's own tools: `etcdctl snapshot save`, `etcdutl snapshot status` and `restore`, `bbolt check`, and a
//! real etcd on what was restored. `tools/peers/build etcd` makes these programs.

mod load;
mod replicas;
mod restore;
#[path = "../support/mod.rs"]
mod support;
mod tools;
mod users;

use std::path::Path;

use anyhow::{Context, Result, ensure};
use load::Load;
use support::Server;
use tools::Tools;

fn eddy() -> std::path::PathBuf {
    let named = std::env::var_os("EDDY_BIN").map(std::path::PathBuf::from);
    named.unwrap_or_else(|| Path::new(env!("CARGO_BIN_EXE_eddy")).to_owned())
}

/// What both say of the same data, as clients see it: now, at each revision that is not compacted, and below that.
async fn compare(one: &Server, other: &Server, from: i64, to: i64) -> Result<()> {
    for at in from..=to {
        let (expected, found) = (load::all(one, at).await?, load::all(other, at).await?);
        ensure!(expected == found, "at {at}: {} keys against {}", expected.len(), found.len());
    }
    let compacted = load::all(other, from - 1).await;
    ensure!(from == 1 || compacted.is_err(), "{} is compacted, and was answered", from - 1);
    ensure!(load::leases(one).await? == load::leases(other).await?, "the leases differ");
    Ok(())
}

/// etcd from a snapshot: with its bytes checked first, as etcd's tools do it and as bbolt does.
async fn etcd_from(tools: &Tools, file: &Path, folder: &Path, revision: Option<i64>) -> Result<Server> {
    let status = tools.status(file)?;
    ensure!(status["version"] == "3.7.0", "{status}");
    ensure!(revision.is_none_or(|revision| status["revision"] == revision), "{status}");
    tools.check(file, folder)?;
    let data_dir = folder.join("etcd");
    tools.restore(file, &data_dir)?;
    Server::start(&tools.etcd(), &data_dir, &[]).await
}

#[tokio::test]
async fn etcd_serves_what_eddy_held() -> Result<()> {
    let (tools, folder) = (Tools::find()?, tempfile::tempdir()?);
    let eddy = Server::start(&eddy(), &folder.path().join("eddy"), &[]).await?;
    let (compacted, revision) = load::history(&eddy).await?;
    let file = folder.path().join("a.db");
    tools.save(&eddy, &file)?;
    let etcd = etcd_from(&tools, &file, folder.path(), Some(revision)).await?;
    compare(&eddy, &etcd, compacted, revision).await?;
    ensure!(load::hash(&eddy, revision).await? == load::hash(&etcd, revision).await?, "etcd hashes it otherwise");
    // It goes on where eddy was.
    ensure!(load::put(&etcd, "k1", "on").await? == revision + 1);
    let (before, after) = (load::get(&eddy, "k1").await?, load::get(&etcd, "k1").await?);
    ensure!((after.create_revision, after.version) == (before.create_revision, before.version + 1), "{after:?}");
    Ok(())
}

/// The members of a cluster of several count in spaces of their own, far above what etcd counts.
#[tokio::test]
async fn etcd_takes_revisions_of_any_space() -> Result<()> {
    let (tools, folder) = (Tools::find()?, tempfile::tempdir()?);
    let ports = support::free_ports()?;
    let list = format!("default=http://127.0.0.1:{},away=http://127.0.0.1:1", ports[1]);
    let flags = ["--initial-cluster", &list, "--join-timeout", "100ms"];
    let mut eddy = Server::spawn_on(&eddy(), &folder.path().join("eddy"), ports, &flags)?;
    eddy.ready().await?;
    let file = folder.path().join("empty.db");
    let empty = load::revision(&eddy).await?;
    ensure!(empty > 1 << 44, "{empty}");
    tools.save(&eddy, &file)?;
    std::fs::create_dir(folder.path().join("empty"))?;
    let etcd = etcd_from(&tools, &file, &folder.path().join("empty"), None).await?;
    ensure!(load::revision(&etcd).await? == empty, "the revision of an empty store is kept");
    drop(etcd);
    let (compacted, revision) = load::history(&eddy).await?;
    let file = folder.path().join("a.db");
    tools.save(&eddy, &file)?;
    let etcd = etcd_from(&tools, &file, folder.path(), Some(revision)).await?;
    compare(&eddy, &etcd, compacted, revision).await
}

/// A snapshot under load is of one revision, and its keys are those of that revision.
#[tokio::test]
async fn a_snapshot_under_load_is_of_one_revision() -> Result<()> {
    let (tools, folder) = (Tools::find()?, tempfile::tempdir()?);
    let eddy = Server::start(&eddy(), &folder.path().join("eddy"), &[]).await?;
    for n in 0..40 {
        load::put(&eddy, &format!("large{n}"), &"x".repeat(1 << 20)).await?;
    }
    let load = Load::start(&eddy).await?;
    for round in 0..3 {
        let file = folder.path().join(format!("{round}.db"));
        tools.save(&eddy, &file)?;
        let sub = folder.path().join(round.to_string());
        std::fs::create_dir(&sub)?;
        let etcd = etcd_from(&tools, &file, &sub, None).await?;
        let at = load::revision(&etcd).await?;
        ensure!(load::all(&eddy, at).await? == load::all(&etcd, at).await?, "round {round}: at {at} they differ");
    }
    let puts = load.stop().await?;
    ensure!(puts > 100, "only {puts} puts went on");
    Ok(())
}

#[test]
fn the_tools_see_what_is_wrong() -> Result<()> {
    let (tools, folder) = (Tools::find()?, tempfile::tempdir()?);
    let file = folder.path().join("none.db");
    std::fs::write(&file, vec![1; 8192])?;
    tools.status(&file).err().context("a file that is none passes").map(drop)
}
