//! Why a session with a peer ended.

use eddy_crdt::sync::SyncError;

use crate::node::NodeError;

/// Why a session ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum End {
    /// The process stops, the peer was removed, or another session took this one's place.
    #[error("stopped")]
    Stopped,
    /// The peer closed the stream, or the network did.
    #[error("the connection was lost: {0}")]
    Lost(String),
    /// The peer closed the stream in order.
    #[error("the peer closed the connection")]
    Closed,
    /// The peer did not greet in time.
    #[error("the peer does not greet")]
    Silent,
    /// The protocol ended the session.
    #[error(transparent)]
    Protocol(#[from] SyncError),
    /// This replica takes no inputs now.
    #[error("this replica: {0}")]
    Node(#[from] NodeError),
}

impl End {
    /// Whether the peer violated the protocol.
    pub(super) fn is_fault_of_peer(&self) -> bool {
        matches!(self, Self::Protocol(SyncError::Garbage(_) | SyncError::Unexpected(_) | SyncError::Fork(_)))
    }
}
