//! What a replica holds in memory.

use anyhow::{Result, ensure};
use bytes::Bytes;
use eddy_proto::etcdserverpb::{PutRequest, RangeRequest};

use crate::cluster::{Cluster, Setup};

/// Bytes of a value, and how often the key is written over.
const VALUE: usize = 256 << 10;
const WRITES: usize = 600;
/// Far less than all values take, and more than a replica without any.
const MAX: u64 = 100 << 20;

/// What was written over is history until a compaction. A replica that serves it from the disk must not need memory for all of
/// it to start: that device would run, and not start again. Some of it may be in the log, which a member that is behind needs.
#[tokio::test]
async fn a_start_takes_no_memory_for_what_was_written_over() -> Result<()> {
    let mut cluster = Cluster::with(2, Setup::default()).await?;
    let mut kv = cluster.replicas[0].kv().await?;
    let value = |n: usize| Bytes::from(vec![n as u8; VALUE]);
    let mut revisions = vec![];
    for n in 0..WRITES {
        let put = PutRequest { key: "key".into(), value: value(n), ..PutRequest::default() };
        let answer = kv.put(put).await?.into_inner();
        revisions.push(answer.header.unwrap_or_default().revision);
    }
    cluster.settled().await?;
    let served = cluster.replicas[0].server.resident_at_most()?;
    cluster.replicas[0].server.kill()?;
    cluster.replicas[0].server.restart().await?;
    let most = cluster.replicas[0].server.resident_at_most()?;
    println!("{} MB at most before, {} MB after the start", served >> 20, most >> 20);
    ensure!(most < MAX, "{} MB for {} MB of values that were written over", most >> 20, (WRITES * VALUE) >> 20);
    let mut kv = cluster.replicas[0].kv().await?;
    for (n, revision) in revisions.into_iter().enumerate().step_by(WRITES / 10) {
        let range = RangeRequest { key: "key".into(), revision, ..RangeRequest::default() };
        let kvs = kv.range(range).await?.into_inner().kvs;
        ensure!(kvs.len() == 1 && kvs[0].value == value(n), "version {n} is another one");
    }
    Ok(())
}
