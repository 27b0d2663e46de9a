//! Compaction on a schedule, as by etcd's compactor: by age or by number of revisions.

use std::collections::VecDeque;
use std::time::Duration;

use eddy_crdt::Refusal;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::error::NodeError;
use super::handle::Handle;
use crate::config::AutoCompaction;

/// The longest time between two compactions by age. Ages are measured to a tenth of it.
const PERIOD_MAX: Duration = Duration::from_secs(3600);

/// How often a compaction by number reads the revision.
const REVISION_INTERVAL: Duration = Duration::from_secs(300);

/// How many steps a period has.
const STEPS: u32 = 10;

/// The rules of compaction by age, without the clock.
#[derive(Debug)]
struct Periodic {
    /// Revisions at each step, the oldest a period ago.
    seen: VecDeque<i64>,
    keep: usize,
    wait: Duration,
    interval: Duration,
    last_revision: Option<i64>,
    last_success: Instant,
}

impl Periodic {
    fn new(period: Duration, now: Instant) -> Self {
        let interval = period.min(PERIOD_MAX);
        let step = interval / STEPS;
        let keep = (period.as_nanos() / step.as_nanos().max(1)) as usize + 1;
        Self { seen: VecDeque::new(), keep, wait: period, interval, last_revision: None, last_success: now }
    }

    fn step(&self) -> Duration {
        self.interval / STEPS
    }

    fn note(&mut self, revision: i64) {
        self.seen.push_back(revision);
        if self.seen.len() > self.keep {
            self.seen.pop_front();
        }
    }

    fn due(&mut self, now: Instant) -> Option<i64> {
        let revision = *self.seen.front()?;
        if now.duration_since(self.last_success) < self.wait || Some(revision) == self.last_revision {
            return None;
        }
        // Only the first compaction waits for a whole period.
        self.wait = self.interval;
        Some(revision)
    }

    fn done(&mut self, revision: i64, now: Instant) {
        self.last_revision = Some(revision);
        self.last_success = now;
    }
}

/// Compacts by that rule until `stop` is cancelled.
pub async fn run(node: Handle, rule: AutoCompaction, stop: CancellationToken) {
    let work = async {
        match rule {
            AutoCompaction::Off => std::future::pending().await,
            AutoCompaction::Periodic(period) => by_age(&node, period).await,
            AutoCompaction::Revision(count) => by_revisions(&node, count).await,
        }
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = work => {}
    }
}

async fn by_age(node: &Handle, period: Duration) {
    let mut periodic = Periodic::new(period, Instant::now());
    loop {
        periodic.note(node.revision().get());
        tokio::time::sleep(periodic.step()).await;
        if let Some(revision) = periodic.due(Instant::now())
            && compact(node, revision, "periodic").await
        {
            periodic.done(revision, Instant::now());
        }
    }
}

async fn by_revisions(node: &Handle, count: i64) {
    let mut last = None;
    loop {
        tokio::time::sleep(REVISION_INTERVAL).await;
        let revision = node.revision().get() - count;
        if revision > 0 && Some(revision) != last && compact(node, revision, "revision").await {
            last = Some(revision);
        }
    }
}

async fn compact(node: &Handle, revision: i64, mode: &str) -> bool {
    match node.compact(revision, false).await {
        Ok(_) | Err(NodeError::Refused(Refusal::Compacted)) => {
            tracing::info!(revision, mode, "completed auto compaction");
            true
        }
        Err(error) => {
            tracing::warn!(revision, mode, %error, "failed auto compaction");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps through `total` time of a store that takes one revision a second; returns (second, revision) of compactions.
    fn run(period: Duration, total: Duration) -> Vec<(u64, i64)> {
        let start = Instant::now();
        let mut periodic = Periodic::new(period, start);
        let mut compactions = Vec::new();
        let mut at = Duration::ZERO;
        while at < total {
            periodic.note(at.as_secs() as i64 + 1);
            at += periodic.step();
            if let Some(revision) = periodic.due(start + at) {
                compactions.push((at.as_secs(), revision));
                periodic.done(revision, start + at);
            }
        }
        compactions
    }

    #[test]
    fn an_hour_is_kept_and_compacted_every_hour() {
        let compactions = run(Duration::from_secs(3600), Duration::from_secs(3 * 3600));
        assert_eq!(compactions, [(3600, 1), (7200, 3241), (10800, 6841)]);
    }

    #[test]
    fn a_day_is_kept_but_compacted_every_hour() {
        let compactions = run(Duration::from_secs(24 * 3600), Duration::from_secs(26 * 3600));
        assert_eq!(compactions, [(86_400, 1), (90_000, 3241), (93_600, 6841)]);
    }

    #[test]
    fn an_idle_store_is_not_compacted_again() {
        let start = Instant::now();
        let mut periodic = Periodic::new(Duration::from_secs(10), start);
        periodic.note(5);
        assert_eq!(periodic.due(start + Duration::from_secs(11)), Some(5));
        periodic.done(5, start + Duration::from_secs(11));
        assert_eq!(periodic.due(start + Duration::from_secs(60)), None);
    }
}
