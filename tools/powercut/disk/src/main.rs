//! eddy-powercut-disk FOLDER [--mb N] [--ordered-names] [--leave-out file:PART|folder:END]
//!
//! Serves a file system from memory and cuts its power. It reads commands, a line each, and answers each with a line:
//!
//! - `mount`: the disk is mounted on FOLDER, with what the last cut left;
//! - `cut SEED`: from now on every call fails; what is left of what was not synced is drawn from SEED;
//! - `unmount`; `end`.
//!
//! `--leave-out` makes a kind of fsync do nothing. The programs that run on the disk then lose what they must not lose.

#![forbid(unsafe_code)]

mod model;
mod mounted;

use std::io::{BufRead, ErrorKind, Write};
use std::sync::Arc;

use anyhow::{Context, anyhow, bail};
use fuser::{BackgroundSession, Config, MountOption};
use parking_lot::Mutex;

use model::{Disk, LeftOut, Names};
use mounted::Mounted;

/// The disk with what is mounted of it.
struct Power {
    folder: String,
    disk: Arc<Mutex<Disk>>,
    /// What is left once it was cut.
    left: Option<Disk>,
    session: Option<BackgroundSession>,
}

impl Power {
    fn obey(&mut self, command: &str) -> anyhow::Result<&'static str> {
        match command.split_once(' ').unwrap_or((command, "")) {
            ("mount", "") => self.mount(),
            ("cut", seed) => {
                let left = self.disk.lock().cut(seed.parse().context("a seed is a number")?);
                self.left = Some(left);
                Ok("cut")
            }
            ("unmount", "") => {
                let session = self.session.take().context("it is not mounted")?;
                match session.umount_and_join() {
                    // The kernel may end the connection before the session hears of it.
                    Err(e) if e.kind() != ErrorKind::ConnectionAborted => Err(e.into()),
                    _ => Ok("unmounted"),
                }
            }
            _ => Err(anyhow!("there is no command {command:?}")),
        }
    }

    fn mount(&mut self) -> anyhow::Result<&'static str> {
        if self.session.is_some() {
            bail!("it is mounted");
        }
        if let Some(left) = self.left.take() {
            self.disk = Arc::new(Mutex::new(left));
        }
        let mut config = Config::default();
        config.mount_options = vec![MountOption::FSName("powercut".into()), MountOption::NoSuid, MountOption::NoDev];
        self.session = Some(fuser::spawn_mount(Mounted(self.disk.clone()), &self.folder, &config)?);
        Ok("mounted")
    }
}

fn left_out(text: &str) -> anyhow::Result<LeftOut> {
    match text.split_once(':') {
        Some(("file", part)) => Ok(LeftOut::File(part.to_owned())),
        Some(("folder", end)) => Ok(LeftOut::Folder(end.to_owned())),
        _ => Err(anyhow!("{text:?} is neither file:PART nor folder:END")),
    }
}

fn main() -> anyhow::Result<()> {
    let mut words = std::env::args().skip(1);
    let folder = words.next().context("which folder? See the head of src/main.rs")?;
    let (mut mb, mut names, mut fault) = (512, Names::Strict, None);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--mb" => mb = words.next().context("--mb N")?.parse().context("--mb N")?,
            "--ordered-names" => names = Names::Ordered,
            "--leave-out" => fault = Some(left_out(&words.next().context("--leave-out WHAT")?)?),
            other => bail!("there is no flag {other}"),
        }
    }
    let disk = Arc::new(Mutex::new(Disk::new(mb << 20, names, fault)));
    let mut power = Power { folder, disk, left: None, session: None };
    let mut out = std::io::stdout();
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        if line == "end" {
            break;
        }
        match power.obey(&line) {
            Ok(done) => writeln!(out, "{done}")?,
            Err(e) => writeln!(out, "error: {e:#}")?,
        }
        out.flush()?;
    }
    if let Some(session) = power.session.take() {
        session.umount_and_join()?;
    }
    Ok(())
}
