//! What a node tells of itself.

use std::sync::Arc;

use eddy_crdt::{Alarm, Identity, Revision};

/// Whether the node takes writes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NodeState {
    /// It does.
    Running,
    /// A flush failed: reads go on, writes need a restart.
    WritesStopped {
        /// What failed.
        reason: Arc<str>,
    },
    /// The disk is full or does not answer: reads go on, writes come back by themselves.
    WritesPaused {
        /// What it waits for.
        reason: Arc<str>,
    },
}

impl NodeState {
    /// Why writes are not taken, if they are not.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Running => None,
            Self::WritesStopped { reason } | Self::WritesPaused { reason } => Some(reason),
        }
    }
}

/// What a store is said to take at least, bytes: about its head. `etcdctl endpoint status` divides by the size.
pub(super) const SIZE_MIN: u64 = 4096;

/// What Status tells.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Status {
    /// Who the replica is.
    pub identity: Identity,
    /// The durable revision.
    pub revision: Revision,
    /// The revision of the last compaction; -1 for none.
    pub compacted: Revision,
    /// Journal number of the next record: stands for raft's index.
    pub next_number: u64,
    /// Bytes that the data takes, counted as etcd does: freed space counts until a defragmentation.
    pub size_allocated: u64,
    /// Bytes of live data.
    pub size_in_use: u64,
    /// Bytes that the store takes on disk.
    pub size_on_disk: u64,
    /// The quota, if there is one.
    pub quota: Option<u64>,
    /// Keys that have a value.
    pub keys: usize,
    /// Alarms that are raised.
    pub alarms: Vec<Alarm>,
    /// Whether writes are taken.
    pub state: NodeState,
    /// Commands that wait.
    pub waiting: usize,
}

/// What HashKV tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HashKv {
    /// etcd's hash of all keys up to `revision`.
    pub hash: u32,
    /// The revision it was taken at.
    pub revision: Revision,
    /// The revision of the last compaction; -1 for none.
    pub compacted: Revision,
}
