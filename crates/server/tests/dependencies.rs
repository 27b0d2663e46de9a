//! Which crate may depend on which, read from the resolved dependency graph: the walls between the crates are real.

use std::{
    collections::{BTreeMap, BTreeSet},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// A pure state machine has no use for a runtime, a clock, randomness, a disk or a network.
const IMPURE: &[&str] = &[
    "tokio",
    "async-std",
    "smol",
    "mio",
    "socket2",
    "rustix",
    "hyper",
    "h2",
    "tonic",
    "tower",
    "reqwest",
    "rustls",
    "sled",
    "fs4",
    "tempfile",
    "memmap2",
    "rand",
    "rand_core",
    "getrandom",
    "fastrand",
    "chrono",
    "time",
    "instant",
    "crossbeam",
    "rayon",
    "parking_lot",
    "tracing",
    "log",
];
/// Edges to such that are allowed, with nothing else on the way. Automerge draws a random actor id for each new
/// document, and can log; no feature leaves that out. Our documents are given an actor id derived from the entry's
/// origin before anything is written.
const TOLERATED: &[(&str, &[&str])] = &[("automerge", &["rand", "getrandom", "tracing"])];
/// Direct dependents, among the crates of this workspace, that are allowed.
const ALLOWED: &[(&str, &[&str])] = &[
    ("tokio", &["eddy-server", "eddy-bench"]),
    ("sled", &["eddy-server"]),
    ("automerge", &["eddy-crdt"]),
    ("zstd", &["eddy-crdt", "eddy-server"]),
    ("eddy-crdt", &["eddy-server"]),
    ("eddy-server", &[]),
];

struct Graph {
    /// Package name -> names of its normal and build dependencies.
    edges: BTreeMap<String, BTreeSet<String>>,
    members: BTreeSet<String>,
}

fn text<'a>(value: &'a Value, key: &str) -> Result<&'a str> {
    value[key].as_str().with_context(|| format!("{key} of {value}"))
}

fn list<'a>(value: &'a Value, key: &str) -> Result<&'a [Value]> {
    Ok(value[key].as_array().with_context(|| format!("{key} is no list"))?)
}

fn cargo(arguments: &[&str]) -> Result<String> {
    let output = Command::new(env!("CARGO")).args(arguments).output()?;
    ensure!(output.status.success(), "cargo {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

fn graph() -> Result<Graph> {
    let version = cargo(&["-vV"])?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).context("cargo does not say its host")?;
    // What other systems need was not downloaded for this build.
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    let arguments =
        ["metadata", "--format-version", "1", "--offline", "--filter-platform", host, "--manifest-path", manifest];
    let metadata: Value = serde_json::from_str(&cargo(&arguments)?)?;
    let mut names = BTreeMap::new();
    for package in list(&metadata, "packages")? {
        let name = text(package, "name")?.to_owned();
        names.insert(text(package, "id")?, name);
    }
    let mut edges: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for node in list(&metadata["resolve"], "nodes")? {
        let to = edges.entry(names[text(node, "id")?].clone()).or_default();
        for dep in list(node, "deps")? {
            if list(dep, "dep_kinds")?.iter().any(|kind| kind["kind"] != "dev") {
                to.insert(names[text(dep, "pkg")?].clone());
            }
        }
    }
    let members = list(&metadata, "workspace_members")?.iter();
    let members = members.filter_map(|id| names.get(id.as_str()?).cloned()).collect();
    Ok(Graph { edges, members })
}

#[test]
fn the_state_machine_depends_on_nothing_impure() -> Result<()> {
    let graph = graph()?;
    let (mut reached, mut next) = (BTreeSet::new(), vec!["eddy-crdt".to_owned()]);
    while let Some(name) = next.pop() {
        let tolerated = TOLERATED.iter().find(|(from, _)| *from == name).map_or(&[][..], |(_, to)| to);
        let deps = graph.edges[&name].iter().filter(|d| !tolerated.contains(&d.as_str()));
        next.extend(deps.filter(|d| !reached.contains(*d)).cloned());
        reached.insert(name);
    }
    ensure!(reached.len() > 3, "the dependencies were not found: {reached:?}");
    let impure: Vec<_> = IMPURE.iter().filter(|name| reached.contains(**name)).collect();
    ensure!(impure.is_empty(), "eddy-crdt depends on {impure:?}");
    Ok(())
}

#[test]
fn only_the_right_crates_know_the_runtime_and_the_store() -> Result<()> {
    let graph = graph()?;
    for (name, allowed) in ALLOWED {
        ensure!(graph.edges.contains_key(*name), "{name} is not in the graph");
        for member in graph.members.iter().filter(|m| graph.edges[*m].contains(*name)) {
            ensure!(allowed.contains(&member.as_str()), "{member} depends on {name}");
        }
    }
    let stores: Vec<_> = graph.edges.iter().filter(|(_, deps)| deps.contains("sled")).map(|(n, _)| n).collect();
    ensure!(stores == ["eddy-server"], "sled is used by {stores:?}");
    Ok(())
}

#[test]
fn all_sources_are_crates_io() -> Result<()> {
    let lock = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.lock"))?;
    let mut sources = lock.lines().filter_map(|line| line.strip_prefix("source = ")).peekable();
    ensure!(sources.peek().is_some(), "the lock file names no sources");
    let foreign: Vec<_> =
        sources.filter(|source| *source != "\"registry+https://github.com/rust-lang/crates.io-index\"").collect();
    ensure!(foreign.is_empty(), "from elsewhere: {foreign:?}");
    Ok(())
}
