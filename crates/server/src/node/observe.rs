//! What the node tells whoever keeps metrics.

use std::time::{Duration, SystemTime};

use eddy_crdt::revision::Revision;

use super::Handle;
use crate::metrics::Metrics;
use crate::storage::AppendStats;

/// Hears what the node does. All methods return at once; they are called from the node's own threads.
pub trait Observer: Send + Sync + 'static {
    /// A group was made durable: its cost, its number of records, and the time since it was made.
    fn flushed(&self, _stats: &AppendStats, _records: usize, _total: Duration) {}
    /// Leases ran out.
    fn leases_expired(&self, _count: usize) {}
    /// History before this revision was hidden.
    fn compacted(&self, _at: Revision) {}
    /// So many records lost a change to a compaction.
    fn swept(&self, _records: usize) {}
    /// A defragmentation took so long.
    fn defragmented(&self, _took: Duration) {}
    /// A command was refused by a full queue, or because writes have stopped.
    fn write_refused(&self) {}
    /// A flush failed: no more writes until a restart.
    fn writes_stopped(&self) {}
}

/// Hears nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Deaf;

impl Observer for Deaf {}

impl Observer for Metrics {
    fn flushed(&self, stats: &AppendStats, records: usize, total: Duration) {
        self.wal_write_bytes.add(i64::try_from(stats.bytes).unwrap_or(i64::MAX));
        self.wal_write.observe(stats.write.as_secs_f64());
        self.wal_fsync.observe(stats.sync.as_secs_f64());
        self.backend_commit.observe(total.as_secs_f64());
        self.proposals_committed.add(records as i64);
        self.proposals_applied.add(records as i64);
    }

    fn leases_expired(&self, count: usize) {
        self.lease_expired.inc_by(count as u64);
    }

    fn compacted(&self, at: Revision) {
        self.compact_revision.set(at.get());
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        self.compaction_last.set(now.as_secs() as i64);
    }

    fn swept(&self, records: usize) {
        self.compaction_keys.inc_by(records as u64);
    }

    fn defragmented(&self, took: Duration) {
        self.backend_defrag.observe(took.as_secs_f64());
    }

    fn write_refused(&self) {
        self.proposals_failed.inc();
    }

    fn writes_stopped(&self) {
        self.writable.set(0);
    }
}

/// Sets the gauges that show the node as it is now; to be called before they are read.
pub fn refresh(metrics: &Metrics, node: &Handle) {
    let status = node.status();
    let bytes = |size: u64| i64::try_from(size).unwrap_or(i64::MAX);
    metrics.db_total_size.set(bytes(status.size_allocated));
    metrics.db_total_size_in_use.set(bytes(status.size_in_use));
    metrics.disk_bytes.set(bytes(status.size_on_disk));
    metrics.keys.set(status.keys as i64);
    metrics.current_revision.set(status.revision.get());
    metrics.compact_revision.set(status.compacted.get());
    metrics.proposals_pending.set(status.waiting as i64);
    let watch = node.watch_counts();
    metrics.watch_streams.set(watch.streams);
    metrics.watchers.set(watch.watchers);
    metrics.slow_watchers.set(watch.lagging);
}
