//! Sends the same random requests to eddy and to a real etcd and compares every answer.
//!
//! `cargo test -p eddy-server --test differential`. Environment:
//! - `EDDY_BIN` (default: the eddy of this build)
//! - `EDDY_PEERS`: the folder that `tools/peers/build` filled
//! - `EDDY_DIFF_REQUESTS` (default 100000)
//! - `EDDY_DIFF_SEED` (default 1)
//! - `EDDY_DIFF_PAIRS`: pairs of servers at a time
//! - `EDDY_DIFF_FAILURES`: how many failures are shrunk before it stops
//! - `EDDY_DIFF_RESTARTED`: requests around restarts (default 2000)
//! - `EDDY_DIFF_ONLY=FILE`: replays one sequence and nothing else; `gateway`, `users`: the JSON gateway or users and roles alone

#[path = "../support/mod.rs"]
mod support;

mod gateway;
mod generate;
mod op;
mod pair;
mod requests;
mod seen;
mod session;
mod shrink;
mod streams;
mod tally;
mod ties;
mod users;

use std::{
    env,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::atomic::{AtomicU64, Ordering},
    time::Instant,
};

use anyhow::{Context, Result, bail};

use generate::Shape;
use op::Op;
use pair::{Binaries, Difference, Pair};
use seen::Seen;
use tally::Tally;

const DEFAULT_REQUESTS: u64 = 100_000;
/// Requests of the run in which both servers flush their writes to disk.
const DURABLE_REQUESTS: u64 = 3_000;
/// Requests of the run in which both servers are stopped and started again in the middle of sequences.
const RESTARTED_REQUESTS: u64 = 2_000;
/// Both servers say that they are here, so that they have the same ids; nobody connects to it.
const ADVERTISED: &[&str] = &[
    "--advertise-client-urls=http://127.0.0.1:2379",
    "--initial-advertise-peer-urls=http://127.0.0.1:2380",
    "--initial-cluster=default=http://127.0.0.1:2380",
];
const UNSAFE: &str = "--unsafe-no-fsync";

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            println!("error: {e:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<bool> {
    let binaries = binaries()?;
    println!("reference {}\nsubject   {}", binaries.reference.display(), binaries.subject.display());
    let only = env::var("EDDY_DIFF_ONLY").ok();
    if only.as_deref().is_none_or(|only| only == "gateway") {
        println!("JSON gateway: {} requests alike", gateway::compare(&binaries).await?);
    }
    if only.as_deref().is_none_or(|only| only == "users") {
        let seed = number("EDDY_DIFF_SEED", 1)?;
        println!("users and roles: {} calls alike", users::compare(&binaries, seed).await?);
    }
    if let Some(file) = only {
        if file == "gateway" || file == "users" {
            return Ok(true);
        }
        return replay_one(&binaries, Path::new(&file)).await;
    }
    let tally = Tally::default();
    check_that_differences_are_found(&binaries).await?;
    // Some of them kill the servers: only what was flushed may be missed then.
    replay_regressions(&Binaries { flags: ADVERTISED.to_vec(), ..binaries.clone() }, &tally).await?;
    let requests = number("EDDY_DIFF_REQUESTS", DEFAULT_REQUESTS)?;
    let pairs = number("EDDY_DIFF_PAIRS", std::thread::available_parallelism().map_or(2, |n| n.get() as u64 * 2))?;
    let seed = number("EDDY_DIFF_SEED", 1)?;
    let bulk = Bulk { tally: &tally, next: AtomicU64::new(seed), limit: number("EDDY_DIFF_FAILURES", 3)? };
    let start = Instant::now();
    bulk.run(&binaries, pairs, requests, None).await?;
    println!("random sequences: {} requests in {:.0?}", tally.requests(), start.elapsed());
    let durable = Binaries { flags: ADVERTISED.to_vec(), scratch: env::temp_dir(), ..binaries };
    bulk.run(&durable, pairs, tally.requests() + DURABLE_REQUESTS, None).await?;
    let restarted = number("EDDY_DIFF_RESTARTED", RESTARTED_REQUESTS)?;
    bulk.run(&durable, pairs, tally.requests() + restarted, Some(Shape::Restarts)).await?;
    println!("with durable writes and with restarts: {} requests in {:.0?}", tally.requests(), start.elapsed());
    Ok(tally.report())
}

fn number(name: &str, default: u64) -> Result<u64> {
    match env::var(name) {
        Ok(text) => text.parse().with_context(|| format!("{name}={text} is no number")),
        Err(_) => Ok(default),
    }
}

fn binaries() -> Result<Binaries> {
    let subject = env::var_os("EDDY_BIN").map_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_eddy")), PathBuf::from);
    let reference = support::peers()?.join("etcd");
    if !reference.exists() {
        bail!("there is no {}: build it with `tools/peers/build etcd`", reference.display());
    }
    // Both servers skip fsync in the bulk of the run; memory is a good place for their files.
    let memory = Path::new("/dev/shm");
    let scratch = if memory.is_dir() { memory.to_owned() } else { env::temp_dir() };
    Ok(Binaries { reference, subject, flags: [ADVERTISED, &[UNSAFE]].concat(), scratch })
}

/// A comparison that finds nothing proves nothing. With a falsified subject, here a second etcd, it must find the step.
/// It must also shrink the sequence to what is needed.
async fn check_that_differences_are_found(binaries: &Binaries) -> Result<()> {
    let twins = Binaries { subject: binaries.reference.clone(), ..binaries.clone() };
    let mut pair = Pair::start(&twins).await?;
    pair.sabotage(Some(|op, seen| {
        if let (Op::Range(_), Seen::Range(answer)) = (op, seen)
            && answer.kvs.iter().any(|kv| kv.version >= 2)
        {
            answer.count += 1;
        }
    }));
    for seed in 0.. {
        let ops = generate::sequence(seed, Shape::Store);
        pair.reset().await?;
        if pair.run(&ops).await.is_none() {
            continue;
        }
        let Some((short, _)) = shrink::shrink(&mut pair, &ops).await? else {
            bail!("the falsified sequence does not fail a second time");
        };
        // Two puts of one key and a read; a put may be split over a transaction.
        if short.len() > 3 || op::parse(&op::print(&short))? != short {
            bail!(
                "a falsified answer was shrunk to {} steps, or its text is wrong:\n{}",
                short.len(),
                op::print(&short)
            );
        }
        println!("self-check: a falsified answer was found and shrunk from {} to {} steps", ops.len(), short.len());
        return Ok(());
    }
    Ok(())
}

fn regressions() -> Result<Vec<(String, Vec<Op>)>> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/differential/regressions");
    let mut files: Vec<PathBuf> = std::fs::read_dir(dir)?.map(|f| f.map(|f| f.path())).collect::<Result<_, _>>()?;
    files.sort();
    let read = |file: PathBuf| {
        let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let ops = op::parse(&std::fs::read_to_string(&file)?).with_context(|| file.display().to_string())?;
        Ok((name, ops))
    };
    files.into_iter().map(read).collect()
}

async fn replay_regressions(binaries: &Binaries, tally: &Tally) -> Result<()> {
    let mut pair = Pair::start(binaries).await?;
    for (name, ops) in regressions()? {
        pair.reset().await?;
        let difference = pair.run(&ops).await;
        tally.sequence(&ops, difference.is_none());
        if let Some(difference) = difference {
            print_difference(&format!("regressions/{name}.txt"), &ops, &difference);
        }
    }
    Ok(())
}

async fn replay_one(binaries: &Binaries, file: &Path) -> Result<bool> {
    let ops = op::parse(&std::fs::read_to_string(file)?)?;
    let binaries = Binaries { flags: ADVERTISED.to_vec(), ..binaries.clone() };
    let difference = Pair::start(&binaries).await?.run(&ops).await;
    match &difference {
        Some(difference) => print_difference(&file.display().to_string(), &ops, difference),
        None => println!("no difference"),
    }
    Ok(difference.is_none())
}

fn print_difference(name: &str, ops: &[Op], difference: &Difference) {
    let Difference { step, reference, subject } = difference;
    let clip = |seen: &Seen| {
        let text = format!("{seen:#?}");
        if text.len() > 6000 { format!("{}...", text.chars().take(6000).collect::<String>()) } else { text }
    };
    println!("DIFFERENCE in {name}, step {}:", step + 1);
    println!("{}etcd: {}\neddy: {}", op::print(ops), clip(reference), clip(subject));
}

/// Random sequences on several pairs of servers at a time.
struct Bulk<'a> {
    tally: &'a Tally,
    next: AtomicU64,
    /// How many failures are worth shrinking before the run ends.
    limit: u64,
}

impl Bulk<'_> {
    async fn run(&self, binaries: &Binaries, pairs: u64, requests: u64, shape: Option<Shape>) -> Result<()> {
        let workers = (0..pairs).map(|_| self.worker(binaries, requests, shape));
        futures::future::try_join_all(workers).await.map(drop)
    }

    async fn worker(&self, binaries: &Binaries, requests: u64, shape: Option<Shape>) -> Result<()> {
        let mut pair = Pair::start(binaries).await?;
        while self.tally.requests() < requests && self.tally.failed() < self.limit {
            let seed = self.next.fetch_add(1, Ordering::Relaxed);
            let shape = shape.unwrap_or_else(|| Shape::of(seed));
            let ops = generate::sequence(seed, shape);
            pair.reset().await?;
            let difference = pair.run(&ops).await;
            self.tally.sequence(&ops, difference.is_none());
            if let Some(difference) = difference {
                match shrink::shrink(&mut pair, &ops).await? {
                    Some((short, difference)) => print_difference(&format!("seed {seed}, shrunk"), &short, &difference),
                    None => print_difference(&format!("seed {seed}, not seen a second time"), &ops, &difference),
                }
            }
        }
        Ok(())
    }
}
