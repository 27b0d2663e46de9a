//! `lab run` measures scenarios, `lab report` draws what was measured, `lab draw` what others measured.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};
use eddy_bench::experiment::Bench;
use eddy_bench::lab::{self, Progress, estimate};
use eddy_bench::report;
use eddy_bench::results::Results;
use eddy_bench::scenario::Scenario;
use eddy_bench::target::Places;
use eddy_bench::target::binaries::Binaries;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

/// Measures eddy beside a real etcd on this machine.
#[derive(Parser)]
#[command(name = "lab", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs what is missing of the scenarios; an interrupted run goes on where it was.
    Run(Run),
    /// Writes report.md, report.html and the figures.
    Report {
        /// What `lab run` has written.
        #[arg(long, default_value = "target/lab/results.db")]
        results: PathBuf,
        /// Folder for the report.
        #[arg(long, default_value = "target/lab/report")]
        out: PathBuf,
    },
    /// Draws what another program measured, as `kubernetes/run deploy --points` writes it.
    Draw {
        /// JSON: `{"x": "words", "figures": [{"y": "words", "lines": {"eddy": [[x, y], ...], ...}}]}`.
        points: PathBuf,
        /// The figures become `OUT-0.svg` and so on.
        #[arg(long)]
        out: String,
    },
    /// Stands between a kube-apiserver and its store, and writes down what is asked: a trace for `kind = "replay"`.
    Record(Record),
}

#[derive(clap::Args)]
struct Record {
    /// Address and port for the kube-apiserver.
    #[arg(long)]
    listen: String,
    /// Address and port of the store.
    #[arg(long)]
    upstream: String,
    /// The trace.
    #[arg(long)]
    out: PathBuf,
}

#[derive(clap::Args)]
struct Run {
    /// Scenario files, as in crates/bench/scenarios.
    #[arg(required = true)]
    scenarios: Vec<PathBuf>,
    /// SQLite file for the results; made when it is not there.
    #[arg(long, default_value = "target/lab/results.db")]
    results: PathBuf,
    /// Minutes after which no further experiment is started.
    #[arg(long)]
    time_budget: Option<f64>,
    /// eddy's program; default: EDDY_BIN, beside this program, target/release.
    #[arg(long)]
    eddy: Option<PathBuf>,
    /// etcd's program; default: ETCD_BIN, PATH, the folder of tools/peers/build.
    #[arg(long)]
    etcd: Option<PathBuf>,
    /// Folder on a real disk for data dirs.
    #[arg(long, default_value = "target/lab/data")]
    dir: PathBuf,
    /// Folder in memory for data dirs.
    #[arg(long, default_value = "/dev/shm")]
    tmpfs: PathBuf,
    /// Experiments for each setting, whatever the scenarios say.
    #[arg(long)]
    repeat: Option<u32>,
    /// Says what would run, and how long it would take, and ends.
    #[arg(long)]
    dry_run: bool,
}

#[tokio::main]
async fn main() -> Result<()> {
    match Arguments::parse().command {
        Command::Run(run) => {
            // A stop ends the run where it is: dropped clusters are killed, and what is finished is in the file.
            let mut term = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
            tokio::select! {
                ended = run.run() => ended,
                _ = tokio::signal::ctrl_c() => bail!("interrupted; the same command goes on from here"),
                _ = term.recv() => bail!("terminated; the same command goes on from here"),
            }
        }
        Command::Record(Record { listen, upstream, out }) => tokio::select! {
            ended = eddy_bench::record::run(&listen, &upstream, &out) => ended,
            stopped = tokio::signal::ctrl_c() => Ok(stopped?),
        },
        Command::Draw { points, out } => {
            let text = std::fs::read_to_string(&points).with_context(|| points.display().to_string())?;
            for (n, svg) in report::given::draw(&text)?.iter().enumerate() {
                let file = format!("{out}-{n}.svg");
                std::fs::write(&file, svg).with_context(|| file.clone())?;
                println!("{file}");
            }
            Ok(())
        }
        Command::Report { results, out } => {
            if !results.is_file() {
                bail!("{} is not there: `lab run` makes it", results.display());
            }
            report::write(&Results::open(&results)?, &out)?;
            println!("{}", out.join("report.html").display());
            Ok(())
        }
    }
}

impl Run {
    async fn run(self) -> Result<()> {
        let mut scenarios = Vec::new();
        for path in &self.scenarios {
            let (mut scenario, text) = Scenario::load(path)?;
            scenario.repeat = self.repeat.unwrap_or(scenario.repeat);
            scenarios.push((scenario, text));
        }
        if self.dry_run {
            let mut sum = Duration::ZERO;
            for (scenario, _) in &scenarios {
                let (cells, each) = (scenario.cells(), estimate(scenario));
                let all = each * scenario.repeat * u32::try_from(cells.len())?;
                sum += all;
                println!(
                    "{}: {} settings x {}, about {:.1} min",
                    scenario.name,
                    cells.len(),
                    scenario.repeat,
                    minutes(all)
                );
                cells.iter().for_each(|cell| println!("  {cell}"));
            }
            println!("about {:.0} min in all", minutes(sum));
            return Ok(());
        }
        let bench = Bench {
            binaries: Binaries::find(self.eddy, self.etcd),
            places: Places { real: self.dir, tmpfs: self.tmpfs },
        };
        if let Some(folder) = self.results.parent() {
            std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        }
        let mut results = Results::open(&self.results)?;
        let until = self.time_budget.map(|m| Instant::now() + Duration::from_secs_f64(m.max(0.0) * 60.0));
        let display = Display::new();
        let summary = lab::run(&bench, &scenarios, &mut results, until, &display).await?;
        display.all.clear()?;
        println!("{} experiments finished, {} failed", summary.finished, summary.failed);
        if summary.left > 0 {
            println!("{} are left; the same command goes on from here", summary.left);
        }
        println!("lab report --results {}", self.results.display());
        if summary.failed > 0 {
            bail!("{} experiments failed; the report says why", summary.failed);
        }
        Ok(())
    }
}

fn minutes(time: Duration) -> f64 {
    time.as_secs_f64() / 60.0
}

/// Bars on a terminal; elsewhere a line for each experiment.
struct Display {
    all: MultiProgress,
    experiments: ProgressBar,
    current: ProgressBar,
}

impl Display {
    fn new() -> Self {
        let all = MultiProgress::new();
        let bar = ProgressStyle::with_template("{bar:40} {pos}/{len} experiments, {msg}");
        let spinner = ProgressStyle::with_template("{spinner} {prefix}: {msg}");
        let experiments = all.add(ProgressBar::new(0).with_style(bar.unwrap_or_else(|_| ProgressStyle::default_bar())));
        let current = all
            .add(ProgressBar::new_spinner().with_style(spinner.unwrap_or_else(|_| ProgressStyle::default_spinner())));
        Self { all, experiments, current }
    }
}

impl Progress for Display {
    fn begins(&self, name: &str, finished: u64, all: u64, left: Duration) {
        self.experiments.set_length(all);
        self.experiments.set_position(finished);
        self.experiments.set_message(format!("about {:.0} min left", minutes(left).ceil()));
        self.current.set_prefix(name.to_owned());
        self.current.enable_steady_tick(Duration::from_millis(200));
    }

    fn phase(&self, phase: &str, done: Option<u64>) {
        self.current.set_message(match done {
            Some(done) => format!("{phase}, {done} operations"),
            None => phase.to_owned(),
        });
    }

    fn ended(&self, name: &str, summary: &str) {
        let line = format!("{name}: {summary}");
        if self.experiments.is_hidden() {
            println!("{line}");
        } else if let Err(error) = self.all.println(&line) {
            eprintln!("{line} ({error})");
        }
    }
}
