//! Whether a write may be taken: the quota, counted as in etcd, and the alarms that are raised.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use eddy_crdt::{AlarmKind, Command, Op, PutOp, PutValue, Replica, Txn};
use parking_lot::Mutex;

use super::error::NodeError;

/// What etcd adds to the cost of a put for the key's metadata, bytes.
const PUT_OVERHEAD: u64 = 256;

/// The cost of a lease in etcd, bytes.
const LEASE_COST: u64 = 64;

fn put_cost(op: &PutOp) -> u64 {
    let value = match &op.value {
        PutValue::Set(value) => value.len(),
        PutValue::Keep => 0,
    };
    PUT_OVERHEAD + (op.key.len() + value) as u64
}

fn txn_cost(txn: &Txn) -> u64 {
    let branch = |ops: &[Op]| {
        ops.iter()
            .map(|op| match op {
                Op::Put(put) => put_cost(put),
                Op::Txn(txn) => txn_cost(txn),
                Op::Range(_) | Op::Delete(_) => 0,
            })
            .sum::<u64>()
    };
    branch(&txn.success).max(branch(&txn.failure))
}

/// How many bytes a command may add to the data; zero for a command that the quota always allows.
pub(crate) fn cost(command: &Command) -> u64 {
    match command {
        Command::Put(op) => put_cost(op),
        Command::Txn(txn) => txn_cost(txn),
        Command::LeaseGrant { .. } => LEASE_COST,
        Command::Delete(_)
        | Command::Compact(_)
        | Command::LeaseRevoke(_)
        | Command::LeaseRenew(_)
        | Command::SetAlarm { .. }
        | Command::MemberAdd { .. }
        | Command::MemberRemove(_)
        | Command::MemberUpdate { .. }
        | Command::MemberPromote(_)
        | Command::MemberPublish { .. }
        | Command::Declare { .. }
        | Command::Auth(_)
        | Command::Leap => 0,
    }
}

/// The alarms that are raised, as the committer last saw them, and the sizes that the quota is compared with.
#[derive(Debug, Default)]
pub(crate) struct Admission {
    pub(crate) no_space: AtomicBool,
    pub(crate) corrupt: AtomicBool,
    /// Whether the disk has so little space that only commands that free some are taken.
    pub(crate) disk_low: AtomicBool,
    /// Whether the replica has no revisions left to give.
    pub(crate) out_of_spaces: AtomicBool,
    pub(crate) size_allocated: AtomicU64,
    pub(crate) size_in_use: AtomicU64,
    pub(crate) size_on_disk: AtomicU64,
    /// Bytes that were free on the disk when they were last counted, where something tells.
    pub(crate) free_on_disk: Mutex<Option<u64>>,
}

impl Admission {
    /// Notes the alarms that are raised now.
    pub(crate) fn note_alarms(&self, replica: &Replica) {
        let raised = |kind| replica.alarms_that_stop().any(|alarm| alarm.kind == kind);
        self.no_space.store(raised(AlarmKind::NoSpace), Ordering::Release);
        self.corrupt.store(raised(AlarmKind::Corrupt), Ordering::Release);
        self.note_spaces(replica);
    }

    /// Notes whether the replica has revisions left to give.
    pub(crate) fn note_spaces(&self, replica: &Replica) {
        self.out_of_spaces.store(replica.is_out_of_spaces(), Ordering::Relaxed);
    }

    /// Whether the quota allows the data to grow by `cost` bytes.
    pub(crate) fn allows(&self, cost: u64, quota: Option<u64>) -> bool {
        let size = || self.size_allocated.load(Ordering::Relaxed);
        cost == 0 || quota.is_none_or(|quota| size() + cost < quota)
    }

    /// Refuses what the alarms forbid, as etcd's appliers do.
    pub(crate) fn check(&self, command: &Command) -> Result<(), NodeError> {
        let corrupt = self.corrupt.load(Ordering::Acquire);
        if corrupt && !matches!(command, Command::LeaseRenew(_) | Command::SetAlarm { .. }) {
            return Err(NodeError::Corrupt);
        }
        let full = self.no_space.load(Ordering::Acquire) || self.disk_low.load(Ordering::Relaxed);
        if full && cost(command) > 0 {
            return Err(NodeError::NoSpace);
        }
        Ok(())
    }
}
