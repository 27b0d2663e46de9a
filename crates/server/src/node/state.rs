//! The node's state and status, as others see them.

use std::sync::Arc;

use eddy_crdt::{Alarm, Identity, Revision};

/// Whether the node takes writes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NodeState {
    /// It takes writes.
    Running,
    /// A flush failed. Reads go on; writes need a restart.
    WritesStopped {
        /// What failed.
        reason: Arc<str>,
    },
    /// The disk is full or does not answer. Reads go on; writes come back without a restart.
    WritesPaused {
        /// What writes wait for.
        reason: Arc<str>,
    },
}

impl NodeState {
    /// Why the node takes no writes, if so.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Running => None,
            Self::WritesStopped { reason } | Self::WritesPaused { reason } => Some(reason),
        }
    }
}

/// The smallest size that is told, bytes; about that of the head. `etcdctl endpoint status` divides by the size.
pub(super) const SIZE_MIN: u64 = 4096;

/// The node's status, for the RPC `Status` and for metrics.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Status {
    /// The replica's identity.
    pub identity: Identity,
    /// The durable revision.
    pub revision: Revision,
    /// The revision of the last compaction.
    pub compacted: Option<Revision>,
    /// Journal number of the next record, which stands for raft's index.
    pub next_number: u64,
    /// Bytes that the data takes. As in etcd, freed space counts until a defragmentation.
    pub size_allocated: u64,
    /// Bytes of live data.
    pub size_in_use: u64,
    /// Bytes that the store takes on disk.
    pub size_on_disk: u64,
    /// Bytes that are free on the disk, where something tells.
    pub free_on_disk: Option<u64>,
    /// The quota, if there is one.
    pub quota: Option<u64>,
    /// Keys that have a value.
    pub keys: usize,
    /// Alarms that are raised.
    pub alarms: Vec<Alarm>,
    /// Whether writes are taken.
    pub state: NodeState,
    /// Commands that wait in the queue.
    pub waiting: usize,
}

/// The answer to HashKV.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HashKv {
    /// etcd's hash of all keys up to `revision`.
    pub hash: u32,
    /// The revision at which the hash was taken.
    pub revision: Revision,
    /// The revision of the last compaction.
    pub compacted: Option<Revision>,
}
