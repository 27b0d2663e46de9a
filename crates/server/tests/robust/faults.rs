//! A flush that fails, and threads that end by a panic. The faults are made by the test build of the server.

#![cfg(debug_assertions)]

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::future::join_all;

use crate::client::Client;
use crate::support::{Server, free_ports};

/// Below etcd's request timeout of 7 s: after it a client is answered although the server noticed nothing.
const SOON: Duration = Duration::from_secs(5);

/// Clients of one server that write at the same time.
const WRITERS: usize = 2000;

async fn check(fault: &'static str) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let binary = Path::new(env!("CARGO_BIN_EXE_eddy"));
    let env = vec![("EDDY_FAULT", fault.to_owned())];
    let mut server = Server::spawn_with(binary, &dir.path().join("data"), free_ports()?, &[], env)?;
    server.ready().await?;
    let client = Client::new(server.connect().await?);
    client.put("before", b"x").await?;
    ensure!(server.get("/livez").await?.starts_with("HTTP/1.1 200"));

    let keys = (0..WRITERS).map(|n| if n == WRITERS / 4 { "eddy-fault".to_owned() } else { format!("k{n}") });
    let writes = keys.map(|key| {
        let client = client.clone();
        async move { (client.put(&key, b"x").await.is_ok(), key) }
    });
    let answers = tokio::time::timeout(SOON, join_all(writes)).await.context("some clients wait for nothing")?;
    ensure!(answers.iter().all(|(done, key)| !done || key != "eddy-fault"), "it was acknowledged");
    ensure!(client.put("after", b"x").await.is_err(), "no write is taken");

    let live = server.get("/livez").await?;
    ensure!(live.starts_with("HTTP/1.1 503") && live.contains("[-]needs_no_restart failed: "), "{live}");
    for path in ["/health", "/readyz", "/readyz/writable"] {
        let answer = server.get(path).await?;
        ensure!(answer.starts_with("HTTP/1.1 503"), "{path}: {answer}");
    }
    ensure!(client.get("before").await?.is_some(), "reads go on");

    server.kill()?;
    server.restart().await?;
    let client = Client::new(server.connect().await?);
    ensure!(server.get("/livez").await?.starts_with("HTTP/1.1 200"));
    for (_, key) in answers.iter().filter(|(done, _)| *done) {
        ensure!(client.get(key).await?.is_some(), "{key} was acknowledged and is gone");
    }
    client.put("again", b"x").await?;
    Ok(())
}

#[tokio::test]
async fn a_flush_that_fails_makes_the_process_not_live() -> Result<()> {
    check("flush").await
}

#[tokio::test]
async fn a_panic_of_the_committer_is_told_to_all_who_wait_and_makes_the_process_not_live() -> Result<()> {
    check("committer").await
}

#[tokio::test]
async fn a_panic_of_the_storage_thread_is_told_to_all_who_wait_and_makes_the_process_not_live() -> Result<()> {
    check("storage").await
}
