//! `eddy import`.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use eddy_proto::etcdserverpb as pb;
use eddy_proto::etcdserverpb::kv_client::KvClient;

use super::mover::Mover;
use super::support::{self, Server};
use super::tools::Tools;
use super::writer::{self, Writer};
use super::{eddy, equal, load};

/// Objects of the large test.
const OBJECTS: usize = 20_000;

async fn compact(server: &Server, revision: i64) -> Result<()> {
    let mut kv = KvClient::new(server.connect().await?);
    kv.compact(pb::CompactionRequest { revision, physical: true }).await?;
    Ok(())
}

/// Writes go on all the time. The import is killed while it copies, and while it follows.
#[tokio::test(flavor = "multi_thread")]
async fn an_import_follows_until_both_are_equal_whatever_interrupts_it() -> Result<()> {
    let (tools, folder) = (Tools::find()?, tempfile::tempdir()?);
    let etcd = Server::start(&tools.etcd(), &folder.path().join("etcd"), &[]).await?;
    let (compacted, _) = load::history(&etcd).await?;
    writer::fill(&etcd, OBJECTS).await?;
    let data_dir = folder.path().join("eddy");
    let writer = Writer::start(&etcd).await?;
    let mut import = Mover::import(&etcd.url(), &data_dir, &[])?;
    import.says(" bytes of it").await?;
    import.kill()?;
    let mut import = Mover::import(&etcd.url(), &data_dir, &[])?;
    import.says("equal at revision").await?;
    import.kill()?;
    // Nothing starts on what may lack something.
    let mut early = Server::spawn_on(&eddy(), &data_dir, support::free_ports()?, &[])?;
    ensure!(!early.ended(Duration::from_secs(20)).await?.success());
    ensure!(early.log().contains("has not ended"), "{}", early.log_tail());
    let mut import = Mover::import(&etcd.url(), &data_dir, &[])?;
    import.says("goes on at revision").await?;
    import.says("equal at revision").await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let writes = writer.stop().await?;
    let revision = load::revision(&etcd).await?;
    let said = import.stop().await?;
    ensure!(said.contains(&format!("at revision {revision}: start eddy")), "{said}");
    let moved = Server::start(&eddy(), &data_dir, &[]).await?;
    equal(&etcd, &moved, compacted).await?;
    ensure!(writes > 300, "only {writes} writes went on");
    // It goes on where etcd was.
    ensure!(load::put(&moved, "on", "x").await? == revision + 1);
    let again = Mover::import(&etcd.url(), &data_dir, &[])?.fails().await?;
    ensure!(again.contains("is not empty"), "{again}");
    Ok(())
}

/// While nobody followed, the source forgot what came next; and a source that never forgot anything.
#[tokio::test]
async fn an_import_begins_again_where_the_source_has_compacted() -> Result<()> {
    let (tools, folder) = (Tools::find()?, tempfile::tempdir()?);
    let etcd = Server::start(&tools.etcd(), &folder.path().join("etcd"), &[]).await?;
    writer::fill(&etcd, 500).await?;
    let data_dir = folder.path().join("eddy");
    let mut import = Mover::import(&etcd.url(), &data_dir, &[])?;
    import.says("equal at revision").await?;
    import.says("has the history from revision 1 ").await?;
    import.kill()?;
    let writer = Writer::start(&etcd).await?;
    tokio::time::sleep(Duration::from_millis(500)).await;
    writer.stop().await?;
    // A watch may begin at the compaction itself, and that is a delete.
    tools.control(&etcd, &["del", "/o/000499"])?;
    let revision = load::revision(&etcd).await?;
    compact(&etcd, revision).await?;
    load::put(&etcd, "after", "x").await?;
    let mut import = Mover::import(&etcd.url(), &data_dir, &[])?;
    import.says("begun again").await?;
    import.says("equal at revision").await?;
    import.stop().await?;
    let moved = Server::start(&eddy(), &data_dir, &[]).await?;
    equal(&etcd, &moved, revision).await?;
    ensure!(load::all(&moved, revision - 1).await.is_err(), "what is compacted there is compacted here");
    Ok(())
}

/// Copies a folder.
fn copy(from: &std::path::Path, to: &std::path::Path) -> Result<()> {
    let copied = std::process::Command::new("cp").arg("-a").arg(from).arg(to).status()?;
    ensure!(copied.success(), "cp: {copied}");
    Ok(())
}

/// A source whose disk was set back has the same names, and another history.
#[tokio::test]
async fn an_import_begins_again_where_the_source_was_set_back() -> Result<()> {
    let (tools, folder) = (Tools::find()?, tempfile::tempdir()?);
    let mut etcd = Server::start(&tools.etcd(), &folder.path().join("etcd"), &[]).await?;
    writer::fill(&etcd, 300).await?;
    etcd.kill()?;
    copy(etcd.data_dir(), &folder.path().join("old"))?;
    etcd.restart().await?;
    load::put(&etcd, "/o/000001", "forgotten").await?;
    let data_dir = folder.path().join("eddy");
    let mut import = Mover::import(&etcd.url(), &data_dir, &[])?;
    import.says("equal at revision").await?;
    import.kill()?;
    etcd.kill()?;
    std::fs::remove_dir_all(etcd.data_dir())?;
    copy(&folder.path().join("old"), etcd.data_dir())?;
    etcd.restart().await?;
    load::put(&etcd, "/o/000002", "another").await?;
    load::put(&etcd, "/o/000003", "another").await?;
    let mut import = Mover::import(&etcd.url(), &data_dir, &[])?;
    import.says("is of no use").await?;
    import.says("equal at revision").await?;
    import.stop().await?;
    let moved = Server::start(&eddy(), &data_dir, &[]).await?;
    equal(&etcd, &moved, 2).await
}

/// A source that is away is waited for, and another cluster is never taken for it.
#[tokio::test]
async fn an_import_goes_on_only_with_its_source() -> Result<()> {
    let (tools, folder) = (Tools::find()?, tempfile::tempdir()?);
    let mut etcd = Server::start(&tools.etcd(), &folder.path().join("etcd"), &[]).await?;
    writer::fill(&etcd, 300).await?;
    let data_dir = folder.path().join("eddy");
    let mut import = Mover::import(&etcd.url(), &data_dir, &[])?;
    import.says("equal at revision").await?;
    // It waits for a source that is away.
    etcd.kill()?;
    import.says("waits for the source").await?;
    etcd.restart().await?;
    load::put(&etcd, "later still", "x").await?;
    let at = load::revision(&etcd).await?;
    ensure!(import.stop().await?.contains(&format!("equal at revision {at}")));
    let other = Server::start(&tools.etcd(), &folder.path().join("other"), &[]).await?;
    let unfinished = folder.path().join("unfinished");
    let mut import = Mover::import(&etcd.url(), &unfinished, &[])?;
    import.says("equal at revision").await?;
    import.kill()?;
    let refused = Mover::import(&other.url(), &unfinished, &[])?.fails().await?;
    ensure!(refused.contains("from another cluster"), "{refused}");
    Ok(())
}

#[tokio::test]
async fn users_are_asked_for_and_taken_and_dropped_only_when_told() -> Result<()> {
    let (tools, folder) = (Tools::find()?, tempfile::tempdir()?);
    let etcd = Server::start(&tools.etcd(), &folder.path().join("etcd"), &[]).await?;
    writer::fill(&etcd, 300).await?;
    tools.control(&etcd, &["user", "add", "root:secret"])?;
    tools.control(&etcd, &["user", "grant-role", "root", "root"])?;
    tools.control(&etcd, &["auth", "enable"])?;
    let data_dir = |name: &str| folder.path().join(name);
    let refused = Mover::import(&etcd.url(), &data_dir("a"), &[])?.fails().await?;
    ensure!(refused.contains("user name is empty"), "{refused}");
    let refused = Mover::import(&etcd.url(), &data_dir("b"), &["--user", "root:wrong"])?.fails().await?;
    ensure!(refused.contains("authentication failed"), "{refused}");
    let mut import = Mover::import(&etcd.url(), &data_dir("c"), &["--user", "root:secret"])?;
    import.says("equal at revision").await?;
    tools.control(&etcd, &["--user", "root:secret", "put", "/later", "x"])?;
    import.stop().await?;
    let moved = Server::start(&eddy(), &data_dir("c"), &[]).await?;
    ensure!(load::get(&moved, "/later").await.is_err(), "nobody may read");
    ensure!(tools.control(&moved, &["--user", "root:secret", "get", "/later"])?.contains('x'), "root may");
    let mut import = Mover::import(&etcd.url(), &data_dir("d"), &["--user", "root:secret", "--without-users"])?;
    import.says("equal at revision").await?;
    tools.control(&etcd, &["--user", "root:secret", "put", "/more", "x"])?;
    import.stop().await?;
    let moved = Server::start(&eddy(), &data_dir("d"), &[]).await?;
    let kv = load::get(&moved, "/more").await.context("what came later")?;
    ensure!(kv.value == "x" && load::revision(&moved).await? == kv.mod_revision);
    Ok(())
}
