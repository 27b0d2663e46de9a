//! Errors of the node's calls and of its start. etcd's codes and texts for them are in `api::status` alone.

use std::path::PathBuf;
use std::sync::Arc;

use eddy_crdt::{Damage, Refusal};

use super::identity::IdentityError;
use crate::storage::StorageError;

/// Why a call to the node fails.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NodeError {
    /// The replica refuses.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The queue is full.
    #[error("too many requests wait")]
    TooManyRequests,
    /// The quota is used up, the alarm that says so is raised, or the disk is full.
    #[error("no space is left for data")]
    NoSpace,
    /// No answer came in time. The command may still be done.
    #[error("the disk did not answer in time")]
    TimedOut,
    /// The CORRUPT alarm is raised.
    #[error("the CORRUPT alarm is raised")]
    Corrupt,
    /// The node stops.
    #[error("the server has stopped")]
    Stopped,
    /// A flush failed; the node takes no writes until a restart. This one may be on disk.
    #[error("writes stopped until restart: {0}")]
    WritesStopped(Arc<str>),
    /// Maintenance of the journal failed; the journal is as before.
    #[error("{0}")]
    Storage(String),
    /// The replica answered with the reply to another kind of command: a fault of eddy.
    #[error("the replica answered another command")]
    Mismatched,
}

/// Why a node does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The journal can't be read.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The journal's content is no replica.
    #[error("{} is damaged: {damage}; restore the data dir from a backup, or remove it to start empty", place.display())]
    Damaged {
        /// The data dir.
        place: PathBuf,
        /// What is wrong.
        damage: Damage,
    },
    /// No identity could be drawn.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The operating system gives no thread.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
}
