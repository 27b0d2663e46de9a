//! Moving in and out beside a real etcd: `eddy import`, `eddy export`. `tools/peers/build etcd` makes these programs.

mod export;
mod import;
#[path = "../backup/load.rs"]
#[allow(dead_code, reason = "another test uses the rest")]
mod load;
mod mover;
mod secure;
#[path = "../support/mod.rs"]
mod support;
#[path = "../backup/tools.rs"]
#[allow(dead_code, reason = "another test uses the rest")]
mod tools;
mod writer;

use std::path::Path;

use anyhow::{Result, ensure};
use support::Server;

fn eddy() -> std::path::PathBuf {
    let named = std::env::var_os("EDDY_BIN").map(std::path::PathBuf::from);
    named.unwrap_or_else(|| Path::new(env!("CARGO_BIN_EXE_eddy")).to_owned())
}

/// Both hold the same: keys with all their numbers, leases, history from a revision on, and the hash over all of it.
async fn equal(one: &Server, other: &Server, from: i64) -> Result<()> {
    let (left, right) = (load::revision(one).await?, load::revision(other).await?);
    ensure!(left == right, "revision {left} against {right}");
    let (these, those) = (load::all(one, 0).await?, load::all(other, 0).await?);
    ensure!(these.len() == those.len(), "{} keys against {}", these.len(), those.len());
    for (one, other) in these.iter().zip(&those) {
        ensure!(one == other, "{one:?}\n{other:?}");
    }
    ensure!(load::leases(one).await? == load::leases(other).await?, "the leases differ");
    let (these, those) = (writer::events(one, from, left).await?, writer::events(other, from, left).await?);
    ensure!(these == those, "the histories differ: {} events against {}", these.len(), those.len());
    let (left, right) = (load::hash(one, left).await?, load::hash(other, left).await?);
    ensure!(left == right, "the hashes differ");
    Ok(())
}
