//! `eddy import` and `eddy export` as processes.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::eddy;

/// How long what a test waits for may take.
const WITHIN: Duration = Duration::from_secs(60);

/// A running one. Dropping it kills it.
pub struct Mover {
    child: Child,
    log: PathBuf,
}

impl Mover {
    /// Starts one that prints to a file.
    ///
    /// # Errors
    /// It cannot be run.
    pub fn start(args: &[&str], log: &Path) -> Result<Self> {
        let output = File::create(log)?;
        let child =
            Command::new(eddy()).args(args).stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output).spawn()?;
        Ok(Self { child, log: log.to_owned() })
    }

    /// `eddy import` from a URL.
    ///
    /// # Errors
    /// It cannot be run.
    pub fn import(url: &str, data_dir: &Path, more: &[&str]) -> Result<Self> {
        let dir = data_dir.to_str().context("a path that is no text")?;
        let args = [&["import", "--endpoints", url, "--data-dir", dir], more].concat();
        Self::start(&args, &data_dir.with_extension("import.log"))
    }

    /// `eddy export` from a URL to another.
    ///
    /// # Errors
    /// It cannot be run.
    pub fn export(from: &str, to: &str, log: &Path) -> Result<Self> {
        Self::start(&["export", "--endpoints", from, "--to", to], log)
    }

    /// All that it has printed.
    pub fn said(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits until it says something.
    ///
    /// # Errors
    /// It ends before, or does not say it in time.
    pub async fn says(&mut self, text: &str) -> Result<()> {
        let deadline = Instant::now() + WITHIN;
        while !self.said().contains(text) {
            if let Some(status) = self.child.try_wait()? {
                ensure!(self.said().contains(text), "it ended with {status} without {text:?}:\n{}", self.said());
            }
            ensure!(Instant::now() < deadline, "it does not say {text:?}:\n{}", self.said());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }

    /// `kill -9`.
    ///
    /// # Errors
    /// It cannot be killed.
    pub fn kill(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Tells it to stop, and waits until it has. What it said.
    ///
    /// # Errors
    /// It fails.
    pub async fn stop(mut self) -> Result<String> {
        let told = Command::new("kill").args(["-s", "TERM", &self.child.id().to_string()]).status()?;
        ensure!(told.success(), "kill: {told}");
        let (succeeded, said) = self.ended().await?;
        ensure!(succeeded, "it failed:\n{said}");
        Ok(said)
    }

    /// Waits until it has ended by itself and failed. What it said.
    ///
    /// # Errors
    /// It succeeds.
    pub async fn fails(mut self) -> Result<String> {
        let (succeeded, said) = self.ended().await?;
        ensure!(!succeeded, "it succeeded:\n{said}");
        Ok(said)
    }

    async fn ended(&mut self) -> Result<(bool, String)> {
        let deadline = Instant::now() + WITHIN;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok((status.success(), self.said()));
            }
            if Instant::now() > deadline {
                bail!("it does not end:\n{}", self.said());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

impl Drop for Mover {
    fn drop(&mut self) {
        // Fails only when it is gone already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
