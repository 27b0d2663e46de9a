//! Trees in sled 0.34.
//!
//! A sled database that has its name is never changed. sled uses segments of its file again, in an order that a power
//! cut may not keep. So everything that sled likes to rewrite when it opens and reads a database is done before
//! (`settle`). sled's own flush neither asks the disk to empty its cache nor commits the file's size. So all its files
//! are synced after it is closed. A value above a quarter of sled's segment would go to a file of its own; pages are
//! smaller.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use sled::Db;
use xxhash_rust::xxh3::Xxh3;

use super::super::contain::contain;
use super::super::dir::{self, damaged, io};
use super::super::error::StorageError;
use super::super::page::{META_KEY, PageKey};
use super::tree::{Draft, Pacing, Tree, Trees};

/// sled's unit of allocation. Large enough that a tree node of full pages stays below a quarter of it.
const SEGMENT: usize = 1 << 20;

/// What sled may keep in memory. It spreads this over 256 parts, each of which must hold a few small nodes.
const CACHE_BYTES: u64 = 8 << 20;

/// After so many bytes were read, sled is closed and opened again. Its cache counts accesses in blocks of 64 per part
/// before it evicts anything. So it would hold on to everything that is touched once, up to 200 MB.
const READ_REOPEN: usize = 12 << 20;

/// The same after so many bytes were written.
const WRITE_REOPEN: usize = 16 << 20;

/// Neither happens before this part of the file was read, or of all that was written: opening takes the longer the more is there.
const REOPEN_PART: usize = 32;

/// How often a new database is opened and read until its files stay as they are. Two or three times are enough.
const SETTLE_MAX: usize = 10;

/// Opens and makes sled databases.
#[derive(Debug)]
pub struct SledTrees;

impl Trees for SledTrees {
    fn create(&self, path: &Path) -> Result<Box<dyn Draft>, StorageError> {
        dir::remove_tree(path)?;
        Ok(Box::new(SledDraft { db: Some(open(path)?), written: 0, fresh: 0, path: path.to_owned() }))
    }

    fn open(&self, path: &Path) -> Result<Arc<dyn Tree>, StorageError> {
        for file in ["db", "conf"] {
            // sled would make a new one.
            let path = path.join(file);
            if !dir::exists(&path)? {
                return Err(damaged(&path, "the file is missing".to_owned()));
            }
        }
        Ok(Arc::new(SledTree::open(path)?))
    }
}

fn open(path: &Path) -> Result<Db, StorageError> {
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

fn close(db: Db, path: &Path) -> Result<(), StorageError> {
    // sled flushes when it is dropped, and panics where that fails.
    contain(|| drop(db)).map_err(|what| damaged(path, what))
}

/// sled's error: what the system refused stays that; everything else means that the files are not as they were written.
fn sled_error(path: &Path, error: sled::Error) -> StorageError {
    match error {
        sled::Error::Io(e) if is_from_system(&e) => io("use", path)(e),
        // Its text has a backtrace that is never filled.
        sled::Error::Corruption { at, .. } => {
            let place = at.map_or(String::new(), |at| format!(", at {at:?}"));
            damaged(path, format!("its pages do not check out{place}"))
        }
        other => damaged(path, other.to_string()),
    }
}

/// sled keeps the error of a write for all who wait for it as the text of its debug output.
fn is_from_system(error: &std::io::Error) -> bool {
    error.raw_os_error().is_some()
        || error.kind() == ErrorKind::StorageFull
        || error.to_string().starts_with("Os { code: ")
}

struct SledDraft {
    /// `None` once it is finished, and after a failure to open it again.
    db: Option<Db>,
    /// How many bytes were written, and how many of these since it was opened last.
    written: usize,
    fresh: usize,
    path: PathBuf,
}

impl Drop for SledDraft {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.db.take().map(|db| close(db, &self.path)) {
            tracing::debug!(%error, "closing a checkpoint that was given up");
        }
    }
}

impl Draft for SledDraft {
    fn insert(&mut self, values: Vec<(PageKey, Vec<u8>)>, pacing: &dyn Pacing) -> Result<(), StorageError> {
        if self.fresh > WRITE_REOPEN.max(self.written / REOPEN_PART) {
            self.fresh = 0;
            self.db.take().map_or(Ok(()), |db| close(db, &self.path))?;
            self.db = Some(open(&self.path)?);
        }
        let db = self.db.as_ref().ok_or(StorageError::Poisoned)?;
        let bytes: usize = values.iter().map(|(_, value)| value.len()).sum();
        (self.written, self.fresh) = (self.written + bytes, self.fresh + bytes);
        let write = |change: &mut dyn FnMut() -> sled::Result<()>| {
            contain(change).map_err(|what| damaged(&self.path, what))?.map_err(|e| sled_error(&self.path, e))
        };
        // sled writes a leaf anew each time that it splits, and when it has been changed ten times. So leaves take their
        // shape while they are empty. Filling one is eight changes then, each written once.
        write(&mut || values.iter().try_for_each(|(key, _)| db.insert(key, &[]).map(drop)))?;
        let (log, mut values) = (self.path.join("db"), values.into_iter().peekable());
        while values.peek().is_some() {
            if pacing.stopped() {
                return Err(StorageError::Abandoned);
            }
            let (mut part, bytes) = (0, pacing.part_bytes());
            write(&mut || {
                while part < bytes
                    && let Some((key, value)) = values.next()
                {
                    part += value.len();
                    db.insert(key, value)?;
                }
                db.flush().map(drop)
            })?;
            std::fs::File::open(&log).and_then(|file| file.sync_data()).map_err(io("sync", &log))?;
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>, pacing: &dyn Pacing) -> Result<(), StorageError> {
        let path = &self.path;
        self.db.take().map_or(Ok(()), |db| close(db, path))?;
        settle(path, pacing)?;
        dir::sync_tree(path)?;
        path.parent().map_or(Ok(()), dir::sync_dir)
    }
}

/// Opens and reads a database until that leaves its files as they are.
fn settle(path: &Path, pacing: &dyn Pacing) -> Result<(), StorageError> {
    let mut before = hash_of(path, pacing)?;
    for _ in 0..SETTLE_MAX {
        let tree = SledTree::open(path)?;
        let mut key = [0; 12];
        while let Some((found, _)) = tree.at_or_above(&key)? {
            if pacing.stopped() {
                return Err(StorageError::Abandoned);
            }
            if found == META_KEY {
                break;
            }
            key = successor(found);
        }
        tree.close()?;
        let after = hash_of(path, pacing)?;
        if before == after {
            return Ok(());
        }
        before = after;
    }
    Err(damaged(path, "sled goes on changing a database that is only read".to_owned()))
}

fn successor(mut key: PageKey) -> PageKey {
    for byte in key.iter_mut().rev() {
        *byte = byte.wrapping_add(1);
        if *byte != 0 {
            break;
        }
    }
    key
}

/// A hash of the names and contents of all files in a folder.
fn hash_of(path: &Path, pacing: &dyn Pacing) -> Result<u64, StorageError> {
    use std::io::Read;
    let mut entries: Vec<_> =
        std::fs::read_dir(path).and_then(Iterator::collect::<std::io::Result<_>>).map_err(io("read", path))?;
    entries.sort_by_key(std::fs::DirEntry::path);
    let mut hash = Xxh3::new();
    let mut buffer = vec![0; 256 << 10];
    for entry in entries {
        hash.update(entry.file_name().as_encoded_bytes());
        if entry.file_type().map_err(io("read", path))?.is_dir() {
            hash.update(&hash_of(&entry.path(), pacing)?.to_le_bytes());
            continue;
        }
        let mut file = std::fs::File::open(entry.path()).map_err(io("open", &entry.path()))?;
        loop {
            if pacing.stopped() {
                return Err(StorageError::Abandoned);
            }
            let read = file.read(&mut buffer).map_err(io("read", &entry.path()))?;
            if read == 0 {
                break;
            }
            hash.update(&buffer[..read]);
        }
    }
    Ok(hash.digest())
}

#[derive(Debug)]
struct SledTree {
    path: PathBuf,
    /// After how many bytes that were read it is opened again.
    reopen: usize,
    open: Mutex<Open>,
}

#[derive(Debug)]
struct Open {
    /// `None` only after a failure to open it again.
    db: Option<Db>,
    read: usize,
}

impl SledTree {
    fn open(path: &Path) -> Result<Self, StorageError> {
        let open = Mutex::new(Open { db: Some(open(path)?), read: 0 });
        let file = path.join("db");
        let bytes = std::fs::metadata(&file).map_err(io("look at", &file))?.len();
        let reopen = READ_REOPEN.max(usize::try_from(bytes).unwrap_or(usize::MAX) / REOPEN_PART);
        Ok(Self { path: path.to_owned(), reopen, open })
    }

    fn close(mut self) -> Result<(), StorageError> {
        self.open.get_mut().db.take().map_or(Ok(()), |db| close(db, &self.path))
    }

    fn look(
        &self,
        look: impl FnOnce(&Db) -> sled::Result<Option<(sled::IVec, sled::IVec)>>,
    ) -> Result<Option<(PageKey, Bytes)>, StorageError> {
        let mut guard = self.open.lock();
        let state = &mut *guard;
        if state.read > self.reopen {
            state.read = 0;
            if let Some(db) = state.db.take() {
                close(db, &self.path)?;
            }
            state.db = Some(open(&self.path)?);
        }
        let db = state.db.as_ref().ok_or(StorageError::Poisoned)?;
        let found = contain(|| look(db)).map_err(|what| damaged(&self.path, what))?;
        let Some((key, value)) = found.map_err(|e| sled_error(&self.path, e))? else { return Ok(None) };
        state.read += value.len();
        let key = PageKey::try_from(&*key)
            .map_err(|_| damaged(&self.path, format!("the key {:02x?} is none of a page", &*key)))?;
        Ok(Some((key, Bytes::copy_from_slice(&value))))
    }
}

impl Tree for SledTree {
    fn at_or_above(&self, key: &PageKey) -> Result<Option<(PageKey, Bytes)>, StorageError> {
        self.look(|db| db.range(*key..).next().transpose())
    }

    fn at_or_below(&self, key: &PageKey) -> Result<Option<(PageKey, Bytes)>, StorageError> {
        self.look(|db| db.range(..=*key).next_back().transpose())
    }

    fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SledTree {
    fn drop(&mut self) {
        if let Some(db) = self.open.get_mut().db.take()
            && let Err(e) = close(db, &self.path)
        {
            tracing::error!(error = %e, "closing the checkpoint failed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::page::{self, Meta, Packer};
    use super::super::job::STEP_BYTES;
    use super::*;

    /// sled writes to a database that is opened and read; one that was settled it leaves as it is, also when it is not closed.
    #[test]
    fn a_finished_tree_is_never_written_to() {
        for pages in [0, 1, 20, 700] {
            let data = tempfile::tempdir().unwrap();
            let path = data.path().join("tree");
            let mut draft = SledTrees.create(&path).unwrap();
            let mut packer = Packer::new();
            for number in 1..=pages * 4 {
                packer.push(number, &[number as u8; 3000]);
            }
            packer.push(1_000_000, &[7; 100_000]);
            for chunk in packer.finish(None).chunks(90) {
                draft.insert(chunk.to_vec(), &|| false).unwrap();
            }
            draft.insert(vec![(META_KEY, page::encode_meta(&Meta::default()))], &|| false).unwrap();
            draft.finish(&|| false).unwrap();
            let finished = hash_of(&path, &|| false).unwrap();
            for _ in 0..3 {
                let tree = SledTrees.open(&path).unwrap();
                assert_eq!(hash_of(&path, &|| false).unwrap(), finished, "opened, {pages} pages");
                let (mut key, mut found) = ([0; 12], 0);
                while let Some((at, _)) = tree.at_or_above(&key).unwrap() {
                    found += 1;
                    if at == META_KEY {
                        break;
                    }
                    key = successor(at);
                }
                assert!(found > pages, "{found}");
                assert_eq!(hash_of(&path, &|| false).unwrap(), finished, "read, {pages} pages");
                drop(tree);
                assert_eq!(hash_of(&path, &|| false).unwrap(), finished, "closed, {pages} pages");
            }
            assert!(!path.join("blobs").is_dir() || std::fs::read_dir(path.join("blobs")).unwrap().next().is_none());
        }
    }

    /// Of what sled writes again, much stays in its file until the checkpoint goes. So the file tells of it.
    #[test]
    fn a_tree_takes_little_more_than_its_pages() {
        let data = tempfile::tempdir().unwrap();
        let path = data.path().join("tree");
        let mut draft = SledTrees.create(&path).unwrap();
        let (mut record, mut pages) = (vec![0; 500], 0);
        let mut numbers = 1..=48_000_u64;
        while !numbers.is_empty() {
            let mut packer = Packer::new();
            while packer.bytes() < STEP_BYTES
                && let Some(number) = numbers.next()
            {
                record[..8].copy_from_slice(&number.to_le_bytes());
                packer.push(number, &record);
            }
            let values = packer.finish(None);
            pages += values.iter().map(|(_, value)| value.len() as u64).sum::<u64>();
            draft.insert(values, &|| false).unwrap();
        }
        draft.finish(&|| false).unwrap();
        let file = std::fs::metadata(path.join("db")).unwrap().len();
        assert!(file < pages * 8 / 5, "{pages} bytes of pages take {file}");
    }
}
