//! The report: for each scenario of a file of results its figures, its table, and what may be concluded.

pub mod document;
pub mod figures;
pub mod given;
pub mod svg;

use std::path::Path;

use anyhow::{Context, Result};

use crate::results::{Experiment, Results};
use crate::scenario::{Cell, Scenario, System};
use crate::stats::{Verdict, compare, median};
use document::Block;
use svg::number;

/// Columns of the table: metric, words, and whether all runs have it.
const COLUMNS: [(&str, &str); 12] = [
    ("throughput", "done /s"),
    ("p50_ms", "p50 ms"),
    ("p99_ms", "p99 ms"),
    ("p999_ms", "p99.9 ms"),
    ("failed", "failed"),
    ("cpu_us_per_op", "CPU µs/op"),
    ("cpu_us_per_remote_entry", "CPU µs/remote entry"),
    ("rss_mib", "RSS MiB"),
    ("written_bytes_per_op", "disk B/op"),
    ("fsyncs_per_op", "flushes/op"),
    ("peer_bytes_per_op", "peer B/op"),
    ("catch_up_ms", "catch-up ms"),
];
/// What is compared, and what it is called.
const COMPARED: [(&str, &str); 3] = [("throughput", "done /s"), ("p50_ms", "p50"), ("p99_ms", "p99")];

/// The experiments of one cell.
pub struct Group<'a> {
    /// What was fixed.
    pub cell: Cell,
    /// All with measurements.
    pub experiments: Vec<&'a Experiment>,
}

impl Group<'_> {
    /// A metric in each experiment.
    pub fn values(&self, metric: &str) -> Vec<f64> {
        self.experiments.iter().filter_map(|e| e.metric(metric)).collect()
    }
}

/// Experiments by cell, in the order of the scenario.
pub fn groups<'a>(scenario: &Scenario, experiments: &'a [Experiment]) -> Vec<Group<'a>> {
    let all = scenario.cells().into_iter().map(|cell| {
        let experiments = experiments.iter().filter(|e| e.cell == cell).collect();
        Group { cell, experiments }
    });
    all.filter(|group| !group.experiments.is_empty()).collect()
}

/// Writes `report.md`, `report.html` and the figures into a folder.
///
/// # Errors
/// When results cannot be read or the folder not be written.
pub fn write(results: &Results, folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let blocks = blocks(results)?;
    for block in &blocks {
        if let Block::Figure { file, svg, .. } = block {
            std::fs::write(folder.join(file), svg).with_context(|| file.clone())?;
        }
    }
    std::fs::write(folder.join("report.md"), document::markdown(&blocks))?;
    std::fs::write(folder.join("report.html"), document::html("eddy beside etcd", &blocks))?;
    Ok(())
}

fn blocks(results: &Results) -> Result<Vec<Block>> {
    let mut sections = Vec::new();
    let mut origins: Vec<String> = Vec::new();
    let mut loads = Vec::new();
    for (name, text) in results.scenarios()? {
        let scenario = Scenario::parse(&name, &text).with_context(|| format!("the kept scenario {name}"))?;
        let experiments = results.experiments(&name)?;
        for experiment in &experiments {
            let origin = &experiment.origin;
            let source = match origin.source.strip_suffix('+') {
                Some(commit) => format!(", lab at {commit} with uncommitted changes"),
                None if origin.source.is_empty() => String::new(),
                None => format!(", lab at {}", origin.source),
            };
            let line = format!("{} on {}{source}", origin.version, origin.machine);
            if !origins.contains(&line) {
                origins.push(line);
            }
            loads.push((origin.began.clone(), origin.load));
        }
        sections.extend(section(&scenario, &experiments, &results.failures(&name)?));
    }
    let mut blocks = vec![
        Block::Heading(1, "eddy beside etcd".to_owned()),
        Block::Text(
            "Both run on one machine, with the load generator on the same cores, in random order within one run. Figures \
             are medians of the experiments; lines and bars carry the least and the most. Differences are tested with \
             Kruskal and Wallis' test; where chance explains one (p of 0.05 or more) it says \"no difference\"."
                .to_owned(),
        ),
    ];
    if let (Some(first), Some(last)) =
        (loads.iter().min_by(|a, b| a.0.cmp(&b.0)), loads.iter().max_by(|a, b| a.0.cmp(&b.0)))
    {
        let values: Vec<_> = loads.iter().map(|(_, load)| *load).collect();
        origins.push(format!(
            "{} experiments from {} to {} UTC; the machine's load average before them was {} (median; most {}). The \
             experiment before is a part of it; where it is far above the number of cores, others used the machine, too.",
            loads.len(),
            first.0,
            last.0,
            number(median(&values).unwrap_or(f64::NAN)),
            number(values.iter().copied().fold(0.0, f64::max)),
        ));
    }
    blocks.push(Block::List(origins));
    blocks.extend(sections);
    Ok(blocks)
}

fn section(scenario: &Scenario, experiments: &[Experiment], failures: &[(Cell, String)]) -> Vec<Block> {
    let mut blocks = vec![Block::Heading(2, scenario.name.clone()), Block::Text(scenario.about.clone())];
    let groups = groups(scenario, experiments);
    if groups.is_empty() {
        blocks.push(Block::Text("There are no finished experiments yet.".to_owned()));
    } else {
        blocks.extend(figures::draw(scenario, &groups));
        blocks.push(table(&groups));
        blocks.extend(latencies(&groups));
        blocks.extend(comparisons(&groups));
    }
    let missing = scenario.cells().len() - groups.len();
    if missing > 0 && !groups.is_empty() {
        blocks.push(Block::Text(format!("{missing} of {} settings have no measurement.", scenario.cells().len())));
    }
    if !failures.is_empty() {
        let items = failures.iter().map(|(cell, why)| format!("failed: {cell}: {}", why.replace('\n', " ")));
        blocks.push(Block::List(items.collect()));
    }
    blocks
}

fn table(groups: &[Group]) -> Block {
    let columns: Vec<_> =
        COLUMNS.iter().filter(|(metric, _)| groups.iter().any(|g| !g.values(metric).is_empty())).collect();
    let mut head = vec!["setting".to_owned(), "runs".to_owned()];
    head.extend(columns.iter().map(|(_, words)| (*words).to_owned()));
    let rows = groups.iter().map(|group| {
        let mut row = vec![group.cell.to_string(), group.experiments.len().to_string()];
        row.extend(columns.iter().map(|(metric, _)| number(median(&group.values(metric)).unwrap_or(f64::NAN))));
        row
    });
    Block::Table(head, rows.collect())
}

/// Latencies by operation, where there is more to say than the table of all does.
fn latencies(groups: &[Group]) -> Option<Block> {
    let mut operations: Vec<&str> = Vec::new();
    for (operation, _) in groups.iter().flat_map(|g| &g.experiments).flat_map(|e| &e.measured.latencies) {
        if !operations.contains(&operation.as_str()) {
            operations.push(operation);
        }
    }
    if operations.len() < 2 {
        return None;
    }
    let head = ["setting", "what", "p50 ms", "p99 ms", "p99.9 ms", "most ms"].map(str::to_owned).to_vec();
    let mut rows = Vec::new();
    for group in groups {
        for operation in &operations {
            let value = |name: &str| median(&group.values(&format!("{name} {operation}")));
            if let Some(p50) = value("p50_ms") {
                let mut row = vec![group.cell.to_string(), (*operation).to_owned(), number(p50)];
                row.extend(["p99_ms", "p999_ms", "max_ms"].map(|name| number(value(name).unwrap_or(f64::NAN))));
                rows.push(row);
            }
        }
    }
    Some(Block::Table(head, rows))
}

/// The group of the other program with the same setting.
fn partner<'a>(groups: &'a [Group<'a>], of: &Group) -> Option<&'a Group<'a>> {
    groups.iter().find(|group| group.cell == of.cell.of(System::Etcd))
}

fn comparisons(groups: &[Group]) -> Option<Block> {
    let mut items = Vec::new();
    for eddy in groups.iter().filter(|group| group.cell.system == System::Eddy) {
        let Some(etcd) = partner(groups, eddy) else { continue };
        let said =
            COMPARED.map(|(metric, words)| format!("{words} {}", verdict(&eddy.values(metric), &etcd.values(metric))));
        let setting = eddy.cell.to_string();
        items.push(format!("{}: {}", setting.strip_prefix("eddy ").unwrap_or(&setting), said.join("; ")));
    }
    (!items.is_empty()).then_some(Block::List(items))
}

/// What the comparison of eddy's values with etcd's comes to, in words.
pub fn verdict(eddy: &[f64], etcd: &[f64]) -> String {
    match compare(eddy, etcd) {
        Verdict::TooFew => match (median(eddy), median(etcd)) {
            (Some(a), Some(b)) if b != 0.0 => format!("{} x etcd's (too few runs to test)", number(a / b)),
            _ => "too few runs".to_owned(),
        },
        Verdict::NoDifference { p } => format!("no difference (p = {})", number(p)),
        Verdict::Times { ratio, p } => format!("{} x etcd's (p = {})", number(ratio), number(p)),
    }
}

#[cfg(test)]
mod tests;
