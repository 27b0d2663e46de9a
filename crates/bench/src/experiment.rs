//! One experiment: starts a cluster, loads it, counts what it used, and stops it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use hdrhistogram::Histogram;

use crate::load::open::{self, START_LAG};
use crate::load::recorder::{Recorder, STEP};
use crate::load::replay::Trace;
use crate::load::watchers::Watchers;
use crate::load::workload::Workload;
use crate::load::{Ends, closed, fill};
use crate::results::Measured;
use crate::scenario::{Addressed, Cell, LoadKind, LoadSpec, Scenario};
use crate::target::binaries::Binaries;
use crate::target::{Cluster, Places, Usage};

/// How long the nodes may take, after the load, to show each other's last writes.
const CATCH_UP: Duration = Duration::from_secs(120);
/// How often the nodes are checked to be running.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// The prefix that watchers watch during a replay; workloads have prefixes of their own.
const REPLAYED: &str = "/registry/";

/// Reads one resource that a node uses.
type Part = fn(&Usage) -> f64;

/// What experiments need from outside.
#[derive(Clone, Debug)]
pub struct Bench {
    /// The programs.
    pub binaries: Binaries,
    /// Where data dirs go.
    pub places: Places,
}

/// Runs the experiment of a cell. `progress` is told of each phase, and of the operations so far.
///
/// # Errors
/// When the cluster does not come up, a node ends, or no operation succeeds.
pub async fn run(
    bench: &Bench,
    scenario: &Scenario,
    cell: &Cell,
    seed: u64,
    progress: &(dyn Fn(&str, Option<u64>) + Sync),
) -> Result<Measured> {
    let load = &scenario.load;
    progress("starting", None);
    let mut cluster = Cluster::start(&bench.binaries, &bench.places, cell, scenario, seed).await?;
    let addresses: Vec<_> = cluster.nodes.iter().map(|node| node.address.clone()).collect();
    let addressed = match load.addressed {
        Addressed::All => cell.nodes,
        Addressed::One => 1,
    };
    let numbered: Vec<_> = addresses.iter().cloned().enumerate().take(addressed).collect();
    let drive = Drive::new(scenario, cell, Ends::connect(&numbered, load.connections, &cluster.transport)?, seed);
    if load.mix.range + load.mix.serializable > 0.0 {
        progress("filling", None);
        fill(&drive.ends, &drive.workload, load.keys, drive.timeout).await?;
        settle(&mut cluster, addressed, "filled").await?;
    }
    let prefix = if load.kind == LoadKind::Replay { REPLAYED } else { drive.workload.prefix() };
    let watchers = match cell.watchers {
        0 => None,
        count => Some(Watchers::start(&addresses, &cluster.transport, count, prefix, &drive.recorder).await?),
    };
    // The trace is read, and the watches stand, before the clock starts.
    let trace = load.trace.as_ref().map(|path| Trace::load(&PathBuf::from(path))).transpose()?;
    let requests_per_round = trace.as_ref().map(Trace::len);
    // Asked at rest: under load a node's answer comes long after the question.
    let before = cluster.usage().await?;
    drive.recorder.begin();
    tokio::select! {
        driven = drive.run(trace) => driven?,
        failed = watch_over(&mut cluster, scenario, &drive.recorder, progress) => failed?,
    }
    // A load of so many operations may end earlier than it must.
    let measured_s = match load.operations {
        Some(_) => drive.recorder.epoch().elapsed().as_secs_f64().min(load.measure_s),
        None => load.measure_s,
    };

    progress("catching up", None);
    let cut_at_end = scenario.network.events.last().is_some_and(|event| !event.heal);
    let catch_up = if cut_at_end { None } else { settle(&mut cluster, addressed, "end").await? };
    let after = cluster.usage().await?;
    drop(watchers);
    let used = Used { before: &before, after: &after, during: drive.recorder.epoch().elapsed() };
    let mut measured = assess(&drive.recorder, measured_s, used, addressed)?;
    if let Some(took) = catch_up {
        measured.metrics.push(("catch_up_ms".to_owned(), None, took.as_secs_f64() * 1000.0));
    } else if !cut_at_end {
        bail!("after {} s some node still lacks what was written", CATCH_UP.as_secs());
    }
    if let Some(requests) = requests_per_round {
        measured.metrics.push(("requests_per_round".to_owned(), None, requests as f64));
    }
    Ok(measured)
}

/// What drives the load of an experiment.
struct Drive<'a> {
    load: &'a LoadSpec,
    cell: &'a Cell,
    ends: Ends,
    workload: Arc<Workload>,
    recorder: Arc<Recorder>,
    /// When the load ends, counted from its begin.
    until: Duration,
    timeout: Duration,
    seed: u64,
}

impl<'a> Drive<'a> {
    fn new(scenario: &'a Scenario, cell: &'a Cell, ends: Ends, seed: u64) -> Self {
        let load = &scenario.load;
        let from = Duration::from_secs_f64(load.warmup_s);
        let until = Duration::from_secs_f64(load.warmup_s + load.measure_s);
        Self {
            load,
            cell,
            ends,
            workload: Arc::new(Workload::new(load)),
            recorder: Arc::new(Recorder::new(from, until, cell.nodes)),
            until,
            timeout: Duration::from_millis(load.timeout_ms),
            seed,
        }
    }

    /// Loads the cluster until the end of the measurement.
    async fn run(&self, trace: Option<Trace>) -> Result<()> {
        let Self { load, cell, ends, workload, recorder, until, timeout, seed } = self;
        let clients = ends.count();
        match (load.kind, trace) {
            (LoadKind::Closed, _) => {
                closed::run(ends, workload, recorder, cell.clients, load.operations, *timeout, *seed).await
            }
            (LoadKind::Open, _) => {
                let moments = open::schedule(cell.rate, load.arrivals, *until, *seed);
                open::run(ends, open::drawn(moments, workload, clients, *seed), recorder, *timeout).await
            }
            (LoadKind::Replay, Some(trace)) => {
                open::run(ends, trace.play(cell.rate, clients, *until), recorder, *timeout).await
            }
            (LoadKind::Replay, None) => bail!("the scenario has no trace"),
        }
    }
}

/// Waits until all nodes show what was written at the addressed nodes; `None` when that takes too long. Returns how long it
/// took, the writing of the marks included: that waits for the node's earlier work.
async fn settle(cluster: &mut Cluster, addressed: usize, mark: &str) -> Result<Option<Duration>> {
    let since = Instant::now();
    let writers: Vec<_> = (0..addressed).collect();
    cluster.mark(&writers, mark).await?;
    Ok(cluster.wait_for(&writers, mark, CATCH_UP).await?.then(|| since.elapsed()))
}

/// While load runs: checks the nodes, lets events happen, tells the progress. Ends only when a node does.
async fn watch_over(
    cluster: &mut Cluster,
    scenario: &Scenario,
    recorder: &Recorder,
    progress: &(dyn Fn(&str, Option<u64>) + Sync),
) -> Result<()> {
    let begin = recorder.epoch() + Duration::from_secs_f64(scenario.load.warmup_s);
    progress("warming up", None);
    tokio::time::sleep_until(begin.into()).await;
    let mut events: Vec<_> = scenario.network.events.iter().collect();
    events.sort_by(|a, b| b.at_s.total_cmp(&a.at_s));
    while Instant::now() < recorder.end() {
        cluster.check()?;
        let next = events.last().map(|event| begin + Duration::from_secs_f64(event.at_s));
        if let Some(event) = events.pop_if(|event| Instant::now() >= begin + Duration::from_secs_f64(event.at_s)) {
            cluster.happen(event);
            continue;
        }
        progress("measuring", Some(recorder.so_far()));
        let until = (Instant::now() + LOOK_EVERY).min(recorder.end());
        tokio::time::sleep_until(next.map_or(until, |next| next.min(until)).into()).await;
    }
    // What was begun is waited for.
    loop {
        cluster.check()?;
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// What the nodes had used before the load, and after all nodes showed its writes.
struct Used<'a> {
    before: &'a [Usage],
    after: &'a [Usage],
    /// The time between the two.
    during: Duration,
}

/// A metric: name, node (none: of all together), value.
type Metric = (String, Option<usize>, f64);

fn assess(recorder: &Recorder, measure_s: f64, used: Used, addressed: usize) -> Result<Measured> {
    let mut recorded = recorder.take();
    if recorded.completed == 0 {
        bail!("no operation succeeded: {}", recorded.first_error.unwrap_or_else(|| "none was due".to_owned()));
    }
    let steps = (measure_s / STEP.as_secs_f64()).ceil() as usize;
    recorded.steps.iter_mut().for_each(|of_node| of_node.truncate(steps));
    let mut metrics = vec![
        ("throughput".to_owned(), None, recorded.completed as f64 / measure_s),
        ("failed".to_owned(), None, recorded.failed as f64),
        ("refused".to_owned(), None, recorded.refused as f64),
    ];
    for (operation, latencies) in &recorded.latencies {
        metrics.extend(percentiles(latencies, &format!(" {operation}")));
    }
    // The latencies of all operations of clients together.
    let mut together: Option<Histogram<u64>> = None;
    for (operation, latencies) in &recorded.latencies {
        if *operation != START_LAG && !operation.starts_with("seen at") {
            match &mut together {
                Some(sum) => sum.add(latencies).context("histograms of equal bounds")?,
                None => together = Some(latencies.clone()),
            }
        }
    }
    metrics.extend(together.iter().flat_map(|latencies| percentiles(latencies, "")));
    metrics.extend(used.metrics(recorded.answered as f64, addressed));
    let latencies = recorded.latencies.into_iter().map(|(name, histogram)| (name.to_owned(), histogram)).collect();
    Ok(Measured { metrics, latencies, steps: recorded.steps })
}

/// Percentiles and mean, milliseconds; `suffix` ends their names.
fn percentiles(latencies: &Histogram<u64>, suffix: &str) -> Vec<Metric> {
    let metric = |name: &str, us: f64| (format!("{name}_ms{suffix}"), None, us / 1000.0);
    [("p50", 0.5), ("p99", 0.99), ("p999", 0.999), ("max", 1.0)]
        .map(|(name, q)| metric(name, latencies.value_at_quantile(q) as f64))
        .into_iter()
        .chain([metric("mean", latencies.mean())])
        .collect()
}

impl Used<'_> {
    /// What each node used of one thing.
    fn by_node(&self, of: Part) -> Vec<f64> {
        self.before.iter().zip(self.after).map(|(before, after)| of(after) - of(before)).collect()
    }

    fn sum(&self, of: Part) -> f64 {
        self.by_node(of).iter().sum()
    }

    /// What was used for each answered operation, and by each node. Clients talked to the first `addressed` nodes.
    fn metrics(&self, answered: f64, addressed: usize) -> Vec<Metric> {
        let rss_mib = self.after.iter().map(|u| u.rss_bytes).fold(0.0, f64::max) / 1_048_576.0;
        let mut metrics: Vec<Metric> = [
            ("cpu_us_per_op", self.sum(|u| u.cpu_s) * 1e6 / answered),
            ("written_bytes_per_op", self.sum(|u| u.written_bytes) / answered),
            ("fsyncs_per_op", self.sum(|u| u.fsyncs) / answered),
            ("peer_bytes_per_op", self.sum(|u| u.peer_bytes) / answered),
            ("peer_bytes_per_s", self.sum(|u| u.peer_bytes) / self.during.as_secs_f64()),
            ("rss_mib", rss_mib),
        ]
        .map(|(name, value)| (name.to_owned(), None, value))
        .into();
        // What a write of another node costs a node without clients.
        let idle = addressed..self.after.len();
        let entries: f64 = self.by_node(|u| u.remote_entries)[idle.clone()].iter().sum();
        if !idle.is_empty() && entries > 0.0 {
            let cpu: f64 = self.by_node(|u| u.cpu_s)[idle].iter().sum();
            metrics.push(("cpu_us_per_remote_entry".to_owned(), None, cpu * 1e6 / entries));
        }
        let per_node: [(&str, Part); 5] = [
            ("cpu_s", |u| u.cpu_s),
            ("written_bytes", |u| u.written_bytes),
            ("fsyncs", |u| u.fsyncs),
            ("peer_bytes", |u| u.peer_bytes),
            ("remote_entries", |u| u.remote_entries),
        ];
        for (name, of) in per_node {
            let values = self.by_node(of).into_iter().enumerate();
            metrics.extend(values.map(|(node, value)| (name.to_owned(), Some(node), value)));
        }
        let rss = self.after.iter().enumerate();
        metrics.extend(rss.map(|(node, u)| ("rss_bytes".to_owned(), Some(node), u.rss_bytes)));
        metrics
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::recorder::Ended;

    #[test]
    fn what_was_used_is_divided_by_what_was_done() -> Result<()> {
        let recorder = Recorder::new(Duration::ZERO, Duration::from_secs(2), 2);
        for _ in 0..100 {
            let due = recorder.epoch();
            recorder.record(0, "put", due, due + Duration::from_millis(3), Ended::Done);
        }
        let usage = |cpu_s, remote_entries| Usage { cpu_s, remote_entries, fsyncs: cpu_s * 10.0, ..Usage::default() };
        let (before, after) = ([usage(1.0, 0.0), usage(5.0, 7.0)], [usage(1.5, 0.0), usage(5.25, 107.0)]);
        let used = Used { before: &before, after: &after, during: Duration::from_secs(4) };
        let measured = assess(&recorder, 2.0, used, 1)?;
        let metric = |name: &str, of| {
            measured.metrics.iter().find(|(n, node, _)| n == name && *node == of).map(|(_, _, value)| *value)
        };
        assert_eq!(metric("throughput", None), Some(50.0));
        assert_eq!(metric("cpu_us_per_op", None), Some(7_500.0));
        assert_eq!(metric("fsyncs_per_op", None), Some(0.075));
        assert_eq!(metric("cpu_us_per_remote_entry", None), Some(2_500.0));
        assert_eq!(metric("cpu_s", Some(1)), Some(0.25));
        assert!(metric("p99_ms", None).is_some_and(|p99| (2.99..3.01).contains(&p99)));
        Ok(())
    }

    #[test]
    fn an_experiment_without_success_is_none() {
        let recorder = Recorder::new(Duration::ZERO, Duration::from_secs(1), 1);
        recorder.record(0, "put", recorder.epoch(), recorder.epoch(), Ended::Failed("no leader".into()));
        let usage = [Usage::default()];
        let used = Used { before: &usage, after: &usage, during: Duration::from_secs(1) };
        let error = assess(&recorder, 1.0, used, 1).expect_err("nothing").to_string();
        assert!(error.contains("no leader"), "{error}");
    }
}
