//! A data dir that is not as it was written, under the real binary.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Result, ensure};
use rand::{Rng, SeedableRng, rngs::SmallRng};

use crate::client::{Client, serve};
use crate::{eddy, scale};

const KEYS: usize = 300;

/// Every file below a directory with its bytes.
pub fn contents(dir: &Path) -> Result<BTreeMap<PathBuf, Vec<u8>>> {
    let mut files = BTreeMap::new();
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            files.extend(contents(&path)?);
        } else {
            files.insert(path.clone(), std::fs::read(&path)?);
        }
    }
    Ok(files)
}

/// Copies a directory with all files below it.
pub fn copy(from: &Path, to: &Path) -> Result<()> {
    for (path, bytes) in contents(from)? {
        let target = to.join(path.strip_prefix(from)?);
        std::fs::create_dir_all(target.parent().unwrap_or(to))?;
        std::fs::write(target, bytes)?;
    }
    Ok(())
}

/// Starts the binary where it is expected to refuse.
fn refused(data: &Path) -> Result<Output> {
    let mut child = Command::new(eddy())
        .env_clear()
        .arg("--data-dir")
        .arg(data)
        .args(["--listen-client-urls=http://127.0.0.1:0", "--advertise-client-urls=http://127.0.0.1:1"])
        .arg("--listen-peer-urls=http://127.0.0.1:0")
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()?;
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while child.try_wait()?.is_none() {
        if std::time::Instant::now() > deadline {
            child.kill()?;
            anyhow::bail!("it started on a damaged data dir");
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    Ok(child.wait_with_output()?)
}

fn check_refused(data: &Path, words: &[&str]) -> Result<()> {
    let before = contents(data)?;
    let output = refused(data)?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(!output.status.success(), "exit code 0: {said}");
    ensure!(output.status.code() == Some(1), "{}: {said}", output.status);
    for word in words {
        ensure!(said.contains(word), "no {word:?} in: {said}");
    }
    ensure!(!said.contains("panicked"), "{said}");
    ensure!(contents(data)? == before, "the refusal changed files: {said}");
    Ok(())
}

async fn filled(dir: &Path) -> Result<PathBuf> {
    let (mut server, client) = serve(dir).await?;
    for n in 0..KEYS {
        client.put(&format!("k{}", n % 50), format!("{n} {}", "x".repeat(500)).as_bytes()).await?;
    }
    server.kill()?;
    Ok(dir.join("data"))
}

#[tokio::test]
async fn a_damaged_data_dir_is_named_and_left_as_it_is() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let whole = filled(dir.path()).await?;
    let log = PathBuf::from("eddy/wal/0000000000000001.log");
    let written = std::fs::read(whole.join(&log))?.iter().rposition(|byte| *byte != 0).unwrap_or(0);
    let mut case = 0;
    let mut broken = async |edit: &mut dyn FnMut(&Path) -> Result<()>, words: &[&str]| {
        case += 1;
        let data = dir.path().join(format!("case{case}"));
        copy(&whole, &data)?;
        edit(&data)?;
        check_refused(&data, words)
    };
    for file in ["eddy/wal/0000000000000001.log", "eddy/current", "eddy/format"] {
        broken(&mut |data| Ok(std::fs::remove_file(data.join(file))?), &[file, "damaged"]).await?;
    }
    broken(&mut |data| Ok(std::fs::write(data.join("eddy/current"), "x")?), &["eddy/current"]).await?;
    broken(
        &mut |data| Ok(std::fs::write(data.join("eddy/format"), "eddy journal 9\n")?),
        &["eddy/format", "journal 9", "journal 3"],
    )
    .await?;
    broken(
        &mut |data| Ok(std::fs::write(data.join("eddy/format"), "eddy journal 2\n")?),
        &["eddy/format", "journal 2", "40 bits", "32", "journal 3"],
    )
    .await?;
    broken(&mut |data| Ok(std::fs::write(data.join("eddy/format"), "")?), &["eddy/format"]).await?;
    let mut cut = |data: &Path| {
        let file = std::fs::File::options().write(true).open(data.join(&log))?;
        Ok(file.set_len(written as u64 / 2)?)
    };
    broken(&mut cut, &["eddy/wal", "damaged", "cut at byte"]).await?;
    let mut rng = SmallRng::seed_from_u64(7);
    for _ in 0..6 * scale() {
        // The middle: the last write of all could pass for one that was torn by the kill.
        let at = rng.random_range(written / 4..written * 3 / 4);
        let mut scratch = |data: &Path| {
            let mut bytes = std::fs::read(data.join(&log))?;
            for byte in &mut bytes[at..at + 64] {
                *byte ^= 0x5a;
            }
            Ok(std::fs::write(data.join(&log), bytes)?)
        };
        broken(&mut scratch, &["eddy/wal", "damaged", "at byte"])
            .await
            .map_err(|e| e.context(format!("at {at} of {written}")))?;
    }
    Ok(())
}

#[tokio::test]
async fn a_second_process_on_the_data_dir_is_refused_and_the_first_not_disturbed() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let (server, client) = serve(dir.path()).await?;
    client.put("a", b"1").await?;
    let data = dir.path().join("data");
    check_refused(&data, &["in use by another process", data.to_str().unwrap_or("?")])?;
    client.put("a", b"2").await?;
    let again = Client::new(server.connect().await?);
    ensure!(again.get("a").await?.as_deref() == Some(&b"2"[..]));
    Ok(())
}
