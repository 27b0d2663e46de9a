//! What the node tells whoever keeps metrics.

use std::time::{Duration, SystemTime};

use eddy_crdt::{Revision, Tally};

use super::{Handle, NodeState};
use crate::metrics::Metrics;
use crate::storage::AppendStats;

/// Hears what the node does. All methods return at once; they are called from the node's own threads.
pub trait Observer: Send + Sync + 'static {
    /// A group was made durable: its cost, and the time since it was made.
    fn flushed(&self, _stats: &AppendStats, _total: Duration) {}
    /// Steps were run, not necessarily durable yet.
    fn done(&self, _tally: &Tally) {}
    /// A range took so long, and was answered or refused.
    fn range(&self, _took: Duration, _answered: bool) {}
    /// A lease was granted for so many seconds.
    fn lease_granted(&self, _ttl_s: i64) {}
    /// A lease was revoked.
    fn lease_revoked(&self) {}
    /// A lease was renewed.
    fn lease_renewed(&self) {}
    /// Leases ran out.
    fn leases_expired(&self, _count: usize) {}
    /// So many events are on their way to one watcher.
    fn events(&self, _count: usize) {}
    /// All keys were hashed, which took so long.
    fn hashed(&self, _took: Duration) {}
    /// History before this revision was hidden.
    fn compacted(&self, _at: Revision) {}
    /// So many records lost a change to a compaction.
    fn swept(&self, _records: usize) {}
    /// A defragmentation took so long.
    fn defragmented(&self, _took: Duration) {}
    /// A command was refused by a full queue, or because writes have stopped.
    fn write_refused(&self) {}
    /// Entries of other replicas were applied.
    fn remote_entries(&self, _count: usize) {}
    /// Concurrent versions were merged by the rule of that name.
    fn merged(&self, _rule: &str) {}
    /// A flush failed: no more writes until a restart.
    fn writes_stopped(&self) {}
}

/// Hears nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Deaf;

impl Observer for Deaf {}

impl Observer for Metrics {
    fn flushed(&self, stats: &AppendStats, total: Duration) {
        self.wal_write_bytes.add(i64::try_from(stats.bytes).unwrap_or(i64::MAX));
        self.wal_write.observe(stats.write.as_secs_f64());
        self.wal_fsync.observe(stats.sync.as_secs_f64());
        self.backend_commit.observe(total.as_secs_f64());
    }

    fn done(&self, tally: &Tally) {
        self.range.inc_by(tally.ranges);
        self.put.inc_by(tally.puts);
        self.delete.inc_by(tally.deletes);
        self.txn.inc_by(tally.txns);
        self.put_size.add(i64::try_from(tally.put_bytes).unwrap_or(i64::MAX));
    }

    fn range(&self, took: Duration, answered: bool) {
        self.range_duration[usize::from(answered)].observe(took.as_secs_f64());
    }

    fn lease_granted(&self, ttl_s: i64) {
        self.lease_granted.inc();
        self.lease_ttl.observe(ttl_s as f64);
    }

    fn lease_revoked(&self) {
        self.lease_revoked.inc();
    }

    fn lease_renewed(&self) {
        self.lease_renewed.inc();
    }

    fn events(&self, count: usize) {
        self.events.inc_by(count as u64);
    }

    fn hashed(&self, took: Duration) {
        self.hash_rev.observe(took.as_secs_f64());
    }

    fn leases_expired(&self, count: usize) {
        self.lease_expired.inc_by(count as u64);
        // etcd ends a lease that ran out by revoking it.
        self.lease_revoked.inc_by(count as u64);
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

    fn remote_entries(&self, count: usize) {
        self.peer_entries_applied.inc_by(count as u64);
    }

    fn merged(&self, rule: &str) {
        self.merges.with_label_values(&[rule]).inc();
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
    metrics.writable.set(i64::from(status.state == NodeState::Running));
    metrics.keys.set(status.keys as i64);
    metrics.current_revision.set(status.revision.get());
    metrics.compact_revision.set(status.compacted.get());
    metrics.proposals_pending.set(status.waiting as i64);
    // What is durable was applied before.
    let entries = bytes(status.next_number.saturating_sub(1));
    metrics.proposals_committed.set(entries);
    metrics.proposals_applied.set(entries);
    let watch = node.watch_counts();
    metrics.watch_streams.set(watch.streams);
    metrics.watchers.set(watch.watchers);
    metrics.slow_watchers.set(watch.lagging);
    metrics.pending_events.set(watch.pending);
}
