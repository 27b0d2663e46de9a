//! Watches in numbers, and one whose client never reads.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use eddy_proto::etcdserverpb::watch_request::RequestUnion;
use eddy_proto::etcdserverpb::{
    WatchCancelRequest, WatchCreateRequest, WatchRequest, WatchResponse, watch_client::WatchClient,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use crate::client::{Client, serve};
use crate::scale;
use crate::support::Server;

fn everything() -> WatchRequest {
    let create = WatchCreateRequest { key: "\0".into(), range_end: "\0".into(), ..Default::default() };
    WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) }
}

async fn watch(client: &Client) -> Result<(mpsc::Sender<WatchRequest>, Streaming<WatchResponse>)> {
    let (send, requests) = mpsc::channel(64);
    send.send(everything()).await?;
    let stream = WatchClient::new(client.channel.clone()).watch(ReceiverStream::new(requests)).await?.into_inner();
    Ok((send, stream))
}

async fn gauge(server: &Server, name: &str) -> Result<i64> {
    let metrics = server.get("/metrics").await?;
    let line = metrics.lines().find_map(|line| line.strip_prefix(name)).context("no such gauge")?;
    Ok(line.trim().parse()?)
}

async fn until_no_watchers(server: &Server) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(20);
    while gauge(server, "etcd_debugging_mvcc_watcher_total ").await? != 0 {
        ensure!(Instant::now() < deadline, "watchers stay behind");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

#[tokio::test]
async fn a_watch_that_is_never_read_holds_up_nobody_and_costs_a_buffer() -> Result<()> {
    const VALUE: usize = 128 << 10;
    /// This many writes are kept as history between two compactions: 8 MB.
    const KEEP: usize = 64;
    let dir = tempfile::tempdir()?;
    let (server, client) = serve(dir.path()).await?;
    let other = Client::new(server.connect().await?);
    let unread = watch(&other).await?;
    let writes = 256 * scale();
    let (mut peak, mut slowest) = (0, Duration::ZERO);
    let before = server.resident()?;
    for n in 0..writes {
        let began = Instant::now();
        client.put(&format!("k{}", n % 8), &vec![b'x'; VALUE]).await?;
        slowest = slowest.max(began.elapsed());
        if n % KEEP == KEEP - 1 {
            peak = peak.max(server.resident()?);
            client.compact(client.revision().await?).await?;
        }
    }
    let grown = peak.saturating_sub(before);
    println!("{} MB passed, grew by {} KB, slowest put {slowest:?}", (writes * VALUE) >> 20, grown >> 10);
    ensure!(grown < 64 << 20, "grew by {grown} bytes");
    // It is told that it missed something, once it reads.
    let mut unread = unread.1;
    let told = async {
        while let Some(answer) = unread.message().await? {
            if answer.canceled {
                return Ok(answer.compact_revision);
            }
        }
        anyhow::bail!("the stream ended without a word")
    };
    ensure!(tokio::time::timeout(Duration::from_secs(20), told).await?? > 0);
    Ok(())
}

#[tokio::test]
async fn thousands_of_watchers_come_and_go() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let (server, client) = serve(dir.path()).await?;
    let (send, mut stream) = watch(&client).await?;
    stream.message().await?.context("created")?;
    let count = 2000 * scale() as i64;
    let mut settled = 0;
    for round in 0..3 {
        let requests = async {
            for id in 0..count {
                let mut request = everything();
                if let Some(RequestUnion::CreateRequest(create)) = &mut request.request_union {
                    create.watch_id = id + 10;
                }
                send.send(request).await?;
                let cancel = RequestUnion::CancelRequest(WatchCancelRequest { watch_id: id + 10 });
                send.send(WatchRequest { request_union: Some(cancel) }).await?;
            }
            Ok::<_, anyhow::Error>(())
        };
        let answers = async {
            let (mut created, mut canceled) = (0, 0);
            while canceled < count {
                let answer = stream.message().await?.context("the stream ended")?;
                created += i64::from(answer.created);
                canceled += i64::from(answer.canceled);
            }
            ensure!(created == count, "{created} of {count} created");
            Ok(())
        };
        tokio::try_join!(requests, answers)?;
        if round == 0 {
            settled = server.resident()?;
        }
    }
    let grown = server.resident()?.saturating_sub(settled);
    ensure!(grown < 8 << 20, "two more rounds cost {grown} bytes");
    drop((send, stream));
    until_no_watchers(&server).await
}

#[tokio::test]
async fn many_streams_of_one_connection_all_see_the_write() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let (server, client) = serve(dir.path()).await?;
    let before = server.resident()?;
    let count = 1000 * scale();
    let mut streams = Vec::new();
    for _ in 0..count {
        let (send, mut stream) = watch(&client).await?;
        ensure!(stream.message().await?.context("created")?.created);
        streams.push((send, stream));
    }
    let each = server.resident()?.saturating_sub(before) / count as u64;
    println!("{each} bytes per watch stream");
    client.put("a", b"1").await?;
    for (_, stream) in &mut streams {
        let answer = tokio::time::timeout(Duration::from_secs(20), stream.message()).await??.context("an event")?;
        ensure!(answer.events.len() == 1);
    }
    drop(streams);
    until_no_watchers(&server).await
}
