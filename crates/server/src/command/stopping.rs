//! Commands that run until they are told to stop.

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::output::say;

/// Cancelled by the first SIGINT or SIGTERM. The second one ends the process.
///
/// # Errors
/// When signals can't be caught.
pub(super) fn on_signals() -> anyhow::Result<CancellationToken> {
    let install = |kind| signal(kind).context("install signal handlers");
    let (mut interrupt, mut terminate) = (install(SignalKind::interrupt())?, install(SignalKind::terminate())?);
    let stop = CancellationToken::new();
    let told = stop.clone();
    tokio::spawn(async move {
        for _ in 0..2 {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            if told.is_cancelled() {
                std::process::exit(1);
            }
            told.cancel();
        }
    });
    Ok(stop)
}

/// Prints a line. That nobody reads it stops nothing.
pub(super) fn tell(line: String) {
    let _nobody_reads = say(&format!("{line}\n"));
}
