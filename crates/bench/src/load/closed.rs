//! The closed loop: each client starts its next operation when its last one has ended.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tokio::task::JoinSet;

use super::Ends;
use super::recorder::Recorder;
use super::workload::Workload;

/// Runs this many clients until the recorder's end.
///
/// # Errors
/// When a client panicked.
pub async fn run(
    ends: &Ends,
    workload: &Arc<Workload>,
    recorder: &Arc<Recorder>,
    clients: usize,
    timeout: Duration,
    seed: u64,
) -> Result<()> {
    let mut running = JoinSet::new();
    for n in 0..clients {
        let (mut client, mut operations) = (ends.client(n, timeout), workload.client(n, clients, seed));
        let recorder = Arc::clone(recorder);
        running.spawn(async move {
            loop {
                let due = Instant::now();
                if due >= recorder.end() {
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
