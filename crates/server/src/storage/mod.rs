//! The durable journal: opaque records under increasing journal numbers.
//!
//! This module knows nothing about etcd, keys or replicas. It keeps what it acknowledged, or says which file lost it;
//! it never drops a record silently. The bytes on disk, and why they are so:
//!
//! ```text
//! <data-dir>/eddy/            0700; foreign files beside it (sockets) are left alone
//!   format                    one line with the version of this layout; written last when a store is created
//!   lock                      locked while a process has the store open
//!   mark                      the last group known to be durable: a lower bound, see `mark`
//!   place                     tells a copy of the store from the store, see `place`
//!   journal/                  the sled database: pages of records, see `page`
//!   journal.new, journal.old  only while the store is created or `defragment` runs; tidied at the next open
//! ```
//!
//! **What one acknowledgement means.** sled's own flush writes its log and waits for the write-back, but neither asks
//! the disk to empty its cache nor commits the file's size; so after it we `fdatasync` sled's log file through a handle
//! of our own. A value above a quarter of sled's segment would go to a file of its own that sled never syncs; so pages
//! are small and long records are split.
//!
//! **How loss is told from a torn tail.** After a crash sled cuts its log at the first message that does not check
//! out. If what is cut was never acknowledged that is right; if it was, it is loss. Each durable group therefore raises
//! the mark, a small checksummed block in its own file that is written *after* the `fdatasync` and never synced itself.
//! A crash of the process loses neither. A power loss may lose the marks of the last half minute, so the mark may be older
//! than the journal, never newer. These losses are named, and the start is refused:
//!
//! - The journal ends below its mark: its last write, or a segment of the log's tail, is not there.
//! - A segment header, or a message of the tail below the mark, does not check out. `scan` reads that before sled may repair
//!   anything, so that a refusal leaves the evidence in place.
//! - A page does not check out, or the live records are not those that the last batch counted: their number, bytes and
//!   checksum sum change in the same batch. This holds for all that was acknowledged, however old the mark is.
//!
//! One loss cannot be told from a torn tail: writes at the end that the disk said were durable, lost together with the mark
//! that named them. A cluster's other members tell it then.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;

mod contain;
mod dir;
pub mod faulty;
mod mark;
mod page;
mod place;
mod scan;
mod sled;
pub mod stage;

pub use self::sled::{Options, SledJournal};

/// What one `append` makes durable, atomically.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Group {
    /// The journal number of the first record; the others follow it. Must be the number after the last one ever
    /// appended (any number for the first group of an empty store).
    pub first: u64,
    /// The records; may be empty, then only the head is replaced.
    pub records: Vec<Bytes>,
    /// A small state of the owner (at most a few hundred bytes: it is written with every group) that replaces the one
    /// before.
    pub head: Bytes,
}

/// What an `append` cost, for metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AppendStats {
    /// Bytes of the records and the head.
    pub bytes: u64,
    /// Time to hand the group to the file.
    pub write: Duration,
    /// Time of the `fdatasync`; zero when fsync is off.
    pub sync: Duration,
}

/// Durable storage of numbered records. One thread owns it.
///
/// After any error but [`StorageError::NoSpace`], [`StorageError::OutOfOrder`] and [`StorageError::NotLoaded`] from a
/// method that writes, what is on disk is unknown: the journal is poisoned, and every later write answers
/// [`StorageError::Poisoned`] until the store is opened again.
pub trait Journal: Send {
    /// Passes every live record in ascending order of its number to `visit`, then returns the last head (`None`: a
    /// store that was never written to). Must be called once, before anything is written.
    ///
    /// # Errors
    /// [`StorageError::Damaged`] when anything acknowledged is missing or altered; whatever `visit` answers.
    fn load(
        &mut self,
        visit: &mut dyn FnMut(u64, Bytes) -> Result<(), StorageError>,
    ) -> Result<Option<Bytes>, StorageError>;

    /// Appends a group atomically, and durably unless fsync is off.
    ///
    /// # Errors
    /// [`StorageError::NoSpace`]: the disk is full, nothing was written, the journal is as before. Others poison.
    fn append(&mut self, group: &Group) -> Result<AppendStats, StorageError>;

    /// Replaces or drops records: takes numbers from the front of `dead` until about `max_bytes` were rewritten, and
    /// asks `keep` for the new content of each (`None` drops it). Ascending, so that a put is gone from disk before
    /// the delete that hides it. Atomic; made durable by the next `append`, `head` or `sync`. Numbers that are not in
    /// the journal are taken from `dead` and ignored.
    ///
    /// # Errors
    /// [`StorageError::NoSpace`] (nothing was changed, `dead` is as before); others poison.
    fn trim(
        &mut self,
        dead: &mut BTreeSet<u64>,
        max_bytes: usize,
        keep: &mut dyn FnMut(u64, &Bytes) -> Option<Bytes>,
    ) -> Result<(), StorageError>;

    /// Replaces the head alone, durably.
    ///
    /// # Errors
    /// As `append`.
    fn head(&mut self, head: Bytes) -> Result<(), StorageError>;

    /// Makes everything durable that was not yet.
    ///
    /// # Errors
    /// Poisons.
    fn sync(&mut self) -> Result<(), StorageError>;

    /// Rewrites the live records into a fresh database and swaps it in. A crash at any step leaves the old or the new
    /// one, whole.
    ///
    /// # Errors
    /// When the copy fails (a full disk for instance) the old database stays in use and only the error is returned;
    /// when the swap fails the journal is poisoned.
    fn defragment(&mut self) -> Result<(), StorageError>;

    /// As `defragment`, but only where the file is both large and mostly garbage, and without lowering
    /// `size_allocated`. sled reuses a segment when nothing in it lives any more; records that live long, scattered
    /// among many that do not, therefore hold space back. To be called when there is time after a `trim`. Answers
    /// whether anything was rewritten; that takes about 10 ms per megabyte of live records.
    ///
    /// # Errors
    /// As `defragment`.
    fn tidy(&mut self) -> Result<bool, StorageError>;

    /// Bytes of live records, with a small overhead for each.
    fn size_in_use(&self) -> u64;

    /// The most that `size_in_use` was since the last `defragment`: what a file that reuses freed pages but never
    /// shrinks would measure.
    fn size_allocated(&self) -> u64;

    /// Bytes that the store really takes on disk.
    fn size_on_disk(&self) -> u64;

    /// Whether so little space is left that nothing should be written but what helps to free some: deletes,
    /// compactions. Asks the file system again when it was low before.
    fn is_low_on_space(&mut self) -> bool {
        false
    }

    /// Why records that were acknowledged may be missing from the end without a trace. It stands until something was
    /// written.
    fn doubt(&self) -> Option<Doubt>;
}

/// Why a store may be less than what was acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doubt {
    /// The last process ran with fsync off and did not stop in order.
    Unsynced,
    /// The store is a copy of the one that was written.
    Copied,
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unsynced => "the last stop was unclean and fsync was off",
            Self::Copied => "the data dir is a copy",
        })
    }
}

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
    /// The head does not fit.
    #[error("the head is {got} bytes long, at most {most} fit")]
    HeadTooLong {
        /// Its length.
        got: usize,
        /// The longest allowed.
        most: usize,
    },
    /// `load` was not called, or failed.
    #[error("the journal was not loaded")]
    NotLoaded,
    /// An earlier write failed; what is on disk is unknown until the store is opened again.
    #[error("an earlier write failed; the journal takes no more writes until restart")]
    Poisoned,
}
