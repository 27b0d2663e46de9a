//! The closed loop: each client starts its next operation when its last one has ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tokio::task::JoinSet;

use super::Ends;
use super::recorder::Recorder;
use super::workload::Workload;

/// Runs this many clients until the recorder's end, or until they have done so many operations together.
///
/// # Errors
/// When a client panicked.
pub async fn run(
    ends: &Ends,
    workload: &Arc<Workload>,
    recorder: &Arc<Recorder>,
    clients: usize,
    operations: Option<u64>,
    timeout: Duration,
    seed: u64,
) -> Result<()> {
    let left = Arc::new(AtomicU64::new(operations.unwrap_or(u64::MAX)));
    let mut running = JoinSet::new();
    for n in 0..clients {
        let (mut client, mut operations) = (ends.client(n, timeout), workload.client(n, clients, seed));
        let (recorder, left) = (Arc::clone(recorder), Arc::clone(&left));
        running.spawn(async move {
            loop {
                let due = Instant::now();
                let one = |left: u64| left.checked_sub(1);
                if due >= recorder.end() || left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one).is_err() {
                    return;
                }
                let operation = operations.draw();
                let ended = client.perform(&operation, due - recorder.epoch()).await;
                recorder.record(client.node, operation.name(), due, Instant::now(), ended);
            }
        });
    }
    while let Some(ended) = running.join_next().await {
        ended.context("a client")?;
    }
    Ok(())
}
