//! What a journal promises its owner.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use bytes::Bytes;

use super::error::StorageError;

/// What one `append` makes durable, atomically.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Group {
    /// The journal number of the first record; the others follow it. Must be the number after the last one ever
    /// appended (any number for the first group of an empty store).
    pub first: u64,
    /// The records; may be empty, then only the head is replaced.
    pub records: Vec<Bytes>,
    /// A small state of the owner that replaces the one before. Only what changed of it is written.
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
/// An error of a method that writes poisons the journal, because what is on disk is then unknown. Every later write
/// answers [`StorageError::Poisoned`] until the store is opened again. Three errors do not poison:
/// [`StorageError::NoSpace`], [`StorageError::OutOfOrder`] and [`StorageError::NotLoaded`].
pub trait Journal: Send {
    /// The last head; `None` for a store that was never written to.
    fn last_head(&self) -> Option<Bytes>;

    /// Passes every live record in ascending order of its number to `visit`. Must be called once, before anything is written.
    ///
    /// # Errors
    /// [`StorageError::Damaged`] when anything acknowledged is missing or altered; whatever `visit` answers.
    fn load(&mut self, visit: &mut dyn FnMut(u64, Bytes) -> Result<(), StorageError>) -> Result<(), StorageError>;

    /// Appends a group atomically, and durably unless fsync is off.
    ///
    /// # Errors
    /// [`StorageError::NoSpace`]: the disk is full, nothing was written, the journal is as before. Others poison.
    fn append(&mut self, group: &Group) -> Result<AppendStats, StorageError>;

    /// Replaces or drops records: takes numbers from the front of `dead` until about `max_bytes` were rewritten. Asks
    /// `keep` for the new content of each record (`None` drops it). Ascending, so that a put is gone from disk before
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

    /// A record as it is now, what was trimmed and not made durable yet included; `None` when there is none of that number.
    ///
    /// # Errors
    /// [`StorageError::Damaged`], [`StorageError::Io`]; does not poison.
    fn read(&mut self, number: u64) -> Result<Option<Bytes>, StorageError>;

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

    /// Rewrites the live records into a fresh checkpoint, and drops the log before it. A crash at any step leaves the old
    /// or the new one, whole.
    ///
    /// # Errors
    /// When the copy fails (a full disk for instance) the old one stays in use and only the error is returned. When the
    /// naming of the new one fails the journal is poisoned.
    fn defragment(&mut self) -> Result<(), StorageError>;

    /// Does a little of what is due besides: begins a checkpoint in the background, or takes over one that is ready. To be
    /// called after appends and trims, and while `is_busy`. Takes no longer than an append; does nothing where nothing is due.
    ///
    /// # Errors
    /// Poisons.
    fn work(&mut self) -> Result<(), StorageError> {
        Ok(())
    }

    /// Whether something is done in the background, whose end `work` takes over.
    fn is_busy(&self) -> bool {
        false
    }

    /// Bytes of live records, with a small overhead for each.
    fn size_in_use(&self) -> u64;

    /// The most that `size_in_use` was since the last `defragment`: what a file that reuses freed pages but never
    /// shrinks would measure.
    fn size_allocated(&self) -> u64;

    /// Bytes that the store really takes on disk.
    fn size_on_disk(&self) -> u64;

    /// Bytes that are free on the disk; `None` where nothing tells.
    fn free_on_disk(&self) -> Option<u64> {
        None
    }

    /// Whether so little space is left that nothing should be written but what helps to free some: deletes,
    /// compactions. Asks the file system again when it was low before.
    fn is_low_on_space(&mut self) -> bool {
        false
    }

    /// Why records that were acknowledged may be missing from the end without a trace. It stands until something was
    /// written.
    fn doubt(&self) -> Option<Doubt>;
}

/// A reader of records that answers `None` where `read` fails, and keeps the first error.
pub fn keeping_error(
    mut read: impl FnMut(u64) -> Result<Option<Bytes>, StorageError>,
    error: &mut Option<StorageError>,
) -> impl FnMut(u64) -> Option<Bytes> {
    move |number| {
        read(number).unwrap_or_else(|failed| {
            error.get_or_insert(failed);
            None
        })
    }
}

/// Why a store may be less than what was acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doubt {
    /// The last process ran with fsync off and did not stop in order.
    Unsynced,
    /// The store is a copy of the one that was written.
    Copied,
    /// It was to be replaced by what another member had, and that one has lost it.
    Outlived,
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unsynced => "the last stop was unclean and fsync was off",
            Self::Copied => "the data dir is a copy",
            Self::Outlived => "another member knew more, and has lost it",
        })
    }
}
