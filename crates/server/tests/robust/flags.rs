//! Flags of etcd's that must do what they say, or say that they do not.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::client::Client;
use crate::eddy;
use crate::raw::{ACK, END_HEADERS, GOAWAY, HEADERS, PING, frame, grpc_headers, http2};
use crate::support::{Server, free_ports};

/// Between two pings.
const PAUSE: Duration = Duration::from_millis(20);

async fn started(dir: &tempfile::TempDir, flags: &[&str]) -> Result<(Server, Client)> {
    let server = Server::start(&eddy(), &dir.path().join("data"), flags).await?;
    let client = Client::new(server.connect().await?);
    Ok((server, client))
}

/// Kind, flags and payload of the next frame.
async fn next_frame(stream: &mut TcpStream) -> Result<(u8, u8, Vec<u8>)> {
    let mut head = [0; 9];
    stream.read_exact(&mut head).await?;
    let [a, b, c, kind, flags, ..] = head;
    let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
    stream.read_exact(&mut payload).await?;
    Ok((kind, flags, payload))
}

/// Pings up to ten times; tells the goodbye, if there was one: the error code and the reason.
async fn ping(server: &Server, with_call: bool) -> Result<Option<(u32, String)>> {
    let mut stream = http2(server.address()).await?;
    if with_call {
        stream.write_all(&frame(HEADERS, END_HEADERS, 1, &grpc_headers("/etcdserverpb.Watch/Watch"))).await?;
    }
    for _ in 0..10 {
        stream.write_all(&frame(PING, 0, 0, &[7; 8])).await?;
        loop {
            match next_frame(&mut stream).await? {
                (PING, ACK, _) => break,
                (GOAWAY, _, payload) => {
                    let code = payload.get(4..8).context("a code")?.try_into()?;
                    let reason = String::from_utf8_lossy(&payload[8..]).into_owned();
                    let end = stream.read(&mut [0; 64]).await;
                    ensure!(matches!(end, Ok(0) | Err(_)), "something comes after the goodbye");
                    return Ok(Some((u32::from_be_bytes(code), reason)));
                }
                _ => {}
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
    Ok(None)
}

/// As in `eddy --help | head -1`, where the reader has gone before all is written.
#[test]
fn a_closed_pipe_is_no_panic() -> Result<()> {
    for args in [&["--help"][..], &["status", "--endpoints", "http://127.0.0.1:1"]] {
        let (reader, writer) = std::io::pipe()?;
        drop(reader);
        let output = std::process::Command::new(eddy()).args(args).stdout(writer).output()?;
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.code().is_some() && !told.contains("panicked"), "{args:?}: {}: {told}", output.status);
    }
    Ok(())
}

#[tokio::test]
async fn a_client_that_pings_too_often_is_told_so_and_closed() -> Result<()> {
    let too_many = Some((0xb, "too_many_pings".to_owned()));
    let dir = tempfile::tempdir()?;
    let (server, client) = started(&dir, &[]).await?;
    assert_eq!(ping(&server, true).await?, too_many, "every 5 s is the default");
    client.put("a", b"others are served as before").await?;

    let dir = tempfile::tempdir()?;
    let (server, _) = started(&dir, &["--grpc-keepalive-min-time=1ms"]).await?;
    assert_eq!(ping(&server, true).await?, None);
    assert_eq!(ping(&server, false).await?, too_many, "without a call there is nothing to keep alive");
    Ok(())
}

#[tokio::test]
async fn a_silent_client_is_pinged_and_then_closed() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let (server, _) = started(&dir, &["--grpc-keepalive-interval=1s", "--grpc-keepalive-timeout=1s"]).await?;
    let mut stream = http2(server.address()).await?;
    stream.write_all(&frame(HEADERS, END_HEADERS, 1, &grpc_headers("/etcdserverpb.Watch/Watch"))).await?;
    let began = Instant::now();
    let mut pings = 0;
    let closed = async {
        while let Ok((kind, flags, _)) = next_frame(&mut stream).await {
            pings += usize::from(kind == PING && flags != ACK);
        }
    };
    tokio::time::timeout(Duration::from_secs(30), closed).await.context("the server does not close")?;
    ensure!(pings == 1 && began.elapsed() >= Duration::from_millis(1900), "{pings} pings in {:?}", began.elapsed());
    Ok(())
}

#[tokio::test]
async fn slow_requests_are_logged_from_the_given_duration_on() -> Result<()> {
    const APPLIED: &str = "apply request took too long";
    const SERVED: &str = "request stats";
    let dir = tempfile::tempdir()?;
    let flags = ["--warning-apply-duration=1h", "--warning-unary-request-duration=1h"];
    let (server, client) = started(&dir, &flags).await?;
    client.put("key", b"value").await?;
    ensure!(!server.log().contains(APPLIED) && !server.log().contains(SERVED), "{}", server.log());

    let dir = tempfile::tempdir()?;
    let flags = ["--warning-apply-duration=1ns", "--warning-unary-request-duration=1ns"];
    let (server, client) = started(&dir, &flags).await?;
    client.put("key", b"secret").await?;
    client.get("key").await?;
    let log = server.log();
    let lines = |text: &str, part: &str| log.lines().any(|line| line.contains(text) && line.contains(part));
    ensure!(lines(APPLIED, "put") && lines(APPLIED, "read-only range "), "{log}");
    ensure!(lines(SERVED, "/etcdserverpb.KV/Put") && lines(SERVED, "/etcdserverpb.KV/Range"), "{log}");
    ensure!(!log.contains("secret"), "values are in the log");
    let metrics = server.get("/metrics").await?;
    let counted = metrics.lines().find_map(|line| line.strip_prefix("etcd_server_slow_apply_total "));
    ensure!(counted.is_some_and(|count| count != "0"), "{counted:?}");
    Ok(())
}

#[tokio::test]
async fn a_compaction_drops_a_batch_and_pauses() -> Result<()> {
    const REVISIONS: i64 = 200;
    let dir = tempfile::tempdir()?;
    let flags = ["--compaction-batch-limit=10", "--compaction-sleep-interval=50ms", "--unsafe-no-fsync"];
    let (server, client) = started(&dir, &flags).await?;
    let mut revision = 0;
    for n in 0..REVISIONS {
        revision = client.put("key", n.to_string().as_bytes()).await?;
    }
    let began = Instant::now();
    client.compact(revision).await?;
    let took = began.elapsed();
    ensure!(took >= Duration::from_millis(50) * 18, "200 revisions, 10 at a time with 50 ms between, took {took:?}");
    drop(server);
    Ok(())
}

#[tokio::test]
async fn a_flag_that_does_nothing_is_named_with_the_reason() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let (server, _) = started(&dir, &["--strict-reconfig-check=false", "--force-new-cluster=false"]).await?;
    let log = server.log();
    let line = log.lines().find(|line| line.contains("strict-reconfig-check")).context("no line")?;
    ensure!(line.contains("\"level\":\"warn\"") && line.contains("has no effect: eddy has no quorum"), "{line}");
    ensure!(!log.contains("force-new-cluster"), "{log}");
    Ok(())
}

#[tokio::test]
async fn what_would_be_dangerous_to_ignore_is_refused() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let data = dir.path().join("data");
    let mut server = Server::spawn_on(&eddy(), &data, free_ports()?, &["--force-new-cluster"])?;
    let ended = server.ended(Duration::from_secs(30)).await?;
    ensure!(ended.code() == Some(1), "{ended}");
    ensure!(server.log().contains("etcdctl member remove"), "{}", server.log());
    ensure!(!data.exists(), "it began to work");
    Ok(())
}
