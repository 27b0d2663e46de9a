//! The journal on sled 0.34. The module's page says why it is as it is; this file is the order of its steps.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::ops::Bound;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bytes::Bytes;
use sled::Db;

use super::contain::contain;
use super::dir::{self, Dir, io};
use super::mark::{Mark, State};
use super::page::{self, Content, META_KEY, Meta, PAGE_BYTES, Packer, RECORD_OVERHEAD};
use super::{AppendStats, Group, Journal, StorageError, scan};

/// sled's unit of allocation and reuse. Large enough that a tree node of full pages stays below a quarter of it.
const SEGMENT: usize = 1 << 20;

/// What sled may keep in memory. It spreads this over 256 parts, each of which must hold a few small nodes.
const CACHE_BYTES: u64 = 8 << 20;

/// A head up to this size is written inside the page of its group, a longer one as a value of its own.
const INLINE_HEAD: usize = 1 << 10;

/// While copying, how much may wait in sled's buffers.
const COPY_FLUSH: usize = 4 << 20;

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
    lost_tail: bool,
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
        let journal = dir.journal();
        let db = open_sled(&journal)?;
        let empty = contain(|| db.first()).map_err(|what| damaged(&journal, what))?;
        if empty.map_err(|e| sled_error(&journal, e))?.is_some() {
            return Err(without_format());
        }
        contain(|| db.flush()).map_err(|what| damaged(&journal, what))?.map_err(|e| sled_error(&journal, e))?;
        drop(db);
        dir::sync_tree(&journal)?;
        let marked = State { log_end: -1, ..State::default() };
        let mark = Mark::create(&dir.mark(), marked)?;
        dir::sync_dir(dir.root())?;
        dir.write_format()?;
        Self::start(dir, mark, marked, options)
    }

    fn start(dir: Dir, mark: Mark, marked: State, options: Options) -> Result<Self, StorageError> {
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
            lost_tail: marked.unsynced,
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

    /// Has zeroed, allocated segments ready ahead of sled, so that a full disk is noticed before anything is written,
    /// and so that syncs need not commit a new file length each time.
    fn reserve(&mut self, bytes: usize) -> Result<(), StorageError> {
        let need = 2 + (bytes as u64).saturating_mul(2) / SEGMENT as u64;
        let position = self.log_end() / SEGMENT as i64;
        if self.reserved.0 == position && self.reserved.1 >= need {
            return Ok(());
        }
        if self.dirty {
            // Nothing of sled's may be on its way to the file while its end is extended here.
            self.risky(Self::flush)?;
        }
        let len = self.log.metadata().map_err(io("read", &self.log_path))?.len();
        let segments = len.div_ceil(SEGMENT as u64);
        let mut free = 0;
        while free < need && free < segments && self.unused(segments - 1 - free)? {
            free += 1;
        }
        let target = (segments + need - free) * SEGMENT as u64;
        if len < target {
            if let Err(e) = extend(&self.log, len, target, self.options.fsync) {
                // Give back what was taken; a file that stays longer does no harm.
                let _ = self.log.set_len(len);
                return Err(io("extend", &self.log_path)(e));
            }
        }
        self.reserved = (self.log_end() / SEGMENT as i64, need);
        Ok(())
    }

    /// Whether sled has never written to a segment.
    fn unused(&self, segment: u64) -> Result<bool, StorageError> {
        let mut header = [0xff; scan::SEGMENT_HEADER];
        let read = self.log.read_at(&mut header, segment * SEGMENT as u64).map_err(io("read", &self.log_path))?;
        Ok(read == header.len() && header == [0; scan::SEGMENT_HEADER])
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
        while let Some((key, value)) = self.with_db(|_| db.next().transpose())? {
            found.value(&key, &value, visit).map_err(|e| e.at(&self.log_path))?;
        }
        let meta = found.finish(&self.marked).map_err(|what| damaged(&self.log_path, what))?;
        self.meta = meta;
        self.loaded = true;
        // What was read may be a write that was never acknowledged and is not on disk yet; it counts from now on.
        self.risky(|this| {
            this.settle(false)?;
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

    fn defragment(&mut self) -> Result<(), StorageError> {
        self.ready()?;
        if self.meta.generation == 0 {
            return Ok(());
        }
        self.risky(|this| this.settle(false))?;
        let fresh = self.dir.fresh();
        dir::remove_tree(&fresh)?;
        let copy = self.copy_to(&fresh);
        let (db, meta) = match copy {
            Ok(copy) => copy,
            Err(e) => {
                dir::remove_tree(&fresh)?;
                return Err(e);
            }
        };
        self.risky(|this| this.swap(db, meta))
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

    fn may_have_lost_tail(&self) -> bool {
        self.lost_tail
    }
}

impl Drop for SledJournal {
    fn drop(&mut self) {
        if let Err(e) = self.close_inner() {
            tracing::error!(error = %e, "closing the journal failed");
        }
    }
}

/// What one `trim` gathers before it writes anything.
struct Slice {
    meta: Meta,
    packer: Packer,
    removed: Vec<page::PageKey>,
    read: usize,
}

impl Slice {
    fn new(meta: Meta) -> Self {
        Self { meta, packer: Packer::new(), removed: Vec::new(), read: 0 }
    }

    fn record(
        &mut self,
        number: u64,
        record: &[u8],
        dead: &mut BTreeSet<u64>,
        keep: &mut dyn FnMut(u64, &Bytes) -> Option<Bytes>,
    ) {
        if !dead.remove(&number) {
            self.packer.push(number, record);
            return;
        }
        self.meta.remove(number, record);
        if let Some(content) = keep(number, &Bytes::copy_from_slice(record)) {
            self.meta.add(number, &content);
            self.packer.push(number, &content);
        }
    }
}

impl SledJournal {
    /// Rewrites the page that holds `number`, and those after it while they hold dead records too or fit into the page
    /// that is being written: many small groups become few pages.
    fn with_slice(
        &self,
        slice: &mut Slice,
        number: u64,
        dead: &mut BTreeSet<u64>,
        max_bytes: usize,
        keep: &mut dyn FnMut(u64, &Bytes) -> Option<Bytes>,
    ) -> Result<(), StorageError> {
        let last = page::key(number, u32::MAX);
        let mut at = self.with_db(|db| db.range(..=last).next_back().transpose())?;
        if let Some((key, _)) = &at
            && let Some((first, part)) = page::parse_key(key)
            && part > 0
        {
            // The last part of a long record; begin with its first.
            at = self.with_db(|db| db.get(page::key(first, 0)).map(|v| v.map(|v| (key_of(first, 0), v))))?;
        }
        let mut first_page = true;
        while let Some((key, value)) = at {
            if key.as_ref() == META_KEY {
                break;
            }
            let bad = || damaged(&self.log_path, format!("the page at key {:02x?} does not check out", key.as_ref()));
            let wanted = |first: u64, last: u64| dead.range(first..=last).next().is_some();
            let after;
            match page::decode(&key, &value).ok_or_else(bad)?.content {
                Content::Page(records) => {
                    let (Some(&(first, _)), Some(&(last, _))) = (records.first(), records.last()) else {
                        return Err(bad());
                    };
                    let fits = slice.packer.open_bytes().is_some_and(|open| open + value.len() <= PAGE_BYTES);
                    let take = if first_page {
                        wanted(first, last)
                    } else {
                        slice.read < max_bytes && (wanted(first, last) || fits)
                    };
                    if !take {
                        break;
                    }
                    slice.read += value.len();
                    for (number, record) in records {
                        slice.record(number, record, dead, keep);
                    }
                    slice.removed.push(page::key(first, 0));
                    after = page::key(first, u32::MAX);
                }
                Content::Part { number: first, total, .. } => {
                    if !wanted(first, first) || (!first_page && slice.read >= max_bytes) {
                        break;
                    }
                    let (record, keys) = self.long_record(first, total)?;
                    slice.read += record.len();
                    slice.removed.extend(keys);
                    slice.record(first, &record, dead, keep);
                    after = page::key(first, u32::MAX);
                }
                Content::Meta => break,
            }
            first_page = false;
            at = self.with_db(|db| db.range((Bound::Excluded(after), Bound::Unbounded)).next().transpose())?;
        }
        Ok(())
    }

    fn long_record(&self, number: u64, total: u64) -> Result<(Vec<u8>, Vec<page::PageKey>), StorageError> {
        let bad = || damaged(&self.log_path, format!("record {number} is not whole"));
        let mut record = Vec::new();
        let mut keys = Vec::new();
        for part in 0.. {
            if record.len() as u64 >= total {
                break;
            }
            let key = page::key(number, part);
            let value = self.with_db(|db| db.get(key))?.ok_or_else(bad)?;
            let Some(Content::Part { bytes, .. }) = page::decode(&key, &value).map(|v| v.content) else {
                return Err(bad());
            };
            record.extend_from_slice(bytes);
            keys.push(key);
        }
        if record.len() as u64 == total { Ok((record, keys)) } else { Err(bad()) }
    }

    /// Copies all live records to a new database, durably.
    fn copy_to(&self, fresh: &Path) -> Result<(Db, Meta), StorageError> {
        let need = self.meta.live_bytes * 2 + 8 * SEGMENT as u64;
        if fs4::available_space(self.dir.root()).map_err(io("look at", self.dir.root()))? < need {
            return Err(StorageError::NoSpace { path: fresh.to_owned() });
        }
        let new = open_sled(fresh)?;
        let insert = |values: Vec<(page::PageKey, Vec<u8>)>| {
            let write = || {
                values.into_iter().try_for_each(|(key, value)| new.insert(key, value).map(drop))?;
                new.flush()
            };
            contain(write).map_err(|what| damaged(fresh, what))?.map_err(|e| sled_error(fresh, e))
        };
        let mut packer = Packer::new();
        let mut found = Tally::default();
        let mut db = self.with_db(|db| Ok(db.iter()))?;
        while let Some((key, value)) = self.with_db(|_| db.next().transpose())? {
            let mut push = |number, record: Bytes| {
                packer.push(number, &record);
                Ok(())
            };
            found.value(&key, &value, &mut push).map_err(|e| e.at(&self.log_path))?;
            if packer.bytes() > COPY_FLUSH {
                insert(std::mem::replace(&mut packer, Packer::new()).finish(None))?;
            }
        }
        found.finish(&self.marked).map_err(|what| damaged(&self.log_path, what))?;
        let mut meta = self.meta.clone();
        meta.generation += 1;
        meta.high_water = meta.live_bytes;
        let mut values = packer.finish(None);
        values.push((META_KEY, page::encode_meta(&meta)));
        insert(values)?;
        dir::sync_tree(fresh)?;
        Ok((new, meta))
    }

    /// Gives the copy the journal's name.
    fn swap(&mut self, new: Db, meta: Meta) -> Result<(), StorageError> {
        let (journal, fresh, retired) = (self.dir.journal(), self.dir.fresh(), self.dir.retired());
        // The position in the old log means nothing in the new one.
        self.marked.log_end = -1;
        self.mark.write(self.marked)?;
        self.mark.sync()?;
        dir::remove_tree(&retired)?;
        std::fs::rename(&journal, &retired).map_err(io("rename", &journal))?;
        dir::sync_dir(self.dir.root())?;
        std::fs::rename(&fresh, &journal).map_err(io("rename", &fresh))?;
        dir::sync_dir(self.dir.root())?;
        let old = self.db.replace(new);
        contain(|| drop(old)).map_err(|what| damaged(&retired, what))?;
        self.log = open_log(&self.log_path)?;
        self.meta = meta;
        self.reserved = (-1, 0);
        self.settle(false)?;
        dir::remove_tree(&retired)
    }
}

/// Counts what is read, to compare it with the meta.
#[derive(Default)]
struct Tally {
    best: Option<Meta>,
    seen: Meta,
    last: Option<u64>,
    long: Option<(u64, u32, u64, Vec<u8>)>,
}

/// Why a value cannot be taken in.
enum Bad {
    Value(String),
    Visitor(StorageError),
}

impl Bad {
    fn at(self, path: &Path) -> StorageError {
        match self {
            Self::Value(what) => damaged(path, what),
            Self::Visitor(e) => e,
        }
    }
}

impl Tally {
    fn value(
        &mut self,
        key: &[u8],
        value: &[u8],
        visit: &mut dyn FnMut(u64, Bytes) -> Result<(), StorageError>,
    ) -> Result<(), Bad> {
        let bad = || Bad::Value(format!("the page at key {key:02x?} does not check out"));
        let value = page::decode(key, value).ok_or_else(bad)?;
        if value.meta.as_ref().is_some_and(|m| self.best.as_ref().is_none_or(|b| b.generation < m.generation)) {
            self.best = value.meta;
        }
        if let Some((number, ..)) = &self.long
            && !matches!(value.content, Content::Part { .. })
        {
            return Err(Bad::Value(format!("record {number} is not whole")));
        }
        match value.content {
            Content::Meta => {}
            Content::Page(records) => {
                for (number, record) in records {
                    self.record(number, Bytes::copy_from_slice(record), visit)?;
                }
            }
            Content::Part { number, part, total, bytes } => {
                let (mut so_far, parts) = match self.long.take() {
                    None => (Vec::new(), 0),
                    Some((n, parts, t, so_far)) if n == number && t == total => (so_far, parts),
                    Some((n, ..)) => return Err(Bad::Value(format!("record {n} is not whole"))),
                };
                if part != parts {
                    return Err(Bad::Value(format!("record {number} is not whole")));
                }
                so_far.extend_from_slice(bytes);
                if (so_far.len() as u64) < total {
                    self.long = Some((number, parts + 1, total, so_far));
                } else {
                    self.record(number, so_far.into(), visit)?;
                }
            }
        }
        Ok(())
    }

    fn record(
        &mut self,
        number: u64,
        record: Bytes,
        visit: &mut dyn FnMut(u64, Bytes) -> Result<(), StorageError>,
    ) -> Result<(), Bad> {
        if self.last.is_some_and(|last| last >= number) {
            return Err(Bad::Value(format!("record {number} comes twice")));
        }
        self.last = Some(number);
        self.seen.add(number, &record);
        visit(number, record).map_err(Bad::Visitor)
    }

    /// The newest meta, if all that it promises was read.
    fn finish(self, marked: &State) -> Result<Meta, String> {
        let Some(meta) = self.best else {
            return match (marked.generation, self.seen.live) {
                (0, 0) => Ok(Meta::default()),
                _ => Err(format!("acknowledged records before number {} are missing", marked.next)),
            };
        };
        if meta.generation < marked.generation {
            return Err(format!(
                "it ends before record {} and write {}; everything before record {} and up to write {} was acknowledged",
                meta.next, meta.generation, marked.next, marked.generation
            ));
        }
        let whole = (meta.live, meta.live_bytes, meta.sum) == (self.seen.live, self.seen.live_bytes, self.seen.sum)
            && self.last.is_none_or(|last| last < meta.next)
            && self.long.is_none();
        if !whole {
            return Err(format!(
                "{} records of {} bytes should be there, {} of {} bytes were found, or some were altered",
                meta.live,
                meta.live_bytes - meta.live * RECORD_OVERHEAD,
                self.seen.live,
                self.seen.live_bytes - self.seen.live * RECORD_OVERHEAD,
            ));
        }
        Ok(meta)
    }
}

fn key_of(number: u64, part: u32) -> sled::IVec {
    sled::IVec::from(&page::key(number, part))
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

fn open_log(path: &Path) -> Result<File, StorageError> {
    OpenOptions::new().read(true).write(true).open(path).map_err(io("open", path))
}

fn open_sled(path: &Path) -> Result<Db, StorageError> {
    /// sled lets go of its own lock only when the last of its threads has dropped a reference, shortly after a close.
    const PATIENCE: Duration = Duration::from_secs(5);
    let config = sled::Config::new()
        .path(path)
        .mode(sled::Mode::HighThroughput)
        .cache_capacity(CACHE_BYTES)
        .segment_size(SEGMENT)
        // No thread of sled's that wakes and syncs by itself.
        .flush_every_ms(None);
    let start = Instant::now();
    loop {
        match contain(|| config.open()) {
            Ok(Ok(db)) => return Ok(db),
            Ok(Err(sled::Error::Io(e)))
                if e.to_string().contains("could not acquire lock") && start.elapsed() < PATIENCE =>
            {
                std::thread::sleep(Duration::from_millis(5));
            }
            Ok(Err(e)) => return Err(sled_error(path, e)),
            Err(what) => return Err(damaged(path, what)),
        }
    }
}

/// Zeroes and allocates a file from `from` to `to`.
fn extend(file: &File, from: u64, to: u64, sync: bool) -> std::io::Result<()> {
    let zeros = vec![0; 256 << 10];
    let mut at = from;
    while at < to {
        let len = usize::try_from(to - at).unwrap_or(zeros.len()).min(zeros.len());
        file.write_all_at(&zeros[..len], at)?;
        at += len as u64;
    }
    if sync { file.sync_all() } else { Ok(()) }
}

fn damaged(path: &Path, what: String) -> StorageError {
    StorageError::Damaged { path: path.to_owned(), what }
}

/// sled's error: what the system refused stays that; everything else means that the files are not as they were written.
fn sled_error(path: &Path, error: sled::Error) -> StorageError {
    match error {
        sled::Error::Io(e) if e.raw_os_error().is_some() || e.kind() == std::io::ErrorKind::StorageFull => {
            io("use", path)(e)
        }
        other => damaged(path, other.to_string()),
    }
}
