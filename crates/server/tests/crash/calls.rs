//! Kills starts at each call by which they change files, one after the other. What a start leaves half done must not
//! keep the next from working. Random moments hardly ever hit these.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use eddy_proto::etcdserverpb::{PutRequest, RangeRequest, kv_client::KvClient};

use crate::support::{Server, free_ports};

/// The calls that change files or their names; strace counts each by itself.
const CALLS: [&str; 14] = [
    "write",
    "writev",
    "pwrite64",
    "pwritev",
    "ftruncate",
    "fallocate",
    "fsync",
    "fdatasync",
    "sync_file_range",
    "rename",
    "renameat",
    "unlink",
    "unlinkat",
    "mkdir",
];

/// No thread makes more during a start.
const CALLS_MAX: u32 = 2000;

/// How the life before ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Before {
    None,
    Killed,
    Stopped,
}

#[tokio::test]
#[ignore = "needs strace, which kills at a chosen call; .ci/run runs it"]
async fn a_start_that_is_killed_at_any_of_its_calls_can_be_repeated() -> Result<()> {
    Command::new("strace").arg("--version").output().context("install strace")?;
    let binary = crate::binary();
    for before in [Before::None, Before::Killed, Before::Stopped] {
        let mut kills = 0;
        for name in CALLS {
            kills += sweep(&binary, before, name).await.with_context(|| format!("{before:?}, {name}"))?;
        }
        println!("{before:?}: {kills} starts killed, each could be repeated");
        // On a store that is there a start reads, syncs the log, and notes that this is the original.
        let least = if before == Before::None { 20 } else { 10 };
        ensure!(kills > least, "{before:?}: too few calls for a start that writes: {kills}");
    }
    Ok(())
}

/// Kills a start at its first call of that name, another at its second, until one gets through. The steps grow: a new
/// store's log is filled with zeros in hundreds of like writes.
async fn sweep(binary: &Path, before: Before, name: &str) -> Result<u32> {
    let dir = tempfile::Builder::new().prefix("eddy-calls-").tempdir()?;
    let mut data = dir.path().join("data");
    let (mut call, mut kills) = (1, 0);
    loop {
        let mut value = Vec::new();
        if before == Before::None {
            data = dir.path().join(format!("data-{call}"));
        } else {
            value = call.to_string().into_bytes();
            live(binary, &data, &value, before).await.with_context(|| format!("before the start of call {call}"))?;
        }
        let through = !is_killed(&wrapper(binary, dir.path(), name, call)?, &data).await?;
        let what = || format!("the start after one that was killed at call {call}");
        let server = Server::start(binary, &data, &[]).await.with_context(what)?;
        let mut kv = KvClient::new(server.connect().await?);
        let kvs = kv.range(RangeRequest { key: "k".into(), ..RangeRequest::default() }).await?.into_inner().kvs;
        let found = kvs.first().map(|kv| kv.value.to_vec()).unwrap_or_default();
        ensure!(found == value, "{}: {found:?} is there, not {value:?}", what());
        if through {
            return Ok(kills);
        }
        kills += 1;
        call += 1 + call / 16;
        ensure!(call < CALLS_MAX, "a start never gets through");
    }
}

/// A life that writes something, to its end.
async fn live(binary: &Path, data: &Path, value: &[u8], end: Before) -> Result<()> {
    let mut server = Server::start(binary, data, &[]).await?;
    let put = PutRequest { key: "k".into(), value: value.to_vec().into(), ..PutRequest::default() };
    KvClient::new(server.connect().await?).put(put).await?;
    if end == Before::Killed {
        return server.kill();
    }
    server.signal("TERM")?;
    server.ended(std::time::Duration::from_secs(20)).await.map(drop)
}

/// Whether a start with this program ends before it is ready.
async fn is_killed(program: &Path, data: &Path) -> Result<bool> {
    Ok(Server::spawn_on(program, data, free_ports()?, &[])?.ready().await.is_err())
}

/// A program that is the server, and is killed when one of its threads makes that call for the `call`-th time. With -D
/// the process that is started is the server itself, strace its child.
fn wrapper(binary: &Path, dir: &Path, name: &str, call: u32) -> Result<PathBuf> {
    let script = dir.join("start");
    let text = format!(
        "#!/bin/sh\nexec strace -D -f -qq -o /dev/null -e trace={name} -e signal=none \
         -e inject={name}:signal=KILL:when={call} -- '{}' \"$@\"\n",
        binary.display()
    );
    fs::write(&script, text)?;
    fs::set_permissions(&script, Permissions::from_mode(0o755))?;
    Ok(script)
}
