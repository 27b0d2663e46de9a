//! What can go wrong around the real binary: disks, data dirs, clients, signals.
//!
//! `EDDY_BIN` (default: the eddy of this build), `EDDY_ROBUST_SCALE` (default 1: quick; the amounts are multiplied by it).

#[path = "../support/mod.rs"]
mod support;

mod abuse;
mod client;
mod damage;
mod disk;
mod doctor;
mod faults;
mod flags;
mod floods;
mod gateway;
mod leases;
mod raw;
mod size;
mod stop;
mod watchers;

use std::path::PathBuf;

/// The binary under test.
fn eddy() -> PathBuf {
    std::env::var_os("EDDY_BIN").map_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_eddy")), PathBuf::from)
}

/// How much more than a quick run is wanted.
fn scale() -> usize {
    std::env::var("EDDY_ROBUST_SCALE").ok().and_then(|n| n.parse().ok()).unwrap_or(1)
}
