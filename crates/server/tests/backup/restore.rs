//! `eddy restore`: from what etcd wrote, and from what eddy wrote.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::support::Server;
use super::tools::Tools;
use super::{eddy, load};

/// `eddy restore`; what it said.
pub(super) fn restore(file: &Path, data_dir: &Path, more: &[&str]) -> Result<String> {
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
