//! What the node costs without gRPC: `cargo run --release -p eddy-server --example node_load [dir]`.
//!
//! Prints the latency of one client's puts, the throughput of many clients, and the time from a put to the last of
//! 1,000 watchers. The journal is sled with fsync, in a scratch directory below `dir` (default: the working one).

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use bytes::Bytes;
use eddy_crdt::{KeyRange, PutLease, PutOp, PutValue};
use eddy_server::metrics::Metrics;
use eddy_server::node::hub::Filters;
use eddy_server::node::watch::WatchSpec;
use eddy_server::node::{Handle, Options, identity, start};
use eddy_server::storage::SledJournal;

fn put(n: usize) -> PutOp {
    PutOp {
        key: Bytes::from(format!("key-{n:08}")),
        value: PutValue::Set(Bytes::from(vec![b'v'; 256])),
        lease: PutLease::Set(None),
        prev_kv: false,
    }
}

fn percentiles(mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    format!("p50 {:?}, p99 {:?}, max {:?}", at(0.5), at(0.99), at(1.0))
}

async fn one_client(node: &Handle) -> anyhow::Result<()> {
    let mut times = Vec::new();
    for n in 0..5000 {
        let since = Instant::now();
        node.put(put(n)).await?;
        times.push(since.elapsed());
    }
    let total: Duration = times.iter().sum();
    println!("1 client: {:.0} puts/s, {}", 5000.0 / total.as_secs_f64(), percentiles(times));
    Ok(())
}

async fn many_clients(node: &Handle, clients: usize) -> anyhow::Result<()> {
    let each = 300_000 / clients;
    let since = Instant::now();
    let tasks: Vec<_> = (0..clients)
        .map(|client| {
            let node = node.clone();
            tokio::spawn(async move {
                let mut times = Vec::with_capacity(each);
                for n in 0..each {
                    let since = Instant::now();
                    node.put(put(client * each + n)).await?;
                    times.push(since.elapsed());
                }
                anyhow::Ok(times)
            })
        })
        .collect();
    let mut times = Vec::new();
    for task in tasks {
        times.extend(task.await??);
    }
    let rate = times.len() as f64 / since.elapsed().as_secs_f64();
    println!("{clients} clients: {rate:.0} puts/s, {}", percentiles(times));
    Ok(())
}

async fn fan_out(node: &Handle) -> anyhow::Result<()> {
    let (sender, mut told) = tokio::sync::mpsc::unbounded_channel();
    let watchers: Vec<_> = (0..1000)
        .map(|_| {
            let (node, sender) = (node.clone(), sender.clone());
            tokio::spawn(async move {
                let mut stream = node.watch_stream();
                let range = KeyRange::From(Bytes::from_static(b"\0"));
                let spec =
                    WatchSpec { id: None, range, start: None, filters: Filters::default(), progress_notify: false };
                if stream.create(spec).is_err() || sender.send(()).is_err() {
                    return;
                }
                while stream.next().await.is_some() {
                    if sender.send(()).is_err() {
                        return;
                    }
                }
            })
        })
        .collect();
    for _ in &watchers {
        told.recv().await.context("a watcher ended")?;
    }
    let (mut answered, mut all) = (Vec::new(), Vec::new());
    for n in 0..1000 {
        let since = Instant::now();
        node.put(put(n)).await?;
        answered.push(since.elapsed());
        for _ in &watchers {
            told.recv().await.context("a watcher ended")?;
        }
        all.push(since.elapsed());
    }
    println!("1000 watchers: put {}", percentiles(answered));
    println!("1000 watchers: last one told {}", percentiles(all));
    node.close_watches();
    for watcher in watchers {
        watcher.await?;
    }
    Ok(())
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let parent = std::env::args().nth(1).unwrap_or_else(|| ".".to_owned());
    let dir = tempfile::tempdir_in(parent)?;
    let journal = SledJournal::open(dir.path(), Default::default())?;
    let identity = identity::derive("default", "default=http://localhost:2380", "etcd-cluster")?.identity;
    let node = start(Box::new(journal), Options::new(identity, dir.path().to_owned(), Arc::new(Metrics::new(false)?)))?;
    one_client(&node).await?;
    for clients in [10, 100, 1000] {
        many_clients(&node, clients).await?;
    }
    fan_out(&node).await?;
    tokio::task::spawn_blocking(move || node.shutdown()).await?;
    Ok(())
}
