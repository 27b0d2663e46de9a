//! A full disk under the real binary.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use tonic::{Code, Status};

use crate::client::{Client, serve};
use crate::support::Server;

const PATIENCE: Duration = Duration::from_secs(30);
const VALUE: usize = 32 << 10;

/// Puts until one is refused; the keys that were acknowledged, and the refusal.
async fn fill(client: &Client, prefix: &str) -> Result<(Vec<String>, Status)> {
    let mut acknowledged = Vec::new();
    for n in 0..10_000 {
        let key = format!("{prefix}{n}");
        match client.put(&key, &vec![b'x'; VALUE]).await {
            Ok(_) => acknowledged.push(key),
            Err(status) => return Ok((acknowledged, status)),
        }
    }
    anyhow::bail!("the disk took everything")
}

/// Checks that writes are refused in etcd's words, that reads go on, and that the endpoints say so.
async fn check_full(server: &Server, client: &Client, acknowledged: &[String]) -> Result<()> {
    let refused = client.put("refused", &[b'x'; VALUE]).await.expect_err("no write is taken");
    ensure!(
        (refused.code(), refused.message()) == (Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded"),
        "{refused:?}"
    );
    let health = server.get("/health").await?;
    ensure!(health.starts_with("HTTP/1.1 503") && health.contains("no space left"), "{health}");
    ensure!(server.get("/metrics").await?.contains("\neddy_writable 0\n"));
    ensure!(server.get("/livez").await?.starts_with("HTTP/1.1 200"), "a restart would not help");
    check_there(client, acknowledged).await
}

async fn check_there(client: &Client, acknowledged: &[String]) -> Result<()> {
    for key in acknowledged {
        let value = client.get(key).await?.with_context(|| format!("{key} was acknowledged and is gone"))?;
        ensure!(value.len() == VALUE, "{key}");
    }
    ensure!(client.get("refused").await?.is_none(), "what was refused for good must never appear");
    Ok(())
}

/// Waits until writes are taken again.
async fn until_writable(client: &Client) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while let Err(status) = client.put("again", &[b'x'; VALUE]).await {
        ensure!(Instant::now() < deadline, "still refused: {status:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

fn limit_files(server: &Server, bytes: Option<u64>) -> Result<()> {
    let pid = i32::try_from(server.pid()).ok().and_then(Pid::from_raw);
    prlimit(pid, Resource::Fsize, Rlimit { current: bytes, maximum: None })?;
    Ok(())
}

#[tokio::test]
async fn a_file_that_cannot_grow_refuses_writes_and_takes_them_again_when_it_can() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let (mut server, client) = serve(dir.path()).await?;
    limit_files(&server, Some(8 << 20))?;
    let (mut acknowledged, first) = fill(&client, "a").await?;
    ensure!(acknowledged.len() > 20, "{first:?} came too early: {}", acknowledged.len());
    ensure!(first.message() == "etcdserver: request timed out", "its outcome is unknown: {first:?}");
    check_full(&server, &client, &acknowledged).await?;

    limit_files(&server, None)?;
    until_writable(&client).await?;
    ensure!(server.get("/health").await?.starts_with("HTTP/1.1 200"));
    ensure!(server.get("/metrics").await?.contains("\neddy_writable 1\n"));
    check_there(&client, &acknowledged).await?;

    limit_files(&server, Some(16 << 20))?;
    let (more, _) = fill(&client, "b").await?;
    acknowledged.extend(more);
    check_full(&server, &client, &acknowledged).await?;
    server.kill()?;
    server.restart().await?;
    let client = Client::new(server.connect().await?);
    check_there(&client, &acknowledged).await?;
    until_writable(&client).await
}

/// A file system in memory of a few megabytes. Only root can have one.
struct Small(PathBuf);

impl Small {
    fn mount(at: &Path, bytes: u64) -> Option<Small> {
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={bytes}"), "tmpfs"])
            .arg(at)
            .output()
            .is_ok_and(|output| output.status.success());
        mounted.then(|| Small(at.to_owned()))
    }

    /// Takes all of the space but so much.
    fn leave(&self, bytes: u64) -> Result<()> {
        let mut ballast = File::create(self.0.join("ballast"))?;
        let chunk = vec![1; 64 << 10];
        while fs4::available_space(&self.0)? > bytes + chunk.len() as u64 {
            ballast.write_all(&chunk)?;
        }
        Ok(())
    }

    /// Waits until so much space is free: what was compacted goes with the next checkpoint.
    async fn until_free(&self, bytes: u64) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while fs4::available_space(&self.0)? < bytes {
            ensure!(Instant::now() < deadline, "only {} bytes are free", fs4::available_space(&self.0)?);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    fn free(&self) -> Result<()> {
        Ok(std::fs::remove_file(self.0.join("ballast"))?)
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg("-l").arg(&self.0).status();
        assert!(unmounted.is_ok_and(|status| status.success()), "umount {}", self.0.display());
    }
}

#[tokio::test]
async fn a_full_file_system_still_takes_deletes_and_compactions() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let Some(small) = Small::mount(dir.path(), 40 << 20) else {
        println!("not root: cannot mount a small file system; the test of a file that cannot grow has run");
        return Ok(());
    };
    let (mut server, client) = serve(dir.path()).await?;
    let (acknowledged, refused) = fill(&client, "a").await?;
    ensure!(acknowledged.len() > 100, "{refused:?}");
    check_full(&server, &client, &acknowledged).await?;

    // Space that others free.
    small.leave(1 << 20)?;
    check_full(&server, &client, &acknowledged).await?;
    server.kill()?;
    server.restart().await.context("restart on a full disk")?;
    let client = Client::new(server.connect().await?);
    check_there(&client, &acknowledged).await?;
    small.free()?;

    // Space that its own clients free.
    client.delete_all().await?;
    client.compact(client.revision().await?).await?;
    until_writable(&client).await?;
    small.until_free(20 << 20).await?;
    let (again, _) = fill(&client, "b").await?;
    ensure!(again.len() > 100, "only {} fit after a compaction", again.len());
    check_full(&server, &client, &again).await?;
    drop(server);
    Ok(())
}
