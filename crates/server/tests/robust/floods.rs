//! Many connections, many streams, resets and headers without end.

use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::client::serve;
use crate::raw::{
    self, CONTINUATION, END_HEADERS, END_STREAM, HEADERS, PING, RST_STREAM, SETTINGS, frame, grpc_headers,
};
use crate::support::{Server, free_ports};
use crate::{eddy, scale};

/// Reads and drops what comes until the other side closes or there is nothing for a while.
async fn drain(stream: &mut TcpStream) -> bool {
    let mut buffer = vec![0; 64 << 10];
    loop {
        match tokio::time::timeout(Duration::from_secs(5), stream.read(&mut buffer)).await {
            Ok(Ok(0) | Err(_)) => return true,
            Ok(Ok(_)) => {}
            Err(_) => return false,
        }
    }
}

#[tokio::test]
async fn idle_and_slow_connections_cost_little_and_hold_up_nobody() -> Result<()> {
    eddy_server::limits::raise_open_files();
    let dir = tempfile::tempdir()?;
    let (server, client) = serve(dir.path()).await?;
    client.put("a", b"1").await?;
    let count = 2500 * scale().min(4);
    let before = server.resident()?;
    let mut held = Vec::new();
    for n in 0..count {
        let mut stream = TcpStream::connect(server.address()).await?;
        // None, one byte of TLS, of HTTP/2, half a request, or a whole connection without a request.
        let bytes: &[u8] = match n % 10 {
            6 => b"\x16",
            7 => b"PRI * HT",
            8 => b"GET /health HTTP/1.1\r\nHost: s",
            9 => b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\0\0\x40\x01\x04\0",
            _ => b"",
        };
        stream.write_all(bytes).await?;
        held.push(stream);
    }
    let began = Instant::now();
    for _ in 0..50 {
        ensure!(client.get("a").await?.is_some());
    }
    ensure!(server.get("/health").await?.starts_with("HTTP/1.1 200"));
    println!("51 requests took {:?}", began.elapsed());
    let each = server.resident()?.saturating_sub(before) / count as u64;
    println!("{each} bytes per connection, {count} connections");
    ensure!(each < 12 << 10, "{each} bytes per idle connection");
    Ok(())
}

#[tokio::test]
async fn a_flood_of_resets_costs_its_client_the_connection() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let (server, client) = serve(dir.path()).await?;
    client.put("a", b"1").await?;
    let before = server.resident()?;
    for path in ["/etcdserverpb.KV/Range", "/etcdserverpb.Watch/Watch"] {
        for _ in 0..scale() {
            let mut stream = raw::http2(server.address()).await?;
            let headers = grpc_headers(path);
            let mut frames = Vec::new();
            for n in 0..20_000 {
                frames.extend(frame(HEADERS, END_HEADERS, n * 2 + 1, &headers));
                frames.extend(frame(RST_STREAM, 0, n * 2 + 1, &8_u32.to_be_bytes()));
            }
            let (mut read, mut write) = stream.split();
            let mut answer = Vec::new();
            // It closes in the middle or takes all; either is an end.
            let sent = async {
                let _closed = write.write_all(&frames).await;
                let _closed = write.shutdown().await;
            };
            let got = tokio::time::timeout(Duration::from_secs(20), read.read_to_end(&mut answer));
            let (_, ended) = tokio::join!(sent, got);
            ensure!(ended.is_ok(), "the connection stays open");
            ensure!(client.get("a").await?.is_some());
        }
    }
    let grown = server.resident()?.saturating_sub(before);
    println!("grew by {grown} bytes");
    ensure!(grown < 24 << 20, "grew by {grown} bytes");
    Ok(())
}

#[tokio::test]
async fn endless_headers_settings_and_pings_are_bounded() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let (server, client) = serve(dir.path()).await?;
    client.put("a", b"1").await?;
    let before = server.resident()?;
    let junk = [&[0x00, 1, b'x', 0x7f, 0x81, 0x7d][..], &[b'y'; 8 << 10]].concat();
    for kind in [CONTINUATION, SETTINGS, PING] {
        let mut stream = raw::http2(server.address()).await?;
        if kind == CONTINUATION {
            stream.write_all(&frame(HEADERS, END_STREAM, 1, &grpc_headers("/etcdserverpb.KV/Range"))).await?;
        }
        // Answers are not read, so they pile up on one side or the other.
        let send = async {
            for _ in 0..4000 * scale() {
                let next = match kind {
                    CONTINUATION => frame(CONTINUATION, 0, 1, &junk),
                    SETTINGS => frame(SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 100]),
                    _ => frame(PING, 0, 0, &[0; 8]),
                };
                if stream.write_all(&next).await.is_err() {
                    return;
                }
            }
        };
        let _blocked_is_well_too = tokio::time::timeout(Duration::from_secs(5), send).await;
        ensure!(client.get("a").await?.is_some());
        if kind == CONTINUATION {
            ensure!(drain(&mut stream).await, "endless headers must end the connection");
        }
    }
    let grown = server.resident()?.saturating_sub(before);
    println!("grew by {grown} bytes");
    ensure!(grown < 24 << 20, "grew by {grown} bytes");
    Ok(())
}

/// The answer of the peer port to a plain request.
async fn ask_peer_port(port: u16) -> Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    stream.write_all(b"GET /members HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n").await?;
    let mut answer = String::new();
    tokio::time::timeout(Duration::from_secs(10), stream.read_to_string(&mut answer)).await??;
    Ok(answer)
}

#[tokio::test]
async fn a_crowd_of_clients_does_not_keep_peers_out_nor_one_of_peers_clients() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let few_files = dir.path().join("few-files");
    std::fs::write(&few_files, format!("#!/bin/sh\nulimit -n 256\nexec '{}' \"$@\"\n", eddy().display()))?;
    std::fs::set_permissions(&few_files, std::fs::Permissions::from_mode(0o755))?;
    let ports = free_ports()?;
    let mut server = Server::spawn_with(&few_files, &dir.path().join("data"), ports, &[], vec![])?;
    server.ready().await?;
    for (crowd, is_of_clients) in [(ports[0], true), (ports[1], false)] {
        let mut held = Vec::new();
        for _ in 0..300 {
            held.push(TcpStream::connect(("127.0.0.1", crowd)).await?);
        }
        // Several, as the listener may have had a place for one.
        let other = if is_of_clients { ports[1] } else { ports[0] };
        for _ in 0..3 {
            held.push(TcpStream::connect(("127.0.0.1", other)).await?);
        }
        if is_of_clients {
            let answer = ask_peer_port(ports[1]).await.context("peers are kept out")?;
            ensure!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        } else {
            let answer = tokio::time::timeout(Duration::from_secs(10), server.get("/health")).await;
            ensure!(answer.context("clients are kept out")??.starts_with("HTTP/1.1 200"));
        }
        drop(held);
        // Until those that went are noticed.
        while server.get("/metrics").await?.lines().any(|line| {
            line.strip_prefix("eddy_connections ").and_then(|open| open.parse().ok()).is_some_and(|open: u64| open > 20)
        }) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    Ok(())
}

/// The member at the other end of a peer's connection is not known before it has greeted.
#[tokio::test]
async fn a_connection_of_a_peer_has_few_streams() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let ports = free_ports()?;
    let mut server = Server::spawn_with(&eddy(), &dir.path().join("data"), ports, &[], vec![])?;
    server.ready().await?;
    let settings = raw::settings(("127.0.0.1", ports[1])).await?;
    ensure!(settings.contains(&(3, 16)), "MAX_CONCURRENT_STREAMS is not 16: {settings:?}");
    Ok(())
}
