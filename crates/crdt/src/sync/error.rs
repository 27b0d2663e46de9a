//! What can be wrong with a peer or with what it sends.

use crate::merge::rules::UnknownRules;
use crate::sync::message::{Message, PROTOCOL, Reason};
use crate::sync::wire::DecodeError;
use crate::words::id::{ClusterId, Dot, ReplicaId};

/// Why a session cannot go on. The stream is to be closed, after [`SyncError::refusal`] was sent if there is one.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SyncError {
    /// Not a message.
    #[error("the peer sent garbage: {0}")]
    Garbage(#[from] DecodeError),
    /// It belongs to another cluster.
    #[error("the peer belongs to cluster {theirs}, this replica to {ours}")]
    Cluster {
        /// This replica's.
        ours: ClusterId,
        /// The peer's.
        theirs: ClusterId,
    },
    /// It speaks a protocol that this build does not know.
    #[error("the peer speaks protocol {theirs}, this build at most {PROTOCOL}: upgrade this replica")]
    Protocol {
        /// The version it speaks.
        theirs: u32,
    },
    /// It merges by rules that this build does not know.
    #[error("the peer cannot be joined: {0}")]
    Rules(#[from] UnknownRules),
    /// It was founded with other declarations about merges: there are two clusters of one name.
    #[error(
        "the peer's cluster was founded with {theirs}, this replica's with {ours}: \
         empty the data dir of the one that is wrong, and start it with the flags of the other"
    )]
    FoundedApart {
        /// What this replica's founders chose.
        ours: String,
        /// What the peer's founders chose.
        theirs: String,
    },
    /// It has this replica's own id.
    #[error("the peer says that it is {0}, which is this replica itself")]
    OwnId(ReplicaId),
    /// It is no member, or this replica has not heard of it yet.
    #[error("{0} is no member of the cluster as far as this replica knows")]
    UnknownMember(ReplicaId),
    /// It was a member and was removed.
    #[error("{0} was removed from the cluster; nothing more is taken from it")]
    RemovedMember(ReplicaId),
    /// It is another member than the one that was called.
    #[error("{theirs} answered where {wanted} was called")]
    AnotherMember {
        /// The member that was called.
        wanted: ReplicaId,
        /// The member that answered.
        theirs: ReplicaId,
    },
    /// Entries of another birth of the peer are here: it runs under that one now.
    #[error("{0} goes on under another birth")]
    Outlived(ReplicaId),
    /// Two histories of a third replica: one of them was lost and written anew under the same birth.
    #[error("the peer has another entry {0:?} than this replica: two histories of one origin")]
    Fork(Dot),
    /// It will not go on.
    #[error("the peer refused: {text} ({reason:?})")]
    Refused {
        /// Why.
        reason: Reason,
        /// In its words.
        text: String,
    },
    /// A message that has no place here.
    #[error("the peer sent {0} where it has no place")]
    Unexpected(&'static str),
}

impl SyncError {
    /// What to tell the peer before the stream is closed; nothing when it knows.
    pub fn refusal(&self) -> Option<Message> {
        let reason = match self {
            Self::Garbage(_) | Self::Unexpected(_) => Reason::Protocol,
            Self::Cluster { .. } | Self::FoundedApart { .. } => Reason::Cluster,
            Self::Protocol { .. } | Self::Rules(_) => Reason::Version,
            Self::OwnId(_) | Self::AnotherMember { .. } | Self::Outlived(_) => Reason::Identity,
            Self::UnknownMember(_) => Reason::UnknownMember,
            Self::RemovedMember(_) => Reason::RemovedMember,
            Self::Fork(_) => Reason::Fork,
            Self::Refused { .. } => return None,
        };
        Some(Message::Refuse { reason, text: self.to_string() })
    }
}
