//! The journal on sled 0.34. The module's page says why it is as it is; this file is the order of its steps.

use std::collections::BTreeSet;
use std::fs::File;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bytes::Bytes;
use sled::Db;

use super::contain::contain;
use super::dir::{self, Dir, io};
use super::mark::{Mark, State};
use super::page::{self, META_KEY, Meta, PAGE_BYTES, Packer};
use super::{AppendStats, Doubt, Group, Journal, StorageError, place, scan};

mod database;
mod rewrite;
mod space;
mod tally;
mod trim;

use self::database::{SEGMENT, damaged, open_log, open_sled, sled_error};
use self::tally::Tally;
use self::trim::Slice;

/// A head up to this size is written inside the page of its group, a longer one as a value of its own.
const INLINE_HEAD: usize = 1 << 10;

/// After so much was loaded, sled is closed and opened again: its cache counts accesses in blocks of 64 per part before
/// it evicts anything, and so would hold on to everything that is read once.
const LOAD_REOPEN: usize = 32 << 20;

/// `tidy` leaves a log alone that is below this, or below `TIDY_FACTOR` times the live bytes.
const TIDY_BYTES: u64 = 64 << 20;
const TIDY_FACTOR: u64 = 4;

/// How to open a journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Whether an append waits for the disk. Without, a power loss loses the newest records.
    pub fsync: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { fsync: true }
    }
}

/// [`Journal`] on sled.
#[derive(Debug)]
pub struct SledJournal {
    options: Options,
    /// `None` only while the database is swapped or closed.
    db: Option<Db>,
    /// Our own handle on sled's log, to sync and to reserve space.
    log: File,
    log_path: PathBuf,
    mark: Mark,
    marked: State,
    meta: Meta,
    loaded: bool,
    poisoned: bool,
    /// Something was written since the last flush.
    dirty: bool,
    /// The segment in which the log ended when space was last reserved, and how many free ones it then had ahead.
    reserved: (i64, u64),
    doubt: Option<Doubt>,
    /// Whether this process has written to the store.
    settled_in: bool,
    /// The file had to grow and little space was left after it.
    low: bool,
    // Last: the lock outlives the database.
    dir: Dir,
}

impl SledJournal {
    /// Opens the store in `<data_dir>/eddy`, or creates it. `load` must follow.
    ///
    /// # Errors
    /// [`StorageError::InUse`], [`StorageError::Format`], [`StorageError::Damaged`], or what the system answers.
    pub fn open(data_dir: &Path, options: Options) -> Result<Self, StorageError> {
        let dir = Dir::lock(data_dir)?;
        if dir.check_format()? {
            dir.finish_swap()?;
            let (mark, marked) = open_mark(&dir)?;
            for file in ["db", "conf"] {
                let path = dir.journal().join(file);
                if !dir::exists(&path)? {
                    return Err(StorageError::Damaged { path, what: "the file is missing".to_owned() });
                }
            }
            scan::check(&dir.journal(), SEGMENT, marked.log_end)?;
            Self::start(dir, mark, marked, options)
        } else {
            Self::create(dir, options)
        }
    }

    fn create(dir: Dir, options: Options) -> Result<Self, StorageError> {
        let without_format = || StorageError::Damaged {
            path: dir.format(),
            what: "the file is missing, but there are records".to_owned(),
        };
        // The remains of a creation that was cut short are empty; records mean that the file was lost.
        if dir::exists(&dir.mark())? && open_mark(&dir)?.1 != (State { log_end: -1, ..State::default() }) {
            return Err(without_format());
        }
        let (journal, fresh) = (dir.journal(), dir.fresh());
        // What sled has half created it does not always open again; so it gets its name when it is whole.
        dir::remove_tree(&fresh)?;
        let here = dir::exists(&journal)?;
        let path = if here { &journal } else { &fresh };
        let db = open_sled(path)?;
        let empty = contain(|| db.first()).map_err(|what| damaged(path, what))?;
        if empty.map_err(|e| sled_error(path, e))?.is_some() {
            return Err(without_format());
        }
        contain(|| db.flush()).map_err(|what| damaged(path, what))?.map_err(|e| sled_error(path, e))?;
        drop(db);
        dir::sync_tree(path)?;
        if !here {
            dir.name_fresh()?;
        }
        let marked = State { log_end: -1, ..State::default() };
        let mark = Mark::create(&dir.mark(), marked)?;
        dir::sync_dir(dir.root())?;
        dir.write_format()?;
        Self::start(dir, mark, marked, options)
    }

    fn start(dir: Dir, mark: Mark, marked: State, options: Options) -> Result<Self, StorageError> {
        let copied = place::is_copy(&dir)?.then_some(Doubt::Copied);
        let doubt = copied.or(marked.unsynced.then_some(Doubt::Unsynced));
        let db = open_sled(&dir.journal())?;
        let log_path = dir.journal().join("db");
        let log = open_log(&log_path)?;
        Ok(Self {
            options,
            db: Some(db),
            log,
            log_path,
            mark,
            marked,
            meta: Meta::default(),
            loaded: false,
            poisoned: false,
            dirty: false,
            reserved: (-1, 0),
            doubt,
            settled_in: false,
            low: false,
            dir,
        })
    }

    /// Makes everything durable and closes the store.
    ///
    /// # Errors
    /// What the last flush answers.
    pub fn close(mut self) -> Result<(), StorageError> {
        self.close_inner()
    }

    fn close_inner(&mut self) -> Result<(), StorageError> {
        let Some(db) = self.db.take() else { return Ok(()) };
        let mut result = Ok(());
        if self.loaded && !self.poisoned {
            self.db = Some(db.clone());
            result = self.settle(true).map(drop);
            self.db = None;
        }
        // sled flushes when it is dropped, and panics where that fails.
        if let Err(what) = contain(|| drop(db)) {
            result = result.and(Err(damaged(&self.log_path, what)));
        }
        result
    }

    fn ready(&self) -> Result<&Db, StorageError> {
        if self.poisoned {
            return Err(StorageError::Poisoned);
        }
        if !self.loaded {
            return Err(StorageError::NotLoaded);
        }
        self.db.as_ref().ok_or(StorageError::Poisoned)
    }

    /// Runs a step after whose failure the state of the disk is unknown.
    fn risky<T>(&mut self, step: impl FnOnce(&mut Self) -> Result<T, StorageError>) -> Result<T, StorageError> {
        let result = step(self);
        self.poisoned |= result.is_err();
        result
    }

    fn with_db<T>(&self, f: impl FnOnce(&Db) -> sled::Result<T>) -> Result<T, StorageError> {
        let db = self.db.as_ref().ok_or(StorageError::Poisoned)?;
        match contain(|| f(db)) {
            Ok(result) => result.map_err(|e| sled_error(&self.log_path, e)),
            Err(what) => Err(damaged(&self.log_path, what)),
        }
    }

    fn log_end(&self) -> i64 {
        self.db.as_ref().map_or(-1, |db| db.context.pagecache.log.stable_offset())
    }

    /// Writes values atomically into sled's buffers.
    fn put(&mut self, values: Vec<(page::PageKey, Vec<u8>)>) -> Result<(), StorageError> {
        self.dirty = true;
        self.with_db(|db| match <[_; 1]>::try_from(values) {
            // A single insert is atomic by itself; a batch costs a second message and a second write.
            Ok([(key, value)]) => db.insert(key, value).map(drop),
            Err(values) => {
                let mut batch = sled::Batch::default();
                for (key, value) in values {
                    batch.insert(&key, value);
                }
                db.apply_batch(batch)
            }
        })
    }

    /// Closes sled and opens it again, to empty its cache.
    fn forget_cache(&mut self) -> Result<(), StorageError> {
        let db = self.db.take();
        contain(|| drop(db)).map_err(|what| damaged(&self.log_path, what))?;
        self.db = Some(open_sled(&self.dir.journal())?);
        Ok(())
    }

    /// Hands sled's buffers to the file.
    fn flush(&mut self) -> Result<(), StorageError> {
        self.with_db(|db| db.flush().map(drop))?;
        self.dirty = false;
        Ok(())
    }

    /// Waits for the disk and raises the mark. `closing` does so even where fsync is off.
    fn settle(&mut self, closing: bool) -> Result<Duration, StorageError> {
        let mut took = Duration::ZERO;
        if self.dirty {
            self.flush()?;
        }
        if self.options.fsync || closing {
            let state = State {
                generation: self.meta.generation,
                next: self.meta.next,
                log_end: self.log_end(),
                unsynced: false,
            };
            if state == self.marked {
                return Ok(took);
            }
            let start = Instant::now();
            self.log.sync_data().map_err(io("sync", &self.log_path))?;
            took = start.elapsed();
            self.mark.write(state)?;
            if self.marked.unsynced {
                self.mark.sync()?;
            }
            self.marked = state;
        }
        Ok(took)
    }

    /// Writes values with the new meta and makes them durable.
    fn commit(&mut self, mut values: Vec<(page::PageKey, Vec<u8>)>, meta: Meta) -> Result<AppendStats, StorageError> {
        let start = Instant::now();
        if values.is_empty() || meta.head.len() > INLINE_HEAD {
            values.push((META_KEY, page::encode_meta(&meta)));
        }
        self.put(values)?;
        self.flush()?;
        self.meta = meta;
        let write = start.elapsed();
        let sync = self.settle(false)?;
        Ok(AppendStats { bytes: 0, write, sync })
    }
}

impl Journal for SledJournal {
    fn load(
        &mut self,
        visit: &mut dyn FnMut(u64, Bytes) -> Result<(), StorageError>,
    ) -> Result<Option<Bytes>, StorageError> {
        if self.poisoned {
            return Err(StorageError::Poisoned);
        }
        let mut found = Tally::default();
        let mut db = self.with_db(|db| Ok(db.iter()))?;
        let mut read = 0;
        while let Some((key, value)) = self.with_db(|_| db.next().transpose())? {
            found.value(&key, &value, visit).map_err(|e| e.at(&self.log_path))?;
            read += value.len();
            if read > LOAD_REOPEN {
                read = 0;
                drop(db);
                self.forget_cache()?;
                let after = (Bound::Excluded(key), Bound::Unbounded);
                db = self.with_db(|db| Ok(db.range(after)))?;
            }
        }
        drop(db);
        if found.seen.live_bytes > LOAD_REOPEN as u64 {
            self.forget_cache()?;
        }
        let meta = found.finish(&self.marked).map_err(|what| damaged(&self.log_path, what))?;
        self.meta = meta;
        self.loaded = true;
        // What was read may be a write that was never acknowledged and is not on disk yet; it counts from now on.
        self.risky(|this| {
            this.settle(false)?;
            // sled has zeroed the rest of its segment with one long write, which Linux caches as one unit; see `extend`.
            if this.options.fsync {
                rustix::fs::fadvise(&this.log, 0, None, rustix::fs::Advice::DontNeed).ok();
            }
            if !this.options.fsync {
                this.marked = State { unsynced: true, ..this.marked };
                this.mark.write(this.marked)?;
                this.mark.sync()?;
            }
            Ok(())
        })?;
        Ok((self.meta.generation > 0).then(|| self.meta.head.clone()))
    }

    fn append(&mut self, group: &Group) -> Result<AppendStats, StorageError> {
        self.ready()?;
        let mut meta = self.meta.clone();
        let mut packer = Packer::new();
        let mut number = group.first;
        if !group.records.is_empty() && meta.next != 0 && meta.next != number {
            return Err(StorageError::OutOfOrder { expected: meta.next, got: number });
        }
        for record in &group.records {
            meta.add(number, record);
            packer.push(number, record);
            number += 1;
        }
        if !group.records.is_empty() {
            meta.next = number;
        }
        meta.generation += 1;
        meta.head = group.head.clone();
        check_head(&meta.head)?;
        let bytes = packer.bytes() + meta.head.len();
        self.reserve(bytes)?;
        let values = packer.finish(Some(&meta).filter(|m| m.head.len() <= INLINE_HEAD));
        let stats = self.risky(|this| this.commit(values, meta))?;
        if !self.settled_in {
            // Not before: a copy that is not written to stays one.
            self.risky(|this| place::take(&this.dir))?;
            self.settled_in = true;
        }
        Ok(AppendStats { bytes: bytes as u64, ..stats })
    }

    fn trim(
        &mut self,
        dead: &mut BTreeSet<u64>,
        max_bytes: usize,
        keep: &mut dyn FnMut(u64, &Bytes) -> Option<Bytes>,
    ) -> Result<(), StorageError> {
        self.ready()?;
        if dead.is_empty() {
            return Ok(());
        }
        let all = usize::try_from(self.meta.live_bytes).unwrap_or(usize::MAX);
        self.reserve(max_bytes.min(all).saturating_add(PAGE_BYTES * 2))?;
        self.risky(|this| {
            let mut slice = Slice::new(this.meta.clone());
            while slice.read < max_bytes {
                let Some(&number) = dead.first() else { break };
                this.with_slice(&mut slice, number, dead, max_bytes, keep)?;
                slice.packer.cut();
                // It was rewritten just now, or is not in the journal.
                dead.remove(&number);
            }
            if slice.removed.is_empty() {
                return Ok(());
            }
            let Slice { mut meta, packer, removed, .. } = slice;
            meta.generation += 1;
            let mut batch = sled::Batch::default();
            for key in removed {
                batch.remove(&key);
            }
            for (key, value) in packer.finish(None) {
                batch.insert(&key, value);
            }
            batch.insert(&META_KEY, page::encode_meta(&meta));
            this.dirty = true;
            this.with_db(|db| db.apply_batch(batch))?;
            this.meta = meta;
            // sled has segments to use again; if not, growing will tell.
            this.low = false;
            Ok(())
        })
    }

    fn head(&mut self, head: Bytes) -> Result<(), StorageError> {
        self.append(&Group { first: 0, records: Vec::new(), head }).map(drop)
    }

    fn sync(&mut self) -> Result<(), StorageError> {
        self.ready()?;
        self.risky(|this| this.settle(false).map(drop))
    }

    fn tidy(&mut self) -> Result<bool, StorageError> {
        self.ready()?;
        let len = self.log.metadata().map_err(io("read", &self.log_path))?.len();
        let bloated = len > TIDY_BYTES && len / TIDY_FACTOR > self.meta.live_bytes;
        if bloated {
            self.rewrite(false)?;
        }
        Ok(bloated)
    }

    fn defragment(&mut self) -> Result<(), StorageError> {
        self.rewrite(true)
    }

    fn size_in_use(&self) -> u64 {
        self.meta.live_bytes
    }

    fn size_allocated(&self) -> u64 {
        self.meta.high_water
    }

    fn size_on_disk(&self) -> u64 {
        dir::bytes_on_disk(self.dir.root())
    }

    fn is_low_on_space(&mut self) -> bool {
        if self.low {
            self.look_at_space();
        }
        self.low
    }

    fn doubt(&self) -> Option<Doubt> {
        self.doubt
    }
}

impl Drop for SledJournal {
    fn drop(&mut self) {
        if let Err(e) = self.close_inner() {
            tracing::error!(error = %e, "closing the journal failed");
        }
    }
}

fn check_head(head: &Bytes) -> Result<(), StorageError> {
    if head.len() <= PAGE_BYTES {
        return Ok(());
    }
    Err(StorageError::HeadTooLong { got: head.len(), most: PAGE_BYTES })
}

fn open_mark(dir: &Dir) -> Result<(Mark, State), StorageError> {
    let path = dir.mark();
    if !dir::exists(&path)? {
        let what = "the mark of the last durable write is missing, so a loss could not be noticed".to_owned();
        return Err(StorageError::Damaged { path, what });
    }
    Mark::open(&path)
}
