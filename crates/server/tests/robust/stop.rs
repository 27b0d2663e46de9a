//! SIGTERM under load.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use eddy_proto::etcdserverpb::watch_request::RequestUnion;
use eddy_proto::etcdserverpb::{WatchCreateRequest, WatchRequest, watch_client::WatchClient};
use futures::StreamExt;
use tonic::Code;

use crate::client::{Client, serve};

const CONNECTIONS: usize = 8;
const IN_FLIGHT: usize = 250;
const WATCHES: usize = 200;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_under_load_ends_and_loses_nothing_that_was_acknowledged() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let (mut server, client) = serve(dir.path()).await?;
    let done = Arc::new(AtomicUsize::new(0));
    let stopped = Arc::new(AtomicBool::new(false));
    let mut writers = Vec::new();
    for connection in 0..CONNECTIONS {
        let client = Client::new(server.connect().await?);
        for n in 0..IN_FLIGHT {
            let (client, done, stopped) = (client.clone(), done.clone(), stopped.clone());
            writers.push(tokio::spawn(async move {
                let (key, mut acknowledged) = (format!("{connection}.{n}"), 0_u32);
                // A client whose connection ended in order between two puts connects again and goes on with the next
                // server, without ever seeing an error.
                while !stopped.load(Ordering::Relaxed) {
                    match client.put(&key, &(acknowledged + 1).to_le_bytes()).await {
                        Ok(_) => acknowledged += 1,
                        Err(status) => return (key, acknowledged, Some(status)),
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                }
                (key, acknowledged, None)
            }));
        }
    }
    let mut watches = Vec::new();
    for _ in 0..WATCHES {
        let create = WatchCreateRequest { key: "\0".into(), range_end: "\0".into(), ..Default::default() };
        let request = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
        let asks = tokio_stream::iter([request]).chain(futures::stream::pending());
        let mut stream = WatchClient::new(client.channel.clone()).watch(asks).await?.into_inner();
        watches.push(tokio::spawn(async move { while let Ok(Some(_)) = stream.message().await {} }));
    }
    while done.load(Ordering::Relaxed) < CONNECTIONS * IN_FLIGHT * 2 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }

    server.signal("TERM")?;
    let began = Instant::now();
    let status = server.ended(Duration::from_secs(60)).await?;
    ensure!(status.success(), "{status}: {}", server.log_tail());
    println!("{} acknowledged, stopped in {:?}", done.load(Ordering::Relaxed), began.elapsed());
    for watch in watches {
        tokio::time::timeout(Duration::from_secs(60), watch).await??;
    }

    stopped.store(true, Ordering::Relaxed);
    server.restart().await?;
    let client = Client::new(server.connect().await?);
    for writer in writers {
        let (key, acknowledged, status) = tokio::time::timeout(Duration::from_secs(60), writer).await??;
        // Where the connection went in order before it told, tonic itself says so, in several ways: then there is a source.
        let in_order =
            |status: &tonic::Status| status.code() == Code::Unavailable || std::error::Error::source(status).is_some();
        ensure!(status.as_ref().is_none_or(in_order), "{key} ended with {status:?}");
        let found = client.get(&key).await?.map(|value| u32::from_le_bytes(value.try_into().unwrap_or_default()));
        let found = found.unwrap_or(0);
        ensure!(found >= acknowledged, "{key}: {acknowledged} acknowledged, {found} there");
        ensure!(found <= acknowledged + 1, "{key}: {acknowledged} acknowledged, {found} there: written twice");
    }
    Ok(())
}

#[tokio::test]
async fn a_second_signal_ends_it_at_once() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let (mut server, client) = serve(dir.path()).await?;
    client.put("a", b"1").await?;
    // A request that does not end: its body never does.
    let _hang = crate::raw::open_request(server.address()).await?;
    server.signal("TERM")?;
    let deadline = Instant::now() + Duration::from_secs(10);
    while !server.log_tail().contains("received signal") {
        ensure!(Instant::now() < deadline, "no word of the first signal");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    server.signal("TERM")?;
    // Without it the request would be waited for: far less than the time that one is given.
    server.ended(Duration::from_secs(60)).await?;
    ensure!(!server.log_tail().contains("did not end in time"), "{}", server.log_tail());
    server.restart().await?;
    ensure!(Client::new(server.connect().await?).get("a").await?.as_deref() == Some(&b"1"[..]));
    Ok(())
}
