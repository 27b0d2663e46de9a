//! Where the programs under test are.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::scenario::System;

/// The programs, found.
#[derive(Clone, Debug, Default)]
pub struct Binaries {
    eddy: Option<PathBuf>,
    etcd: Option<PathBuf>,
}

impl Binaries {
    /// Takes the named programs and finds the others. A program that is not found is an error only once it is needed.
    pub fn find(eddy: Option<PathBuf>, etcd: Option<PathBuf>) -> Self {
        let variable = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        let eddy = eddy
            .or_else(|| variable("EDDY_BIN"))
            .or_else(|| beside_this_program("eddy"))
            .or_else(|| existing(PathBuf::from("target/release/eddy")));
        let etcd = etcd
            .or_else(|| variable("ETCD_BIN"))
            .or_else(|| on_path("etcd"))
            .or_else(|| peers().and_then(|folder| existing(folder.join("bin/etcd"))));
        Self { eddy, etcd }
    }

    /// The program of a system.
    ///
    /// # Errors
    /// When it was not found; the message says how to get it.
    pub fn of(&self, system: System) -> Result<&Path> {
        let (found, help) = match system {
            System::Eddy => (
                &self.eddy,
                "eddy is not built: `cargo build --release -p eddy-server`, or name it with --eddy or EDDY_BIN",
            ),
            System::Etcd => (
                &self.etcd,
                "etcd is missing: `tools/peers/build etcd` builds the pinned one (it needs Go); or put it on PATH, or \
                 name it with --etcd or ETCD_BIN",
            ),
        };
        let Some(path) = found else { bail!(help) };
        if !path.is_file() {
            bail!("{} is no file; {help}", path.display());
        }
        Ok(path)
    }

    /// What the program says its version is.
    ///
    /// # Errors
    /// When it is missing or does not run.
    pub fn version(&self, system: System) -> Result<String> {
        let path = self.of(system)?;
        let output = Command::new(path).arg("--version").output().with_context(|| format!("run {}", path.display()))?;
        let text = String::from_utf8_lossy(&output.stdout);
        Ok(text.lines().next().unwrap_or_default().replace("etcd Version: ", "etcd ").trim().to_owned())
    }
}

/// The folder that `tools/peers/build` fills.
fn peers() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    variable("EDDY_PEERS").or_else(|| {
        let cache = variable("XDG_CACHE_HOME").or_else(|| variable("HOME").map(|home| home.join(".cache")));
        cache.map(|cache| cache.join("eddy/peers"))
    })
}

fn on_path(name: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?).find_map(|folder| existing(folder.join(name)))
}

fn beside_this_program(name: &str) -> Option<PathBuf> {
    existing(std::env::current_exe().ok()?.parent()?.join(name))
}

fn existing(path: PathBuf) -> Option<PathBuf> {
    path.is_file().then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_is_named_with_the_way_to_get_it() {
        let binaries = Binaries { eddy: None, etcd: Some("/nowhere/etcd".into()) };
        let message = binaries.of(System::Eddy).expect_err("none").to_string();
        assert!(message.contains("cargo build --release -p eddy-server"), "{message}");
        let message = binaries.of(System::Etcd).expect_err("none").to_string();
        assert!(message.contains("/nowhere/etcd is no file") && message.contains("tools/peers/build"), "{message}");
    }
}
