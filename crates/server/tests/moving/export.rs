//! `eddy export`, and the way back.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::mover::Mover;
use super::support::Server;
use super::tools::Tools;
use super::writer::{self, Writer};
use super::{eddy, equal, load};

/// An etcd of a backup of what runs there.
async fn restored(tools: &Tools, from: &Server, folder: &std::path::Path) -> Result<Server> {
    let (file, data_dir) = (folder.join("out.db"), folder.join("out"));
    tools.save(from, &file)?;
    tools.restore(&file, &data_dir)?;
    Server::start(&tools.etcd(), &data_dir, &["--max-txn-ops", "10000"]).await
}

/// From etcd to eddy, with writes at each, and from there to an etcd again.
#[tokio::test(flavor = "multi_thread")]
async fn what_went_in_comes_out_with_all_that_changed() -> Result<()> {
    let (tools, folder) = (Tools::find()?, tempfile::tempdir()?);
    let etcd = Server::start(&tools.etcd(), &folder.path().join("etcd"), &[]).await?;
    let (compacted, _) = load::history(&etcd).await?;
    writer::fill(&etcd, 5_000).await?;
    let data_dir = folder.path().join("eddy");
    let mut import = Mover::import(&etcd.url(), &data_dir, &[])?;
    import.says("equal at revision").await?;
    import.stop().await?;
    let eddy = Server::start(&eddy(), &data_dir, &[]).await?;
    let writer = Writer::start_at(&eddy, Duration::from_millis(5)).await?;
    let mut out = restored(&tools, &eddy, folder.path()).await?;
    let log = folder.path().join("export.log");
    let mut export = Mover::export(&eddy.url(), &out.url(), &log)?;
    export.says("equal at revision").await?;
    export.kill()?;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let mut export = Mover::export(&eddy.url(), &out.url(), &log)?;
    export.says("equal at revision").await?;
    out.kill()?;
    export.says("waits for both sides").await?;
    out.restart().await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let writes = writer.stop().await?;
    let said = export.stop().await?;
    ensure!(said.contains(&format!("at revision {}:", load::revision(&eddy).await?)), "{said}");
    ensure!(!said.contains("count their writes otherwise"), "{said}");
    ensure!(writes > 200, "only {writes} writes went on");
    equal(&eddy, &out, compacted).await
}

/// A target that somebody else writes to, one that is no copy, and one whose next revision eddy has forgotten.
#[tokio::test]
async fn an_export_stops_where_the_target_is_no_copy() -> Result<()> {
    let (tools, folder) = (Tools::find()?, tempfile::tempdir()?);
    let eddy = Server::start(&eddy(), &folder.path().join("eddy"), &[]).await?;
    writer::fill(&eddy, 300).await?;
    let out = restored(&tools, &eddy, folder.path()).await?;
    let mut export = Mover::export(&eddy.url(), &out.url(), &folder.path().join("a.log"))?;
    export.says("equal at revision").await?;
    load::put(&out, "somebody", "else").await?;
    load::put(&eddy, "next", "x").await?;
    let said = export.fails().await?;
    ensure!(said.contains("somebody else writes"), "{said}");
    let said = Mover::export(&eddy.url(), &out.url(), &folder.path().join("b.log"))?.fails().await?;
    ensure!(said.contains("somebody else writes") || said.contains("two sides differ"), "{said}");
    let (_, revision) = load::history(&eddy).await?;
    let empty = Server::start(&tools.etcd(), &folder.path().join("empty"), &[]).await?;
    let said = Mover::export(&eddy.url(), &empty.url(), &folder.path().join("c.log"))?.fails().await?;
    ensure!(said.contains("make the target of a new backup"), "at {revision}: {said}");
    let said = Mover::export(&eddy.url(), &eddy.url(), &folder.path().join("d.log"))?.fails().await?;
    ensure!(said.contains("are one cluster"), "{said}");
    Ok(())
}

/// An eddy that never forgot anything needs no backup.
#[tokio::test]
async fn an_empty_etcd_takes_a_whole_history() -> Result<()> {
    let (tools, folder) = (Tools::find()?, tempfile::tempdir()?);
    let eddy = Server::start(&eddy(), &folder.path().join("eddy"), &[]).await?;
    writer::fill(&eddy, 1_000).await?;
    let empty = Server::start(&tools.etcd(), &folder.path().join("empty"), &[]).await?;
    let mut export = Mover::export(&eddy.url(), &empty.url(), &folder.path().join("a.log"))?;
    export.says("equal at revision").await?;
    export.stop().await?;
    equal(&eddy, &empty, 2).await
}
