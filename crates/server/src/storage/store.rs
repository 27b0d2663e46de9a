//! The log with the checkpoint below it: what is appended, replaced, dropped and read.

mod upkeep;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::checkpoint;
use super::checkpoint::job::{Job, Pace};
use super::checkpoint::source::{self, Source};
use super::checkpoint::tree::{Tree, Trees};
use super::contract::AppendStats;
use super::current::Current;
use super::dir::{damaged, io};
use super::disk::Disk;
use super::error::StorageError;
use super::overlay::Overlay;
use super::page::{Meta, RECORD_OVERHEAD};
use super::wal::{self, Content, Draw, Recovered, Wal};

/// How many writes a replica makes by itself when it begins: its members, its name, and where clients reach it.
const FIRST_WRITES: u64 = 3;

/// Below this the disk is low, bytes: what is left is for deletes, a compaction and a checkpoint after it.
const LOW_BYTES: u64 = 8 << 20;

/// Changes of older records wait for the next group, but not more than so many bytes of them.
const PENDING_BYTES: usize = 1 << 20;

/// Where a store lies, and how it is kept.
pub(super) struct Setup {
    pub disk: Arc<dyn Disk>,
    pub trees: Arc<dyn Trees>,
    pub root: PathBuf,
    pub log: wal::Options,
    /// A log that is longer than this and than what is live, in bytes, is due for a checkpoint.
    pub log_bytes: u64,
    /// How checkpoints are built unless somebody waits.
    pub pace: Pace,
    /// How long after a checkpoint that failed the next is tried.
    pub retry: Duration,
}

/// See the module.
pub(super) struct Store {
    setup: Setup,
    wal: Wal,
    current: Current,
    tree: Option<Arc<dyn Tree>>,
    /// What the log has on top of the checkpoint; while the next one is built, on top of `frozen`.
    fresh: Overlay,
    /// What the next checkpoint is made of, besides this one.
    frozen: Option<Arc<Overlay>>,
    /// Older records with their new content (`None`: dropped) that go into the next frame.
    pending: BTreeMap<u64, Option<Bytes>>,
    pending_bytes: usize,
    /// The state with what is pending.
    meta: Meta,
    loaded: bool,
    poisoned: bool,
    unsynced: bool,
    stale: Vec<PathBuf>,
    job: Option<Job>,
    not_before: Option<Instant>,
    /// A file had to grow and little space was left after it.
    low: bool,
    /// Bytes that were free when it was last looked at.
    free: u64,
    /// The page of the checkpoint that was read last.
    page: Vec<(u64, Bytes)>,
}

fn folder(root: &Path) -> PathBuf {
    root.join("wal")
}

impl Store {
    /// Makes an empty store, durably.
    pub fn create(disk: &dyn Disk, root: &Path, log: wal::Options, draw: &mut Draw) -> Result<(), StorageError> {
        let segment = Wal::create(disk, &folder(root), log, draw)?;
        Current { checkpoint: None, segment, end: None }.write(disk, root)
    }

    /// Opens a store; writes nothing. `load` must follow.
    pub fn open(setup: Setup, draw: Box<Draw>) -> Result<Self, StorageError> {
        let (disk, root) = (Arc::clone(&setup.disk), setup.root.clone());
        let current = Current::read(&*disk, &root)?;
        let end = current.end;
        let recovered = Wal::open(Arc::clone(&disk), &folder(&root), setup.log, draw, current.segment, end)?;
        let Recovered { wal, base, overlay, mut stale, unsynced } = recovered;
        let mut tree = None;
        if let Some(number) = current.checkpoint {
            let opened = setup.trees.open(&checkpoint::folder(&root, number))?;
            check_base(&source::meta_of(&*opened)?, &base, opened.path())?;
            tree = Some(opened);
        } else {
            check_base(&Meta::default(), &base, wal.path())?;
        }
        let kept = current.checkpoint.map(|number| checkpoint::folder(&root, number));
        for name in disk.list(&root).map_err(io("read", &root))? {
            let path = root.join(&name);
            if name == "current.new" || checkpoint::is_folder(&name) && Some(&path) != kept.as_ref() {
                stale.push(path);
            }
        }
        let meta = wal.meta().clone();
        Ok(Self {
            setup,
            wal,
            current,
            tree,
            fresh: overlay,
            frozen: None,
            pending: BTreeMap::new(),
            pending_bytes: 0,
            meta,
            loaded: false,
            poisoned: false,
            unsynced,
            stale,
            job: None,
            not_before: None,
            low: false,
            free: u64::MAX,
            page: Vec::new(),
        })
    }

    /// The state with what is pending.
    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// Whether the last process did not wait for the disk, and did not stop in order.
    pub fn is_unsynced(&self) -> bool {
        self.unsynced
    }

    /// Fails unless the store may be written to.
    pub fn ready(&self) -> Result<(), StorageError> {
        if self.poisoned {
            return Err(StorageError::Poisoned);
        }
        if self.loaded { Ok(()) } else { Err(StorageError::NotLoaded) }
    }

    /// Notes whether what is on disk is still known after an error.
    fn note<T>(&mut self, result: Result<T, StorageError>) -> Result<T, StorageError> {
        self.poisoned |= matches!(&result, Err(e) if !matches!(e, StorageError::NoSpace { .. }));
        result
    }

    /// The last head; `None` for a store that was never written to.
    pub fn last_head(&self) -> Option<Bytes> {
        (self.meta.generation > 0).then(|| self.meta.head.clone())
    }

    /// The same as `load`, for a store that is not served afterwards: writes nothing.
    pub fn look(&mut self, visit: &mut dyn FnMut(u64, Bytes) -> Result<(), StorageError>) -> Result<(), StorageError> {
        self.read_whole(visit)
    }

    /// Files that mean nothing any more.
    pub fn stale(&self) -> &[PathBuf] {
        &self.stale
    }

    /// Which checkpoint counts, and how long the log is, bytes.
    pub fn extent(&self) -> (Option<u64>, u64) {
        (self.current.checkpoint, self.wal.bytes())
    }

    /// Reads all that is live, in ascending order, and checks that it is all.
    pub fn load(&mut self, visit: &mut dyn FnMut(u64, Bytes) -> Result<(), StorageError>) -> Result<(), StorageError> {
        if self.poisoned {
            return Err(StorageError::Poisoned);
        }
        self.read_whole(visit)?;
        if self.setup.log.sync {
            let settled = self.wal.settle();
            self.note(settled)?;
        }
        for path in std::mem::take(&mut self.stale) {
            let is_folder = path.file_name().and_then(|name| name.to_str()).is_some_and(checkpoint::is_folder);
            let disk = &self.setup.disk;
            let removed = if is_folder { disk.remove_tree(&path) } else { disk.remove(&path) };
            removed.map_err(io("remove", &path))?;
        }
        self.look_at_space();
        self.loaded = true;
        Ok(())
    }

    fn read_whole(
        &mut self,
        visit: &mut dyn FnMut(u64, Bytes) -> Result<(), StorageError>,
    ) -> Result<(), StorageError> {
        let overlay = Arc::new(std::mem::take(&mut self.fresh));
        let source = Source { tree: self.tree.clone(), overlay, logs: self.wal.logs().clone() };
        let read = self.read_all(&source, visit);
        self.fresh = Arc::unwrap_or_clone(source.overlay);
        read
    }

    fn read_all(
        &self,
        source: &Source,
        visit: &mut dyn FnMut(u64, Bytes) -> Result<(), StorageError>,
    ) -> Result<(), StorageError> {
        let mut seen = Meta::default();
        let mut last = None;
        let mut reader = source.read_after(None)?;
        while let Some((number, record)) = reader.next()? {
            let path = || self.tree.as_ref().map_or(self.wal.path(), |tree| tree.path());
            let is_new = self.meta.next.is_none_or(|next| number >= next);
            if last.is_some_and(|last| last >= number) || is_new {
                return Err(damaged(path(), format!("record {number} comes twice, or should not be there")));
            }
            last = Some(number);
            seen.add(number, &record);
            visit(number, record)?;
        }
        let meta = &self.meta;
        if (meta.live, meta.live_bytes, meta.sum) == (seen.live, seen.live_bytes, seen.sum) {
            return Ok(());
        }
        let path = self.tree.as_ref().map_or(self.wal.path(), |tree| tree.path());
        let what = format!(
            "{} records of {} bytes should be there, {} of {} bytes were found, or some were altered",
            meta.live,
            meta.live_bytes.saturating_sub(meta.live * RECORD_OVERHEAD),
            seen.live,
            seen.live_bytes.saturating_sub(seen.live * RECORD_OVERHEAD),
        );
        Err(damaged(path, what))
    }

    /// Appends a group with what is pending.
    pub fn append(&mut self, first: u64, records: &[Bytes], head: Bytes) -> Result<AppendStats, StorageError> {
        self.ready()?;
        let mut meta = self.meta.clone();
        if !records.is_empty() {
            if let Some(expected) = meta.next.filter(|next| *next != first) {
                return Err(StorageError::OutOfOrder { expected, got: first });
            }
            for (number, record) in (first..).zip(records) {
                meta.add(number, record);
            }
            meta.next = Some(first + records.len() as u64);
        }
        meta.head = head;
        self.write(first, records, meta)
    }

    /// Appends a frame with what is pending, after which the state is this one.
    fn write(&mut self, first: u64, records: &[Bytes], mut meta: Meta) -> Result<AppendStats, StorageError> {
        meta.generation += 1;
        let appended = self.wal.append(&meta, Content { first, records, changes: &self.pending });
        let appended = self.note(appended)?;
        for (number, place) in appended.places {
            self.fresh.set(number, place);
        }
        self.pending.clear();
        self.pending_bytes = 0;
        self.meta = meta;
        self.unsynced = false;
        if appended.grew {
            self.look_at_space();
        }
        let wal::Appended { bytes, write, sync, .. } = appended;
        Ok(AppendStats { bytes, write, sync })
    }

    /// Makes durable what is pending.
    pub fn sync(&mut self) -> Result<(), StorageError> {
        self.ready()?;
        if self.pending.is_empty() { Ok(()) } else { self.write(0, &[], self.meta.clone()).map(drop) }
    }

    /// See [`Journal::trim`](super::contract::Journal::trim).
    pub fn trim(
        &mut self,
        dead: &mut BTreeSet<u64>,
        max_bytes: usize,
        keep: &mut dyn FnMut(u64, &Bytes) -> Option<Bytes>,
    ) -> Result<(), StorageError> {
        self.ready()?;
        if self.pending_bytes > PENDING_BYTES {
            self.sync()?;
        }
        let mut read = 0;
        while read < max_bytes
            && let Some(&number) = dead.first()
        {
            let found = self.find(number);
            if let Some(record) = self.note(found)? {
                read += record.len() + RECORD_OVERHEAD as usize;
                let kept = keep(number, &record);
                self.meta.remove(number, &record);
                if let Some(kept) = &kept {
                    self.meta.add(number, kept);
                }
                self.pending_bytes += kept.as_ref().map_or(0, Bytes::len) + RECORD_OVERHEAD as usize;
                self.pending.insert(number, kept);
            }
            dead.remove(&number);
        }
        if dead.is_empty() {
            self.page = Vec::new();
        }
        Ok(())
    }

    /// A record as it is now.
    pub fn find(&mut self, number: u64) -> Result<Option<Bytes>, StorageError> {
        if let Some(pending) = self.pending.get(&number) {
            return Ok(pending.clone());
        }
        let above = self.fresh.get(number).or_else(|| self.frozen.as_ref()?.get(number));
        if let Some(place) = above {
            return place.map(|place| self.wal.logs().read(number, place)).transpose();
        }
        let Some(tree) = &self.tree else { return Ok(None) };
        let inside = |page: &[(u64, Bytes)]| {
            page.first().is_some_and(|(first, _)| *first <= number)
                && page.last().is_some_and(|(last, _)| number <= *last)
        };
        if !inside(&self.page) {
            self.page = source::around(&**tree, number)?.0;
        }
        let at = self.page.binary_search_by_key(&number, |(number, _)| *number);
        Ok(at.ok().map(|at| self.page[at].1.clone()))
    }

    pub fn look_at_space(&mut self) {
        // Where the file system does not tell, a full disk is noticed when it is full.
        self.free = self.free_on_disk().unwrap_or(u64::MAX);
        self.low = self.free < LOW_BYTES;
    }

    /// Bytes that are free on the disk now.
    pub fn free_on_disk(&self) -> Option<u64> {
        self.setup.disk.available(&self.setup.root)
    }

    /// Whether little space is left.
    pub fn is_low(&mut self) -> bool {
        if self.low {
            self.look_at_space();
        }
        self.low
    }

    /// Makes everything durable, and notes that this is all, unless it is no more than what a first start writes. Does not wait
    /// for a checkpoint.
    pub fn close(&mut self) -> Result<(), StorageError> {
        let stopped = self.stop_job();
        if self.poisoned || !self.loaded {
            return Ok(());
        }
        stopped?;
        self.sync()?;
        let end = Some(self.meta.generation);
        // What is in doubt stays so until something was written.
        let is_new = self.current.checkpoint.is_none() && self.current.end.is_none();
        // A data dir that goes at once, as in tests, must not get a file while it goes.
        let is_empty = is_new && self.meta.generation <= FIRST_WRITES;
        if end != self.current.end && !self.unsynced && !is_empty {
            if !self.setup.log.sync {
                self.wal.settle()?;
            }
            let current = Current { end, ..self.current };
            let written = current.write(&*self.setup.disk, &self.setup.root);
            self.note(written)?;
            self.current = current;
        }
        self.loaded = false;
        Ok(())
    }
}

/// What a checkpoint was made with must be what the log goes on from.
fn check_base(checkpoint: &Meta, log: &Meta, path: &Path) -> Result<(), StorageError> {
    let known = |meta: &Meta| (meta.generation, meta.next, meta.live, meta.live_bytes, meta.sum);
    if known(checkpoint) == known(log) {
        return Ok(());
    }
    let what = format!("it ends with write {}, the log goes on from write {}", checkpoint.generation, log.generation);
    Err(damaged(path, what))
}
