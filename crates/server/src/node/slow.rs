//! Requests that take long to apply, logged as etcd does (`--warning-apply-duration`).

use std::time::Instant;

use eddy_crdt::{Command, Commit, KeyRange, Op, Refusal, Txn};

use super::engine::Engine;

impl Engine {
    /// Logs and counts what was begun at `since` if that was too long ago. `prefix` is etcd's.
    pub(super) fn note_applied(
        &self,
        since: Instant,
        prefix: &str,
        request: impl FnOnce() -> String,
        refusal: Option<&Refusal>,
    ) {
        let took = since.elapsed();
        if took <= self.slow_apply {
            return;
        }
        self.metrics.applied_slowly();
        tracing::warn!(
            took = ?took,
            "expected-duration" = ?self.slow_apply,
            prefix,
            request = request(),
            error = refusal.map(tracing::field::display),
            "apply request took too long"
        );
    }
}

/// What a command is, by etcd's names.
pub(super) fn kind(command: &Command) -> &'static str {
    match command {
        Command::Put(_) => "put",
        Command::Delete(_) => "delete_range",
        Command::Txn(_) => "txn",
        Command::Compact(_) => "compaction",
        Command::LeaseGrant { .. } => "lease_grant",
        Command::LeaseRevoke(_) => "lease_revoke",
        Command::LeaseRenew(_) => "lease_keep_alive",
        Command::SetAlarm { .. } => "alarm",
        Command::Declare { .. } => "declare rules",
        Command::Auth(_) => "a change of users or roles",
        Command::Leap => "leap",
        _ => "member",
    }
}

/// A write, by what it changed. Values are nobody's business in a log.
pub(super) fn write(kind: &str, commits: &[Commit]) -> String {
    let mut events = commits.iter().flat_map(|commit| &commit.events);
    match events.next() {
        None => kind.to_owned(),
        Some(first) => format!("{kind} changes:{} first_key:{}", events.count() + 1, quoted(first.key())),
    }
}

/// A read of a range.
pub(super) fn range(range: &KeyRange) -> String {
    match range {
        KeyRange::Key(key) => format!("key:{}", quoted(key)),
        KeyRange::From(start) => format!("key:{} range_end:\"\\0\"", quoted(start)),
        KeyRange::Span(start, end) => format!("key:{} range_end:{}", quoted(start), quoted(end)),
    }
}

/// A transaction that only reads, by its first range.
pub(super) fn read_txn(txn: &Txn) -> String {
    let ranges: Vec<String> = txn
        .success
        .iter()
        .chain(&txn.failure)
        .filter_map(|op| match op {
            Op::Range(op) => Some(format!("<{}>", range(&op.range))),
            _ => None,
        })
        .collect();
    format!("compares:{} ranges:{}", txn.compares.len(), ranges.join(" "))
}

fn quoted(bytes: &[u8]) -> String {
    format!("\"{}\"", bytes.escape_ascii())
}
