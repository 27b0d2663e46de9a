//! Why the storage refuses.

use std::path::PathBuf;

/// Why the storage refuses.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// The operating system failed a file operation.
    #[error("{doing} {}: {source}", path.display())]
    Io {
        /// What was tried.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// Something acknowledged is missing or altered.
    #[error("{} is damaged: {what}; restore the data dir from a backup, or remove it to start empty", path.display())]
    Damaged {
        /// The damaged file, or the directory where it should be.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// The store was written by another version.
    #[error("{} says format {found:?}; this eddy reads and writes {supported:?}: use the version that wrote it", path.display())]
    Format {
        /// The format file.
        path: PathBuf,
        /// What it says.
        found: String,
        /// What this version understands.
        supported: String,
    },
    /// The store was written by an earlier version, in a format that is not read any more.
    #[error(
        "{} says format {found:?}: {why}; this eddy reads and writes {supported:?}: use the version that wrote it, or \
         remove the data dir to begin anew",
        path.display()
    )]
    Outdated {
        /// The format file.
        path: PathBuf,
        /// What it says.
        found: String,
        /// What has changed since.
        why: &'static str,
        /// What this version understands.
        supported: String,
    },
    /// Another process has the store open.
    #[error("data dir {} is in use by another process", path.display())]
    InUse {
        /// The store's directory.
        path: PathBuf,
    },
    /// The disk is full; nothing was written.
    #[error("no space left for {}", path.display())]
    NoSpace {
        /// The file that could not grow.
        path: PathBuf,
    },
    /// A group does not continue the journal.
    #[error("group starts at {got}, the journal continues at {expected}")]
    OutOfOrder {
        /// The number that the group should start at.
        expected: u64,
        /// The number it starts at.
        got: u64,
    },
    /// It was given up, as asked.
    #[error("given up")]
    Abandoned,
    /// `load` was not called, or failed.
    #[error("the journal was not loaded")]
    NotLoaded,
    /// An earlier write failed; what is on disk is unknown until the store is opened again.
    #[error("an earlier write failed; the journal takes no more writes until restart")]
    Poisoned,
}
