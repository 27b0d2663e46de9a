//! What objects cost in memory and on disk, how long a start takes, and what an idle process does.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use eddy_proto::etcdserverpb::{DefragmentRequest, RangeRequest, maintenance_client::MaintenanceClient};
use futures::StreamExt;

use crate::client::{Client, serve};
use crate::scale;
use crate::support::Server;

const VALUE: usize = 2048;
const MB: u64 = 1 << 20;

fn on_disk(dir: &Path) -> Result<u64> {
    use std::os::unix::fs::MetadataExt;
    let mut bytes = 0;
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        bytes += if entry.file_type()?.is_dir() { on_disk(&entry.path())? } else { entry.metadata()?.blocks() * 512 };
    }
    Ok(bytes)
}

async fn count(client: &Client) -> Result<i64> {
    let all = RangeRequest { key: "\0".into(), range_end: "\0".into(), count_only: true, ..Default::default() };
    Ok(client.range(all).await?.count)
}

async fn restarted(server: &mut Server, what: &str, objects: usize) -> Result<Client> {
    let began = Instant::now();
    server.restart().await?;
    println!("{what}: ready after {:?}, {} MB resident", began.elapsed(), server.resident()? / MB);
    let client = Client::new(server.connect().await?);
    ensure!(count(&client).await? == objects as i64, "{what}");
    Ok(client)
}

/// `EDDY_ROBUST_SCALE=20`: 100,000 objects.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_cost_what_they_should_and_their_space_comes_back() -> Result<()> {
    let objects = 5000 * scale();
    let dir = tempfile::tempdir()?;
    let (mut server, client) = serve(dir.path()).await?;
    let data = dir.path().join("data");
    let empty = server.resident()?;
    let began = Instant::now();
    let puts = futures::stream::iter((0..objects).map(|n| {
        let client = client.clone();
        // No two values are alike, as in real life.
        let mut value = vec![0; VALUE];
        value
            .iter_mut()
            .zip((n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes().into_iter().cycle())
            .for_each(|(to, from)| *to = from);
        async move { client.put(&format!("/registry/pods/namespace-{}/pod-{n:08}", n % 50), &value).await }
    }));
    let results: Vec<_> = puts.buffer_unordered(200).collect().await;
    results.into_iter().collect::<Result<Vec<_>, _>>()?;
    let bytes = (objects * (VALUE + 40)) as u64;
    println!(
        "{objects} objects in {:?}: {} MB resident, {} MB on disk",
        began.elapsed(),
        server.resident()? / MB,
        on_disk(&data)? / MB
    );
    let bar = bytes * 3 / 2 + 100 * MB;
    ensure!(server.resident()? <= bar, "{} resident after writing, {empty} when empty", server.resident()?);

    server.kill()?;
    let _client = restarted(&mut server, "after kill -9", objects).await?;
    ensure!(server.resident()? <= bar, "{} resident after a restart", server.resident()?);
    server.signal("TERM")?;
    ensure!(server.ended(Duration::from_secs(20)).await?.success());
    let client = restarted(&mut server, "after a stop", objects).await?;

    let mut maintenance = MaintenanceClient::new(client.channel.clone());
    let before = from_io(&server, "wchar:")?;
    maintenance.defragment(DefragmentRequest {}).await?;
    let wrote = from_io(&server, "wchar:")? - before;
    println!("a checkpoint of {bytes} bytes: {wrote} written");
    ensure!(wrote < bytes * 2, "{wrote} bytes were written for a checkpoint of {bytes}");

    client.delete_all().await?;
    // As in etcd, a compaction keeps the tombstones of its own revision.
    client.put("after", b"x").await?;
    client.compact(client.revision().await?).await?;
    println!("deleted and compacted: {} MB on disk", on_disk(&data)? / MB);
    maintenance.defragment(DefragmentRequest {}).await?;
    let (left, resident) = (on_disk(&data)?, server.resident()?);
    println!("defragmented: {} MB on disk, {} MB resident", left / MB, resident / MB);
    ensure!(left < 16 * MB, "{left} bytes stay on disk");
    ensure!(count(&client).await? == 1);
    let metrics = server.get("/metrics").await?;
    let gauge = |name: &str| -> Result<f64> {
        let value = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        Ok(value.with_context(|| name.to_owned())?.parse()?)
    };
    let (total, live) = (gauge("etcd_mvcc_db_total_size_in_bytes")?, gauge("etcd_mvcc_db_total_size_in_use_in_bytes")?);
    ensure!((total - left as f64).abs() < 1e6, "{total} bytes are told, {left} are on disk");
    ensure!(live < 1e6, "{live} bytes live of two keys");
    Ok(())
}

/// Voluntary context switches of all threads.
fn wake_ups(server: &Server) -> Result<u64> {
    let mut sum = 0;
    for task in std::fs::read_dir(format!("/proc/{}/task", server.pid()))? {
        let status = std::fs::read_to_string(task?.path().join("status"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        sum += line.context("no count")?.trim().parse::<u64>()?;
    }
    Ok(sum)
}

/// What the kernel counts of the process: `wchar:` is what it wrote to files, `write_bytes:` what went on to a disk.
fn from_io(server: &Server, name: &str) -> Result<u64> {
    let io = std::fs::read_to_string(format!("/proc/{}/io", server.pid()))?;
    let line = io.lines().find_map(|line| line.strip_prefix(name));
    Ok(line.context("no count")?.trim().parse()?)
}

#[tokio::test]
async fn an_idle_process_writes_nothing_and_hardly_wakes() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let (server, client) = serve(dir.path()).await?;
    client.put("a", b"1").await?;
    client.grant(3600).await?;
    drop(client);
    // What follows a write and a closed connection.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let (wakes, bytes, resident) = (wake_ups(&server)?, from_io(&server, "write_bytes:")?, server.resident()?);
    let seconds = 5 * scale().min(120) as u64;
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    let (wakes, bytes) = (wake_ups(&server)? - wakes, from_io(&server, "write_bytes:")? - bytes);
    println!("in {seconds} s: {wakes} wake-ups, {bytes} bytes written; {} KB resident", resident >> 10);
    ensure!(bytes == 0, "{bytes} bytes written while idle");
    ensure!(wakes <= 10 * seconds, "{wakes} wake-ups in {seconds} s");
    // A debug build is larger; EDDY_BIN is taken for a release build.
    let bar = if std::env::var_os("EDDY_BIN").is_some() { 15 } else { 48 };
    ensure!(resident <= bar * MB, "{resident} resident");
    Ok(())
}
