//! What the node counts, under etcd's metric names. The node's threads call these methods; none of them waits.

use std::time::{Duration, SystemTime};

use eddy_crdt::{AlarmKind, Replica, Revision, Tally};

use super::handle::Handle;
use super::state::NodeState;
use crate::metrics::Metrics;
use crate::storage::AppendStats;

impl Metrics {
    /// A group was made durable: its cost, and the time since it was made.
    pub(super) fn flushed(&self, stats: &AppendStats, total: Duration) {
        self.wal_write_bytes.add(i64::try_from(stats.bytes).unwrap_or(i64::MAX));
        self.wal_write.observe(stats.write.as_secs_f64());
        self.wal_fsync.observe(stats.sync.as_secs_f64());
        self.backend_commit.observe(total.as_secs_f64());
    }

    /// Steps of commands were run; they may not be durable yet.
    pub(super) fn done(&self, tally: &Tally) {
        self.range.inc_by(tally.ranges);
        self.put.inc_by(tally.puts);
        self.delete.inc_by(tally.deletes);
        self.txn.inc_by(tally.txns);
        self.put_size.add(i64::try_from(tally.put_bytes).unwrap_or(i64::MAX));
    }

    /// A request took long to apply.
    pub(super) fn applied_slowly(&self) {
        self.slow_apply.inc();
    }

    /// A range was answered or refused after this long.
    pub(super) fn range(&self, took: Duration, answered: bool) {
        self.range_duration[usize::from(answered)].observe(took.as_secs_f64());
    }

    /// This many replaced values are read from the journal.
    pub(super) fn recalled(&self, values: usize) {
        self.past_values_read.inc_by(values as u64);
    }

    /// A lease was granted for this many seconds.
    pub(super) fn lease_granted(&self, ttl_s: i64) {
        self.lease_granted.inc();
        self.lease_ttl.observe(ttl_s as f64);
    }

    /// A lease was revoked.
    pub(super) fn lease_revoked(&self) {
        self.lease_revoked.inc();
    }

    /// A lease was renewed.
    pub(super) fn lease_renewed(&self) {
        self.lease_renewed.inc();
    }

    /// This many events go to one watcher.
    pub(super) fn events(&self, count: usize) {
        self.events.inc_by(count as u64);
    }

    /// All keys were hashed in this time.
    pub(super) fn hashed(&self, took: Duration) {
        self.hash_rev.observe(took.as_secs_f64());
    }

    /// This many leases ran out.
    pub(super) fn leases_expired(&self, count: usize) {
        self.lease_expired.inc_by(count as u64);
        // etcd ends a lease that ran out by revoking it.
        self.lease_revoked.inc_by(count as u64);
    }

    /// History before this revision was hidden.
    pub(super) fn compacted(&self, at: Revision) {
        self.compact_revision.set(at.get());
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        self.compaction_last.set(now.as_secs() as i64);
    }

    /// This many records lost a change to a compaction.
    pub(super) fn swept(&self, records: usize) {
        self.compaction_keys.inc_by(records as u64);
    }

    /// A defragmentation took this long.
    pub(super) fn defragmented(&self, took: Duration) {
        self.backend_defrag.observe(took.as_secs_f64());
    }

    /// This many entries of other replicas were applied.
    pub(super) fn remote_entries(&self, count: usize) {
        self.peer_entries_applied.inc_by(count as u64);
    }

    /// A command was refused by a full queue, or because writes have stopped.
    pub(super) fn write_refused(&self) {
        self.proposals_failed.inc();
    }

    /// A flush failed; the node takes no more writes until a restart.
    pub(super) fn writes_stopped(&self) {
        self.writable.set(0);
    }
}

/// Sets the gauges that show the node as it is now; to be called before they are read.
pub fn refresh(metrics: &Metrics, node: &Handle) {
    let status = node.status();
    let bytes = |size: u64| i64::try_from(size).unwrap_or(i64::MAX);
    metrics.db_total_size.set(bytes(status.size_on_disk));
    metrics.db_total_size_in_use.set(bytes(status.size_in_use));
    metrics.disk_bytes.set(bytes(status.size_on_disk));
    metrics.quota_used_bytes.set(bytes(status.size_allocated));
    if let Some(free) = status.free_on_disk {
        metrics.disk_free_bytes.with_label_values::<&str>(&[]).set(bytes(free));
    }
    let stopping = node.alarms_that_stop();
    let alarm = |kind: &str, raised: bool| metrics.alarm.with_label_values(&[kind]).set(i64::from(raised));
    alarm("nospace", stopping.iter().any(|alarm| alarm.kind == AlarmKind::NoSpace));
    alarm("corrupt", stopping.iter().any(|alarm| alarm.kind == AlarmKind::Corrupt));
    alarm("spaces", node.look(Replica::is_out_of_spaces));
    metrics.writable.set(i64::from(status.state == NodeState::Running));
    metrics.keys.set(status.keys as i64);
    metrics.current_revision.set(status.revision.get());
    metrics.compact_revision.set(status.compacted.map_or(-1, Revision::get));
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
