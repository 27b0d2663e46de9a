//! Kills the real binary with SIGKILL at random moments under load, and restarts it on the same data dir. Compares it
//! with all that clients were told.
//!
//! `EDDY_CRASH_ROUNDS` (default 20) lives, `EDDY_CRASH_SEED` (default: drawn from the clock, printed), `EDDY_BIN`.

#[path = "../support/mod.rs"]
mod support;

mod calls;
mod load;
mod model;

use std::{env, path::PathBuf, time::Duration};

use anyhow::{Context, Result};
use rand::{Rng, SeedableRng, rngs::SmallRng};

use load::{Notes, Writer};
use model::Model;
use support::Server;

const DEFAULT_ROUNDS: u64 = 20;
const WRITERS: usize = 8;
const WATCHERS: usize = 3;
/// A log of so many bytes is due for a checkpoint.
const SMALL_LOG: u64 = 100_000;
/// Longest time under load before the kill, in milliseconds.
const MAX_LOAD: u64 = 250;
/// Longest time between a start and a kill that does not wait for the server to be ready, in milliseconds.
const MAX_START: u64 = 60;

fn number(name: &str) -> Result<Option<u64>> {
    env::var(name).ok().map(|n| n.parse().with_context(|| format!("{name}={n} is no number"))).transpose()
}

fn binary() -> PathBuf {
    env::var_os("EDDY_BIN").map_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_eddy")), PathBuf::from)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_writes_survive_kill_9() -> Result<()> {
    let binary = binary();
    let rounds = number("EDDY_CRASH_ROUNDS")?.unwrap_or(DEFAULT_ROUNDS);
    let drawn = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_secs();
    let seed = number("EDDY_CRASH_SEED")?.unwrap_or(drawn);
    println!("EDDY_CRASH_SEED={seed}");
    let mut rng = SmallRng::seed_from_u64(seed);
    let dir = tempfile::Builder::new().prefix("eddy-crash-").tempdir()?;
    let data = dir.path().join("data");
    let mut model = Model::new(WATCHERS);

    for round in 0..rounds {
        if rng.random_ratio(1, 5) {
            let after = Duration::from_millis(rng.random_range(0..MAX_START));
            Server::start_and_kill(&binary, &data, after)
                .await
                .with_context(|| format!("start before round {round}"))?;
        }
        // In most lives checkpoints come all the time.
        let small_log = [("EDDY_FAULT_LOG_BYTES", SMALL_LOG.to_string())];
        let env = if round % 4 == 3 { &[][..] } else { &small_log };
        let mut server =
            Server::start_with(&binary, &data, &[], env).await.with_context(|| format!("round {round}"))?;
        let notes = Notes::new(WATCHERS);
        let mut tasks = Vec::new();
        let shares = load::share(&model.leases(), WRITERS);
        for n in 0..WRITERS {
            let channel = server.connect().await?;
            let mut writer = Writer::new(format!("r{round}w{n}"), rng.random(), notes.clone(), channel);
            writer.leases = shares.get(&n).cloned().unwrap_or_default();
            tasks.push(tokio::spawn(writer.run()));
        }
        for (n, last) in model.resume.iter().enumerate() {
            tasks.push(tokio::spawn(load::watcher(n, *last, notes.clone(), server.connect().await?)));
        }
        let needed = model.resume.iter().copied().min().unwrap_or(0);
        let (channel, rng_of_compactor) = (server.connect().await?, SmallRng::seed_from_u64(rng.random()));
        let compactor = tokio::spawn(load::compactor(needed, notes.clone(), channel, rng_of_compactor));

        tokio::time::sleep(Duration::from_millis(rng.random_range(0..MAX_LOAD))).await;
        server.kill()?;
        futures::future::try_join_all(tasks).await.context("a client panicked")?;
        compactor.abort(); // it may be waiting for something to compact

        let server = Server::start(&binary, &data, &[]).await.with_context(|| format!("after round {round}"))?;
        let checked = model.check(&server.connect().await?, notes.take()).await;
        checked.with_context(|| format!("round {round} of EDDY_CRASH_SEED={seed}"))?;
    }
    let count = model.get(model::COUNTER).map(|kv| String::from_utf8_lossy(&kv.value).into_owned());
    println!(
        "{rounds} kills, {} acknowledged writes checked, {} revisions compared, last revision {}, counter {}",
        model.checked_acks,
        model.checked_events,
        model.revision(),
        count.unwrap_or_default()
    );
    anyhow::ensure!(model.checked_acks > rounds * 10, "too few writes to prove anything");
    Ok(())
}
