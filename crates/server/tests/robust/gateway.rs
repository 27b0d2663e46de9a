//! The JSON gateway under what clients should not send, and under clients that go away.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use crate::client::{Client, serve};
use crate::support::Server;

const PATIENCE: Duration = Duration::from_secs(30);

async fn send(server: &Server, path: &str, headers: &str, body: &[u8]) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(server.address()).await?;
    let length = body.len();
    let head = format!("POST {path} HTTP/1.1\r\nHost: x\r\n{headers}Content-Length: {length}\r\n\r\n");
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body).await?;
    Ok(stream)
}

/// Reads until that text has come.
async fn until(stream: &mut TcpStream, text: &str) -> Result<String> {
    let mut read = Vec::new();
    let waited = timeout(PATIENCE, async {
        while !String::from_utf8_lossy(&read).contains(text) {
            ensure!(stream.read_buf(&mut read).await? > 0, "closed after {}", String::from_utf8_lossy(&read));
        }
        Ok(())
    });
    waited.await.with_context(|| format!("no {text}"))??;
    Ok(String::from_utf8_lossy(&read).into_owned())
}

/// The whole answer: status and body.
async fn post(server: &Server, path: &str, body: &[u8]) -> Result<(u16, String)> {
    let mut stream = send(server, path, "Connection: close\r\n", body).await?;
    let mut answer = Vec::new();
    timeout(PATIENCE, stream.read_to_end(&mut answer)).await??;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let (head, body) = answer.split_once("\r\n\r\n").context("no head")?;
    Ok((head.split(' ').nth(1).context("no status")?.parse()?, body.to_owned()))
}

/// `value` as base64: `Q` is a part of a byte that is always the same.
fn put(bytes: usize) -> Vec<u8> {
    format!("{{\"key\":\"a2V5\",\"value\":\"{}\"}}", "QUFB".repeat(bytes / 3)).into_bytes()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_should_not_be_sent_is_refused_and_costs_little() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let (server, client) = serve(dir.path()).await?;
    let before = server.resident()?;
    let open = |text: &str, count: usize| [b"{\"new\":", text.repeat(count).as_bytes()].concat();
    for (what, body, status, says) in [
        ("a value as large as is taken", put(1_500_000), 200, "revision"),
        ("a larger one", put(1_600_000), 400, "etcdserver: request is too large"),
        ("a larger message", put(2_400_000), 429, "grpc: received message larger than max"),
        ("a larger body", put(40_000_000), 429, "eddy: the JSON of a request is larger than 4194304 bytes"),
        ("deep lists", open("[", 3_000_000), 400, "nested deeper than 128"),
        ("deep objects", open("{\"a\":", 500_000), 400, "nested deeper than 128"),
        ("no JSON", vec![0xff; 100], 400, "not an object"),
        ("no UTF-8", b"{\"key\":\"\xff\"}".to_vec(), 400, "proto:"),
        ("a string without end", b"{\"key\":\"".to_vec(), 400, "unexpected EOF"),
    ] {
        let (code, text) = post(&server, "/v3/kv/put", &body).await.with_context(|| what.to_owned())?;
        ensure!(code == status && text.contains(says), "{what}: {code} {text}");
    }
    // As deep as gRPC takes it.
    let nested = |depth: usize| {
        let open = r#"{"success":[{"request_txn":"#;
        format!("{}{{}}{}", open.repeat(depth), "}]}".repeat(depth))
    };
    let (code, text) = post(&server, "/v3/kv/txn", nested(30).as_bytes()).await?;
    ensure!(code == 200, "{text}");
    let (code, _) = post(&server, "/v3/kv/txn", nested(60).as_bytes()).await?;
    ensure!(code == 400, "{code}");
    for (path, body, says) in [
        ("/v3/watch", "garbage", "Failed to decode request"),
        ("/v3/watch", "{\"create_request\":", "unexpected EOF"),
        ("/v3/lease/keepalive", "[7]", "Failed to decode request"),
    ] {
        let (code, text) = post(&server, path, body.as_bytes()).await?;
        ensure!(code == 400 && text.contains(says) && text.contains("{\"error\":{\"code\":3"), "{path}: {code} {text}");
    }
    let grown = server.resident()?.saturating_sub(before);
    ensure!(grown < 200 << 20, "{grown} bytes more");
    ensure!(client.get("key").await?.is_some_and(|value| value.len() == 1_500_000));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_go_on_until_one_side_ends_them() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let (mut server, client) = serve(dir.path()).await?;
    let create = br#"{"create_request":{"key":"a2V5"}}"#;
    let mut watch = send(&server, "/v3/watch", "", create).await?;
    until(&mut watch, "\"created\":true}}").await?;
    client.put("key", b"value").await?;
    until(&mut watch, "\"dmFsdWU=\"").await?;
    // The same over a body that stays open.
    let mut half = TcpStream::connect(server.address()).await?;
    let head = "POST /v3/watch HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
    let chunk = |text: &[u8]| [format!("{:x}\r\n", text.len()).as_bytes(), text, b"\r\n"].concat();
    half.write_all(&[head.as_bytes(), &chunk(&create[..9]), &chunk(&create[9..])].concat()).await?;
    until(&mut half, "\"created\":true}}").await?;
    half.write_all(&chunk(br#"{"cancel_request":{"watch_id":"0"}}"#)).await?;
    until(&mut half, "\"canceled\":true}}").await?;
    // A client that goes away takes its watcher with it.
    drop(half);
    let watchers = async |count: &str| -> Result<()> {
        while !server.get("/metrics").await?.contains(&format!("etcd_debugging_mvcc_watch_stream_total {count}\n")) {
            sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    };
    timeout(PATIENCE, watchers("1")).await.context("the watcher of who went away")??;
    let slow = send(&server, "/v3/watch", "Grpc-Timeout: 300m\r\n", create).await;
    let text = until(&mut slow?, "exceeded\"}}").await?;
    ensure!(text.contains("{\"error\":{\"code\":4,\"message\":\"context deadline exceeded\"}}"), "{text}");
    server.signal("TERM")?;
    until(&mut watch, "{\"error\":{\"code\":14,\"message\":\"etcdserver: server stopped\"}}").await?;
    ensure!(server.ended(Duration::from_secs(10)).await?.success());
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_is_not_left_to_who_went_away_and_a_waiter_does_not_hold_up_the_stop() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let (mut server, client) = serve(dir.path()).await?;
    let leases = [client.grant(60).await?, client.grant(60).await?];
    let lock = |lease: i64| format!("{{\"name\":\"bG9jaw==\",\"lease\":\"{lease}\"}}").into_bytes();
    let (code, text) = post(&server, "/v3/lock/lock", &lock(leases[0])).await?;
    ensure!(code == 200, "{text}");
    let key = format!("lock/{:x}", leases[1]);
    let waits = async |client: &Client, wanted: bool| -> Result<()> {
        while client.get(&key).await?.is_some() != wanted {
            sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    };
    let waiting = send(&server, "/v3/lock/lock", "", &lock(leases[1])).await?;
    timeout(PATIENCE, waits(&client, true)).await.context("nobody waits")??;
    drop(waiting);
    timeout(PATIENCE, waits(&client, false)).await.context("who went away still waits")??;
    let limited = send(&server, "/v3/lock/lock", "Grpc-Timeout: 200m\r\n", &lock(leases[1])).await;
    let text = until(&mut limited?, "deadline exceeded").await?;
    ensure!(text.starts_with("HTTP/1.1 504 "), "{text}");
    timeout(PATIENCE, waits(&client, false)).await.context("who gave up still waits")??;
    let mut waiting = send(&server, "/v3/lock/lock", "", &lock(leases[1])).await?;
    timeout(PATIENCE, waits(&client, true)).await.context("nobody waits")??;
    server.signal("TERM")?;
    until(&mut waiting, "{\"code\":14,\"message\":\"etcdserver: server stopped\"}").await?;
    ensure!(server.ended(Duration::from_secs(10)).await?.success());
    Ok(())
}
