//! `eddy doctor`: what it finds in data dirs that are not as they were written. It changes nothing in any of them.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use eddy_proto::etcdserverpb as pb;
use eddy_proto::etcdserverpb::maintenance_client::MaintenanceClient;

use crate::client::serve;
use crate::damage::{contents, copy};
use crate::eddy;

/// Asks it, and compares all files before and after. Whether it found nothing, and what it said.
fn examine(data: &Path) -> Result<(bool, String)> {
    let before = contents(data)?;
    let output = Command::new(eddy()).arg("doctor").arg("--data-dir").arg(data).stdin(Stdio::null()).output()?;
    let said = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    ensure!(contents(data)? == before, "it changed files: {said}");
    ensure!(matches!(output.status.code(), Some(0 | 1)), "{}: {said}", output.status);
    ensure!(!said.contains("panicked"), "{said}");
    Ok((output.status.success(), said))
}

/// A data dir with a checkpoint, and a log behind it.
async fn filled(dir: &Path) -> Result<PathBuf> {
    let (mut server, client) = serve(dir).await?;
    for n in 0..200 {
        client.put(&format!("k{}", n % 50), format!("{n} {}", "x".repeat(500)).as_bytes()).await?;
    }
    MaintenanceClient::new(client.channel.clone()).defragment(pb::DefragmentRequest::default()).await?;
    for n in 0..100 {
        client.put(&format!("k{}", n % 50), format!("{n} {}", "y".repeat(500)).as_bytes()).await?;
    }
    let data = dir.join("data");
    let (found, said) = examine(&data)?;
    ensure!(!found && said.contains("a replica runs on"), "{said}");
    server.kill()?;
    Ok(data)
}

fn only_file(folder: &Path, part: &str) -> Result<PathBuf> {
    let files = contents(folder)?;
    let found = files.keys().filter(|path| path.to_string_lossy().contains(part)).max();
    found.cloned().with_context(|| format!("no {part} in {}", folder.display()))
}

/// Alters bytes in the middle of what was written to a file.
fn scratch(file: &Path, from: usize) -> Result<()> {
    let mut bytes = std::fs::read(file)?;
    let end = bytes.iter().rposition(|byte| *byte != 0).unwrap_or(0);
    let at = end / from;
    for byte in &mut bytes[at..at + 64] {
        *byte ^= 0x5a;
    }
    Ok(std::fs::write(file, bytes)?)
}

#[tokio::test]
async fn damage_in_every_kind_of_file_is_named() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let whole = filled(dir.path()).await?;
    let (found, said) = examine(&whole)?;
    ensure!(found && said.contains("nothing is wrong"), "{said}");
    ensure!(said.contains("at revision 301: 50 keys") && said.contains("checkpoint 1, and "), "{said}");

    type Edit<'a> = &'a dyn Fn(&Path) -> Result<()>;
    let remove = |file: &'static str| move |data: &Path| -> Result<()> { Ok(std::fs::remove_file(data.join(file))?) };
    let write = |file: &'static str, text: &'static str| {
        move |data: &Path| -> Result<()> { Ok(std::fs::write(data.join(file), text)?) }
    };
    let cases: &[(&str, Edit<'_>, &[&str])] = &[
        ("format gone", &remove("eddy/format"), &["eddy/format", "missing"]),
        ("format of another", &write("eddy/format", "eddy journal 9\n"), &["eddy/format", "journal 9"]),
        ("current gone", &remove("eddy/current"), &["eddy/current", "missing"]),
        ("current altered", &write("eddy/current", "checkpoint 1\n"), &["eddy/current", "does not check out"]),
        ("log altered", &|data| scratch(&only_file(&data.join("eddy/wal"), ".log")?, 2), &["eddy/wal/", "at byte"]),
        (
            "log gone",
            &|data| Ok(std::fs::remove_file(only_file(&data.join("eddy/wal"), ".log")?)?),
            &["eddy/wal/", "missing"],
        ),
        ("checkpoint altered", &|data| scratch(&data.join("eddy/checkpoint.1/db"), 3), &["eddy/checkpoint.1"]),
        ("checkpoint gone", &remove("eddy/checkpoint.1/db"), &["eddy/checkpoint.1/db", "missing"]),
        ("import", &write("eddy.import", "from cluster 1\n"), &["eddy.import", "has not ended"]),
        (
            "both",
            &|data| {
                scratch(&data.join("eddy/checkpoint.1/db"), 3)?;
                scratch(&only_file(&data.join("eddy/wal"), ".log")?, 2)
            },
            &["eddy/wal/", "eddy/checkpoint.1"],
        ),
    ];
    for (name, edit, words) in cases {
        let data = dir.path().join(name.replace(' ', "-"));
        copy(&whole, &data)?;
        edit(&data)?;
        let (found, said) = examine(&data).with_context(|| (*name).to_owned())?;
        ensure!(!found && said.contains("WRONG: "), "{name}: {said}");
        let wrong: String = said.lines().filter(|line| line.starts_with("WRONG: ")).collect();
        for word in *words {
            ensure!(wrong.contains(word), "{name}: no {word:?} in: {said}");
        }
        // What says itself what to do is no damage: a data dir is not to be thrown away for it.
        let is_damage = !matches!(*name, "format of another" | "import");
        ensure!(said.contains("remove the data dir") == is_damage, "{name}: {said}");
    }
    // A copy is no damage, and is told.
    let copied = dir.path().join("copied");
    copy(&whole, &copied)?;
    let (found, said) = examine(&copied)?;
    ensure!(found && said.contains("it is a copy"), "{said}");
    let (found, said) = examine(dir.path())?;
    ensure!(!found && said.contains("is no data dir of eddy"), "{said}");
    Ok(())
}

/// What lies in its folders and is of somebody else stays there, and is no damage.
#[tokio::test]
async fn files_of_others_are_left_alone() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let data = filled(dir.path()).await?;
    let foreign =
        ["eddy/README", "eddy/wal/notes.txt", "eddy/wal/0000000000000001.log.bak", "eddy/checkpoint.1.bak/db"];
    std::fs::create_dir(data.join("eddy/checkpoint.1.bak"))?;
    for name in foreign {
        std::fs::write(data.join(name), "mine")?;
    }
    // Of eddy's own, what a kill left of a segment and of a checkpoint.
    let drafts = ["eddy/wal/0000000000000077.new", "eddy/checkpoint.77"];
    std::fs::write(data.join(drafts[0]), "half")?;
    std::fs::create_dir(data.join(drafts[1]))?;
    let (found, said) = examine(&data)?;
    ensure!(found && drafts.iter().all(|name| said.contains(name)), "{said}");
    ensure!(!foreign.iter().any(|name| said.contains(name)), "{said}");
    let (_server, client) = serve(dir.path()).await?;
    client.put("k", b"v").await?;
    for name in foreign {
        ensure!(std::fs::read(data.join(name)).is_ok_and(|bytes| bytes == b"mine"), "{name} was touched");
    }
    for name in drafts {
        ensure!(!data.join(name).exists(), "{name} is still there");
    }
    Ok(())
}
