//! The [`Journal`] in a data dir: its folder with lock and format, and the store in it.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::checkpoint::job::Pace;
use super::checkpoint::sled::SledTrees;
use super::contract::{AppendStats, Doubt, Group, Journal};
use super::dir::{self, Dir};
use super::disk::RealDisk;
use super::error::StorageError;
use super::store::{Setup, Store};
use super::{current, place, wal};

/// How long after a checkpoint that failed the next one is tried.
const RETRY: Duration = Duration::from_secs(10);

/// The log's smallest step of growth, bytes. It is written twice: as zeros, so that syncs of small appends need not commit
/// where the file's blocks are.
const GROW_BYTES: u64 = 64 << 10;

/// How to open a journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Whether an append waits for the disk. Without, a power loss loses the newest records.
    pub fsync: bool,
    /// A segment of the log that is longer, in bytes, is continued in the next one.
    pub segment_bytes: u64,
    /// A log that is longer than this and than what is live, in bytes, is due for a checkpoint.
    pub log_bytes: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { fsync: true, segment_bytes: 64 << 20, log_bytes: 64 << 20 }
    }
}

/// [`Journal`] as a write-ahead log in front of checkpoints.
pub struct DiskJournal {
    store: Store,
    doubt: Option<Doubt>,
    /// Whether this process has written to the store.
    settled_in: bool,
    // Last: the lock outlives the store.
    dir: Dir,
}

impl fmt::Debug for DiskJournal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DiskJournal").field("dir", &self.dir).field("doubt", &self.doubt).finish_non_exhaustive()
    }
}

fn draw() -> std::io::Result<u64> {
    getrandom::u64().map_err(|error| std::io::Error::other(error.to_string()))
}

impl DiskJournal {
    /// Opens the store in `<data_dir>/eddy`, or creates it. `load` must follow.
    ///
    /// # Errors
    /// [`StorageError::InUse`], [`StorageError::Format`], [`StorageError::Outdated`], [`StorageError::Damaged`], or what the system answers.
    pub fn open(data_dir: &Path, options: Options) -> Result<Self, StorageError> {
        let dir = Dir::lock(data_dir)?;
        let Options { fsync: sync, segment_bytes, log_bytes } = options;
        let log = wal::Options { segment_bytes, grow_bytes: GROW_BYTES, sync };
        if !dir.check_format()? {
            // A creation that was cut short left no record; where `current` tells of any, the format was lost.
            let written = match current::Current::read(&RealDisk, dir.root()) {
                Ok(current) => current.checkpoint.is_some() || current.end.is_some(),
                Err(_) => dir::exists(&current::path(dir.root()))?,
            };
            if written || dir::exists(&dir.root().join("place"))? {
                let what = "the file is missing, but there are records".to_owned();
                return Err(dir::damaged(&dir.format(), what));
            }
            Store::create(&RealDisk, dir.root(), log, &mut draw)?;
            dir.write_format()?;
        }
        let setup = Setup {
            disk: Arc::new(RealDisk),
            trees: Arc::new(SledTrees),
            root: dir.root().to_owned(),
            log,
            log_bytes,
            pace: Pace::Background,
            retry: RETRY,
        };
        let store = Store::open(setup, Box::new(draw))?;
        let copied = place::is_copy(dir.root())?.then_some(Doubt::Copied);
        let doubt = copied.or(store.is_unsynced().then_some(Doubt::Unsynced));
        Ok(Self { store, doubt, settled_in: false, dir })
    }

    /// Makes everything durable and closes the store. A checkpoint that is being built is given up.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn close(mut self) -> Result<(), StorageError> {
        self.store.close()
    }

    fn append_records(&mut self, first: u64, records: &[Bytes], head: &Bytes) -> Result<AppendStats, StorageError> {
        let stats = self.store.append(first, records, head.clone())?;
        if !self.settled_in {
            // Not before: a copy that is not written to stays one. Without it the next start takes the store for what it was.
            match place::take(&self.dir) {
                Ok(()) => self.settled_in = true,
                Err(error) => tracing::warn!(%error, "could not note that this is the original"),
            }
        }
        Ok(stats)
    }
}

impl Journal for DiskJournal {
    fn last_head(&self) -> Option<Bytes> {
        self.store.last_head()
    }

    fn load(&mut self, visit: &mut dyn FnMut(u64, Bytes) -> Result<(), StorageError>) -> Result<(), StorageError> {
        self.store.load(visit)
    }

    fn append(&mut self, group: &Group) -> Result<AppendStats, StorageError> {
        self.append_records(group.first, &group.records, &group.head)
    }

    fn trim(
        &mut self,
        dead: &mut BTreeSet<u64>,
        max_bytes: usize,
        keep: &mut dyn FnMut(u64, &Bytes) -> Option<Bytes>,
    ) -> Result<(), StorageError> {
        self.store.trim(dead, max_bytes, keep)
    }

    fn read(&mut self, number: u64) -> Result<Option<Bytes>, StorageError> {
        self.store.find(number)
    }

    fn head(&mut self, head: Bytes) -> Result<(), StorageError> {
        self.append_records(0, &[], &head).map(drop)
    }

    fn sync(&mut self) -> Result<(), StorageError> {
        self.store.sync()
    }

    fn defragment(&mut self) -> Result<(), StorageError> {
        self.store.defragment()
    }

    fn work(&mut self) -> Result<(), StorageError> {
        self.store.work()
    }

    fn is_busy(&self) -> bool {
        self.store.is_busy()
    }

    fn size_in_use(&self) -> u64 {
        self.store.meta().live_bytes
    }

    fn size_allocated(&self) -> u64 {
        self.store.meta().high_water
    }

    fn size_on_disk(&self) -> u64 {
        dir::bytes_on_disk(self.dir.root())
    }

    fn free_on_disk(&self) -> Option<u64> {
        self.store.free_on_disk()
    }

    fn is_low_on_space(&mut self) -> bool {
        self.store.is_low()
    }

    fn doubt(&self) -> Option<Doubt> {
        self.doubt
    }
}

impl Drop for DiskJournal {
    fn drop(&mut self) {
        if let Err(e) = self.store.close() {
            tracing::error!(error = %e, "closing the journal failed");
        }
    }
}
