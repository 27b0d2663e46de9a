//! Runs experiments, those of the cell with the fewest finished ones first. Among equals the order is random, so that a
//! noisy hour does not hit one side.

use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result};
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use crate::experiment::{self, Bench};
use crate::machine;
use crate::results::{Measured, Origin, Results};
use crate::scenario::{Cell, Scenario, System};

/// Failures of one cell after which it is not tried again in this run.
const TRIES: u32 = 2;
/// What starting and stopping a cluster takes at least, for estimates.
const AROUND: Duration = Duration::from_secs(4);

/// Is told how a run goes.
pub trait Progress: Sync {
    /// An experiment begins; `finished` of `all` are finished.
    fn begins(&self, name: &str, finished: u64, all: u64, left: Duration);
    /// What the experiment does, and how many operations have succeeded.
    fn phase(&self, phase: &str, done: Option<u64>);
    /// The experiment has ended, well or not.
    fn ended(&self, name: &str, summary: &str);
}

/// The result of a run.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Experiments that this run finished.
    pub finished: u64,
    /// Experiments that failed.
    pub failed: u64,
    /// Experiments that time did not allow.
    pub left: u64,
}

/// Picks the cells that may go next, given `(finished, failed)` of each: of those that need more, the ones with the fewest
/// finished.
pub fn due(counts: &[(u32, u32)], repeat: &[u32], failed_before: &[u32]) -> Vec<usize> {
    let open =
        (0..counts.len()).filter(|&i| counts[i].0 < repeat[i] && counts[i].1.saturating_sub(failed_before[i]) < TRIES);
    let open: Vec<_> = open.collect();
    let fewest = open.iter().map(|&i| counts[i].0).min();
    open.into_iter().filter(|&i| Some(counts[i].0) == fewest).collect()
}

/// Runs the missing experiments of the scenarios, until `until` if given.
///
/// # Errors
/// When a program is missing, or results cannot be kept. An experiment that fails is no error but counted.
pub async fn run(
    bench: &Bench,
    scenarios: &[(Scenario, String)],
    results: &mut Results,
    until: Option<Instant>,
    progress: &dyn Progress,
) -> Result<Summary> {
    for (scenario, text) in scenarios {
        results.scenario(&scenario.name, text)?;
    }
    let about =
        About { versions: versions(bench, scenarios)?, machine: machine::describe(), commit: machine::commit() };
    let cells: Vec<(&Scenario, Cell)> =
        scenarios.iter().flat_map(|(s, _)| s.cells().into_iter().map(move |c| (s, c))).collect();
    let repeat: Vec<_> = cells.iter().map(|(scenario, _)| scenario.repeat).collect();
    let count = |results: &Results| -> Result<Vec<(u32, u32)>> {
        cells.iter().map(|(scenario, cell)| results.finished(&scenario.name, cell)).collect()
    };
    let failed_before: Vec<_> = count(results)?.iter().map(|(_, failed)| *failed).collect();
    let all: u64 = repeat.iter().map(|n| u64::from(*n)).sum();
    let mut rng = SmallRng::from_os_rng();
    let mut summary = Summary::default();
    loop {
        let counts = count(results)?;
        let finished: u64 = counts.iter().zip(&repeat).map(|((done, _), repeat)| u64::from(*done.min(repeat))).sum();
        let next = due(&counts, &repeat, &failed_before);
        let Some(&next) = next.choose(&mut rng) else { break };
        let (scenario, cell) = &cells[next];
        let left = (0..cells.len()).map(|i| estimate(cells[i].0) * (repeat[i].saturating_sub(counts[i].0))).sum();
        if until.is_some_and(|until| Instant::now() + estimate(scenario) > until) {
            summary.left = all - finished;
            break;
        }
        let name = format!("{}: {cell}", scenario.name);
        progress.begins(&name, finished, all, left);
        let (origin, measured) = one(bench, scenario, cell, rng.random(), &about, progress).await?;
        match measured {
            Ok(measured) => {
                results.keep(cell, &origin, Ok(&measured))?;
                summary.finished += 1;
                progress.ended(&name, &in_short(&measured));
            }
            Err(error) => {
                let why = format!("{error:#}");
                results.keep(cell, &origin, Err(&why))?;
                summary.failed += 1;
                progress.ended(&name, &format!("FAILED: {why}"));
            }
        }
    }
    Ok(summary)
}

/// What is the same for all experiments of a run.
struct About {
    /// What each program says of itself, and when it was built.
    versions: Vec<(System, String)>,
    machine: String,
    commit: String,
}

fn versions(bench: &Bench, scenarios: &[(Scenario, String)]) -> Result<Vec<(System, String)>> {
    let mut versions = Vec::new();
    for &system in scenarios.iter().flat_map(|(scenario, _)| &scenario.cluster.systems) {
        if !versions.iter().any(|(known, _)| *known == system) {
            let built = machine::built(bench.binaries.of(system)?);
            versions.push((system, format!("{}, built {built}", bench.binaries.version(system)?)));
        }
    }
    Ok(versions)
}

/// One experiment: where it comes from, and what it measured or why it failed.
async fn one(
    bench: &Bench,
    scenario: &Scenario,
    cell: &Cell,
    seed: u64,
    about: &About,
    progress: &dyn Progress,
) -> Result<(Origin, Result<Measured>)> {
    let (began, since, load) = (SystemTime::now(), Instant::now(), machine::load());
    let measured = experiment::run(bench, scenario, cell, seed, &|phase, done| progress.phase(phase, done)).await;
    let version = about.versions.iter().find(|(system, _)| *system == cell.system).context("its version was asked")?;
    let origin = Origin {
        scenario: scenario.name.clone(),
        seed,
        began: machine::utc(began),
        seconds: since.elapsed().as_secs_f64(),
        version: version.1.clone(),
        source: about.commit.clone(),
        machine: about.machine.clone(),
        load,
    };
    Ok((origin, measured))
}

fn in_short(measured: &Measured) -> String {
    let metric = |name: &str| measured.metrics.iter().find(|(n, _, _)| n == name).map_or(f64::NAN, |m| m.2);
    format!(
        "{:.0} /s, p50 {:.2} ms, p99 {:.2} ms, {:.0} failed",
        metric("throughput"),
        metric("p50_ms"),
        metric("p99_ms"),
        metric("failed")
    )
}

/// About how long an experiment takes; at most, where it does so many operations.
pub fn estimate(scenario: &Scenario) -> Duration {
    AROUND + Duration::from_secs_f64(scenario.load.warmup_s + scenario.load.measure_s)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fewest_finished_go_next_and_what_keeps_failing_is_left() {
        let repeat = [3, 3, 3, 1];
        let none = [0; 4];
        assert_eq!(due(&[(0, 0), (0, 0), (0, 0), (0, 0)], &repeat, &none), [0, 1, 2, 3]);
        assert_eq!(due(&[(1, 0), (2, 0), (1, 0), (1, 0)], &repeat, &none), [0, 2]);
        // The third has failed twice in this run; the first failed twice in an earlier one and is tried again.
        assert_eq!(due(&[(1, 2), (2, 0), (1, 2), (1, 0)], &repeat, &[2, 0, 0, 0]), [0]);
        assert!(due(&[(3, 0), (3, 1), (4, 0), (1, 0)], &repeat, &none).is_empty());
    }
}
