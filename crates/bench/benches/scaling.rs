//! eddy beside etcd at 1, 3, 5, 7, 9, 15 and 21 nodes: `cargo bench -p eddy-bench --bench scaling`.
//!
//! A short run of the scenario `scaling`, once for each size and system, in about four minutes. The long one, with
//! repetitions and significance, is `lab run crates/bench/scenarios/*.toml`.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use eddy_bench::experiment::Bench;
use eddy_bench::lab::{self, Progress};
use eddy_bench::report::svg::number;
use eddy_bench::report::{self, Group};
use eddy_bench::results::Results;
use eddy_bench::scenario::{Scenario, System};
use eddy_bench::target::Places;
use eddy_bench::target::binaries::Binaries;

/// What counts of each experiment, and what comes before.
const MEASURE_S: f64 = 5.0;
const WARMUP_S: f64 = 1.0;

struct Lines;

impl Progress for Lines {
    fn begins(&self, name: &str, finished: u64, all: u64, _: Duration) {
        eprintln!("{}/{all} {name}", finished + 1);
    }
    fn phase(&self, _: &str, _: Option<u64>) {}
    fn ended(&self, name: &str, summary: &str) {
        println!("{name}: {summary}");
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("scaling: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[tokio::main]
async fn run() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).context("the workspace")?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let eddy = match std::env::var_os("EDDY_BIN") {
        Some(named) => PathBuf::from(named),
        None => build(root, &target)?,
    };
    let binaries = Binaries::find(Some(eddy), None);
    // Both are asked for before anything runs: a comparison with one side missing is none.
    binaries.of(System::Eddy)?;
    binaries.of(System::Etcd)?;
    let (mut scenario, text) = Scenario::load(&root.join("crates/bench/scenarios/scaling.toml"))?;
    scenario.repeat = 1;
    scenario.load.measure_s = MEASURE_S;
    scenario.load.warmup_s = WARMUP_S;
    let folder = target.join("lab");
    let bench = Bench { binaries, places: Places { real: folder.join("data"), tmpfs: "/dev/shm".into() } };
    // Kept apart from the long run's results, whose experiments are longer.
    let mut results = Results::open(Path::new(":memory:"))?;
    let summary = lab::run(&bench, &[(scenario.clone(), text)], &mut results, None, &Lines).await?;
    let experiments = results.experiments(&scenario.name)?;
    let groups = report::groups(&scenario, &experiments);
    println!(
        "\n{:>5} {:>12} {:>12} {:>7} {:>12} {:>12}",
        "nodes", "eddy /s", "etcd /s", "ratio", "eddy p99 ms", "etcd p99 ms"
    );
    for nodes in &scenario.cluster.nodes {
        let of = |system, metric: &str| {
            let group = groups.iter().find(|g: &&Group| g.cell.nodes == *nodes && g.cell.system == system);
            group.and_then(|group| group.values(metric).first().copied()).unwrap_or(f64::NAN)
        };
        let (eddy, etcd) = (of(System::Eddy, "throughput"), of(System::Etcd, "throughput"));
        println!(
            "{nodes:>5} {:>12} {:>12} {:>7} {:>12} {:>12}",
            number(eddy),
            number(etcd),
            number(eddy / etcd),
            number(of(System::Eddy, "p99_ms")),
            number(of(System::Etcd, "p99_ms"))
        );
    }
    report::write(&results, &folder.join("bench-report"))?;
    println!("\nfigures: {}", folder.join("bench-report/report.html").display());
    println!(
        "the long run, about 100 minutes: cargo run --release -p eddy-bench --bin lab -- run crates/bench/scenarios/*.toml"
    );
    ensure!(summary.failed == 0, "{} experiments failed; the report says why", summary.failed);
    Ok(())
}

/// eddy as it is released.
fn build(root: &Path, target: &Path) -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args(["build", "--release", "--locked", "-p", "eddy-server"])
        .env("CARGO_TARGET_DIR", target)
        .current_dir(root)
        .status()
        .context("run cargo")?;
    ensure!(status.success(), "eddy does not build");
    Ok(target.join("release/eddy"))
}
