//! Why moving fails, and when it is worth another attempt.

use tonic::{Code, Status};

use crate::backup::restore::RestoreError;
use crate::node::{NodeError, StartError};
use crate::storage::StorageError;

/// See the module.
#[derive(Debug, thiserror::Error)]
pub enum MoveError {
    /// No endpoint takes a connection.
    #[error("no endpoint answers: {0}")]
    Unreachable(String),
    /// A call failed.
    #[error("{url}: {message}")]
    Call {
        /// Whom it asked.
        url: String,
        /// The code.
        code: Code,
        /// What the other side said.
        message: String,
    },
    /// The source has forgotten what comes next.
    #[error("the source is compacted up to revision {0}")]
    Compacted(i64),
    /// The numbers of the two sides do not go together.
    #[error("revision {expected} of the source is {found} here: somebody else writes here, or this is no copy of it")]
    Apart {
        /// The source's.
        expected: i64,
        /// What it became.
        found: i64,
    },
    /// The source sends something that no etcd sends.
    #[error("the source does not answer as etcd does: {0}")]
    Strange(String),
    /// A key is not equal.
    #[error("at revision {at} the two sides differ: {what}")]
    Differs {
        /// The revision that was read.
        at: i64,
        /// The first difference.
        what: String,
    },
    /// It must not go on.
    #[error("{0}")]
    Refused(String),
    /// The copy refuses.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// The copy does not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The backup is not taken.
    #[error("the backup of the source: {0}")]
    Restore(#[from] RestoreError),
    /// The disk refuses.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The file of the backup can't be written or read.
    #[error("{path}: {source}")]
    File {
        /// Which.
        path: String,
        /// Why.
        source: std::io::Error,
    },
}

impl MoveError {
    pub(super) fn call(url: &str, status: &Status) -> Self {
        Self::Call { url: url.to_owned(), code: status.code(), message: status.message().to_owned() }
    }

    /// Whether the same may succeed a little later.
    pub(super) fn passes(&self) -> bool {
        match self {
            Self::Unreachable(_) => true,
            Self::Call { code, .. } => matches!(
                code,
                Code::Unavailable
                    | Code::DeadlineExceeded
                    | Code::Cancelled
                    | Code::Unknown
                    | Code::Internal
                    | Code::Unauthenticated
                    | Code::ResourceExhausted
                    | Code::Aborted
            ),
            _ => false,
        }
    }
}
