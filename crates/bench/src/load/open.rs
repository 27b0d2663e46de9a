//! The open loop: operations start when they are due, whether earlier ones have ended or not. Their latency counts from when
//! they were due. So a server that stalls is charged for the operations that were due meanwhile, too.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::Ends;
use super::recorder::Recorder;
use super::workload::{Operation, Workload};
use crate::scenario::Arrivals;

/// Name of the lab's own delay in the results: the time from when an operation was due until it was started.
pub const START_LAG: &str = "start lag";

/// Moments after the beginning at which operations are due.
pub fn schedule(rate: f64, arrivals: Arrivals, end: Duration, seed: u64) -> impl Iterator<Item = Duration> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut at = 0.0;
    std::iter::from_fn(move || {
        at += match arrivals {
            Arrivals::Even => 1.0 / rate,
            // 1 - u lies above 0, where the logarithm is finite.
            Arrivals::Poisson => -(1.0 - rng.random::<f64>()).ln() / rate,
        };
        let due = Duration::from_secs_f64(at);
        (due < end).then_some(due)
    })
}

/// Draws from the workload at each moment of the schedule.
pub fn drawn<Moments: Iterator<Item = Duration>>(
    moments: Moments,
    workload: &Arc<Workload>,
    clients: usize,
    seed: u64,
) -> impl Iterator<Item = (Duration, usize, Operation)> + use<Moments> {
    let mut generators: Vec<_> = (0..clients).map(|n| workload.client(n, clients, seed)).collect();
    moments.enumerate().map(move |(n, due)| {
        let client = n % clients;
        (due, client, generators[client].draw())
    })
}

/// Starts each operation when it is due, at the client that it names, and waits for all to end.
///
/// # Errors
/// When a client panicked or no thread can be had.
pub async fn run(
    ends: &Ends,
    operations: impl Iterator<Item = (Duration, usize, Operation)> + Send + 'static,
    recorder: &Arc<Recorder>,
    timeout: Duration,
) -> Result<()> {
    let (start, mut due_now) = mpsc::unbounded_channel();
    let epoch = recorder.epoch();
    // A thread of its own: the kernel wakes it to within 0.1 ms, tokio's timer only to the millisecond.
    let clock = std::thread::Builder::new().name("clock".to_owned()).spawn(move || {
        for (due, client, operation) in operations {
            let due = epoch + due;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            if start.send((due, client, operation)).is_err() {
                return;
            }
        }
    })?;
    let mut running = JoinSet::new();
    while let Some((due, client, operation)) = due_now.recv().await {
        let mut client = ends.client(client, timeout);
        let recorder = Arc::clone(recorder);
        running.spawn(async move {
            recorder.observe(client.node, START_LAG, due, Instant::now().saturating_duration_since(due));
            let ended = client.perform(&operation, due - recorder.epoch()).await;
            recorder.record(client.node, operation.name(), due, Instant::now(), ended);
        });
        while running.try_join_next().is_some() {}
    }
    while let Some(ended) = running.join_next().await {
        ended.context("an operation")?;
    }
    clock.join().map_err(|_| anyhow::anyhow!("the clock panicked"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn even_arrivals_have_equal_distances() {
        let moments: Vec<_> = schedule(4.0, Arrivals::Even, Duration::from_millis(1100), 1).collect();
        assert_eq!(moments, [250, 500, 750, 1000].map(Duration::from_millis));
    }

    #[test]
    fn random_arrivals_have_the_rate_and_the_spread_of_poisson() {
        let moments: Vec<_> = schedule(1000.0, Arrivals::Poisson, Duration::from_secs(20), 1).collect();
        assert!((19_500..20_500).contains(&moments.len()), "{}", moments.len());
        let gaps: Vec<_> = moments.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64()).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        let spread = variance.sqrt() / mean;
        assert!((0.95..1.05).contains(&spread), "the gaps' deviation is {spread} of their mean, not 1");
        assert_eq!(moments, schedule(1000.0, Arrivals::Poisson, Duration::from_secs(20), 1).collect::<Vec<_>>());
    }
}
