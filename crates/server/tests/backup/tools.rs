//! etcd's programs.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::support::{self, Server};

/// Where they are.
pub struct Tools(PathBuf);

impl Tools {
    /// Finds them.
    ///
    /// # Errors
    /// One is missing.
    pub fn find() -> Result<Self> {
        let folder = support::peers()?;
        for name in ["etcd", "etcdctl", "etcdutl", "bbolt"] {
            ensure!(folder.join(name).exists(), "{name} is not in {}: run tools/peers/build etcd", folder.display());
        }
        Ok(Self(folder))
    }

    /// The server.
    pub fn etcd(&self) -> PathBuf {
        self.0.join("etcd")
    }

    fn run(&self, name: &str, args: &[&str]) -> Result<String> {
        let output = Command::new(self.0.join(name)).args(args).stdin(Stdio::null()).output()?;
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        ensure!(output.status.success(), "{name} {args:?}: {}\n{out}{err}", output.status);
        Ok(out.into_owned())
    }

    /// `etcdctl snapshot save`.
    ///
    /// # Errors
    /// It refuses.
    pub fn save(&self, from: &Server, file: &Path) -> Result<()> {
        self.run("etcdctl", &["--endpoints", &from.url(), "snapshot", "save", text(file)?]).map(drop)
    }

    /// `etcdctl` with any arguments; what it printed.
    ///
    /// # Errors
    /// It fails.
    #[allow(dead_code, reason = "not every test that has these tools uses it")]
    pub fn control(&self, server: &Server, args: &[&str]) -> Result<String> {
        self.run("etcdctl", &[&["--endpoints", &server.url()], args].concat())
    }

    /// `etcdutl snapshot status`.
    ///
    /// # Errors
    /// It refuses.
    pub fn status(&self, file: &Path) -> Result<Value> {
        Ok(serde_json::from_str(&self.run("etcdutl", &["snapshot", "status", text(file)?, "-w", "json"])?)?)
    }

    /// `bbolt check` of the database without its hash.
    ///
    /// # Errors
    /// It finds something.
    pub fn check(&self, file: &Path, folder: &Path) -> Result<()> {
        let database = folder.join("checked.db");
        let mut bytes = std::fs::read(file)?;
        bytes.truncate(bytes.len().checked_sub(32).context("too short")?);
        std::fs::write(&database, bytes)?;
        let said = self.run("bbolt", &["check", text(&database)?])?;
        ensure!(said.trim() == "OK", "bbolt check: {said}");
        Ok(())
    }

    /// `etcdutl snapshot restore`.
    ///
    /// # Errors
    /// It refuses.
    pub fn restore(&self, file: &Path, data_dir: &Path) -> Result<()> {
        self.restore_with(file, data_dir, &[])
    }

    /// The same with more flags.
    ///
    /// # Errors
    /// It refuses.
    pub fn restore_with(&self, file: &Path, data_dir: &Path, more: &[&str]) -> Result<()> {
        let args = [&["snapshot", "restore", text(file)?, "--data-dir", text(data_dir)?], more].concat();
        self.run("etcdutl", &args).map(drop)
    }
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().context("a path that is no text")
}
