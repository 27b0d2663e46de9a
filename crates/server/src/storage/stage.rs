//! A store that is made beside the one in use and takes its place in one step: what a member has fetched from others.
//!
//! ```text
//! <data-dir>/eddy.joining/eddy       the new store; `eddy.joining/complete` says that it is whole and durable
//! <data-dir>/eddy.before             the one before, kept for inspection
//! <data-dir>/eddy/anew               says that the store must not be served, but replaced by what others have
//! ```

use std::path::{Path, PathBuf};

use bytes::Bytes;
use eddy_crdt::ReplicaId;

use super::dir::{exists, io, remove_tree, sync_dir, sync_file};
use super::{DiskJournal, Group, Journal, Options, StorageError};

/// Records appended at once, and about how many bytes of them.
const GROUP_RECORDS: usize = 1024;
const GROUP_BYTES: usize = 4 << 20;

/// The folder of a store that is being made.
const JOINING: &str = "eddy.joining";

struct Places {
    store: PathBuf,
    joining: PathBuf,
    complete: PathBuf,
    before: PathBuf,
    anew: PathBuf,
}

impl Places {
    fn of(data_dir: &Path) -> Self {
        let (store, joining) = (data_dir.join("eddy"), data_dir.join(JOINING));
        Self {
            complete: joining.join("complete"),
            anew: store.join("anew"),
            before: data_dir.join("eddy.before"),
            store,
            joining,
        }
    }
}

fn mark(path: &Path, says: &str) -> Result<(), StorageError> {
    std::fs::write(path, says).map_err(io("write", path))?;
    sync_file(path)?;
    path.parent().map_or(Ok(()), sync_dir)
}

/// Whether that entry of a data dir is a store that was not finished.
pub fn is_half_made(entry: &std::fs::DirEntry) -> bool {
    entry.file_name() == JOINING
}

/// Whether there is a store.
///
/// # Errors
/// When the data dir can't be read.
pub fn is_there(data_dir: &Path) -> Result<bool, StorageError> {
    exists(&Places::of(data_dir).store)
}

/// A store that is being made beside the one that is there, if any.
pub struct Making {
    data_dir: PathBuf,
    journal: DiskJournal,
    next: u64,
}

impl Making {
    /// Begins one. What an earlier one left is removed.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn begin(data_dir: &Path, options: Options) -> Result<Self, StorageError> {
        let places = Places::of(data_dir);
        remove_tree(&places.joining)?;
        let mut journal = DiskJournal::open(&places.joining, options)?;
        journal.load(&mut |_, _| Ok(()))?;
        Ok(Self { data_dir: data_dir.to_owned(), journal, next: 1 })
    }

    /// Adds records behind those before, numbered from 1. The head that is given last counts.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn append(&mut self, records: Vec<Bytes>, head: &Bytes) -> Result<(), StorageError> {
        let first = self.next;
        self.next += records.len() as u64;
        self.journal.append(&Group { first, records, head: head.clone() }).map(drop)
    }

    /// Puts it in the place of the one that is there, which must not be open.
    ///
    /// # Errors
    /// When the disk refuses; the store that is there stays then, or the next [`finish`] goes on.
    pub fn end(mut self) -> Result<(), StorageError> {
        self.journal.sync()?;
        drop(self.journal);
        mark(&Places::of(&self.data_dir).complete, "")?;
        finish(&self.data_dir)
    }
}

/// Makes a store of these records, numbered from 1, and puts it in the place of the one that is there, if any. That one
/// must not be open.
///
/// # Errors
/// When the disk refuses; the store that is there stays then, or the next [`finish`] goes on.
pub fn replace(data_dir: &Path, options: Options, records: &[Bytes], head: &Bytes) -> Result<(), StorageError> {
    let mut making = Making::begin(data_dir, options)?;
    let mut rest = records;
    loop {
        let mut bytes = 0;
        let fit = rest.iter().take(GROUP_RECORDS).take_while(|record| {
            let fits = bytes < GROUP_BYTES;
            bytes += record.len();
            fits
        });
        let (now, later) = rest.split_at(fit.count());
        making.append(now.to_vec(), head)?;
        rest = later;
        if rest.is_empty() {
            return making.end();
        }
    }
}

/// Puts a store that is whole in its place. A start calls this before it opens the store that is there, since a crash
/// may have come between.
///
/// # Errors
/// When the disk refuses.
pub fn finish(data_dir: &Path) -> Result<(), StorageError> {
    let places = Places::of(data_dir);
    if !exists(&places.complete)? {
        return Ok(());
    }
    let fresh = places.joining.join("eddy");
    if exists(&fresh)? {
        if exists(&places.store)? {
            remove_tree(&places.before)?;
            std::fs::rename(&places.store, &places.before).map_err(io("rename", &places.store))?;
        }
        std::fs::rename(&fresh, &places.store).map_err(io("rename", &fresh))?;
        sync_dir(data_dir)?;
    }
    remove_tree(&places.joining)
}

/// Notes that the store that is there must be replaced by what others have before it is served again; best by what
/// `giver` has.
///
/// # Errors
/// When the disk refuses.
pub fn want_anew(data_dir: &Path, giver: ReplicaId) -> Result<(), StorageError> {
    mark(&Places::of(data_dir).anew, &giver.get().to_string())
}

/// The member that was named then, if one was.
///
/// # Errors
/// When the data dir can't be read.
pub fn giver(data_dir: &Path) -> Result<Option<ReplicaId>, StorageError> {
    let path = Places::of(data_dir).anew;
    let said = std::fs::read(&path).map_err(io("read", &path))?;
    Ok(std::str::from_utf8(&said).ok().and_then(|id| id.parse().ok()).map(ReplicaId::new))
}

/// Takes that back.
///
/// # Errors
/// When the disk refuses.
pub fn serve_again(data_dir: &Path) -> Result<(), StorageError> {
    let places = Places::of(data_dir);
    std::fs::remove_file(&places.anew).map_err(io("remove", &places.anew))?;
    sync_dir(&places.store)
}

/// Whether that was noted.
///
/// # Errors
/// When the data dir can't be read.
pub fn is_wanted_anew(data_dir: &Path) -> Result<bool, StorageError> {
    exists(&Places::of(data_dir).anew)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPTIONS: Options = Options { fsync: true, segment_bytes: 1 << 20, log_bytes: 1 << 20 };

    fn contents(data_dir: &Path) -> (Vec<Bytes>, Option<Bytes>) {
        let mut records = vec![];
        let mut journal = DiskJournal::open(data_dir, OPTIONS).unwrap();
        let load = journal.load(&mut |_, record| {
            records.push(record);
            Ok(())
        });
        load.unwrap();
        (records, journal.last_head())
    }

    #[test]
    fn a_store_takes_the_place_of_another_which_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let records: Vec<Bytes> = (0..2500_u32).map(|n| Bytes::copy_from_slice(&n.to_be_bytes())).collect();
        let head = Bytes::from_static(b"head");
        replace(dir.path(), OPTIONS, &records[..3], &head).unwrap();
        want_anew(dir.path(), ReplicaId::new(7)).unwrap();
        assert!(is_wanted_anew(dir.path()).unwrap());
        assert_eq!(giver(dir.path()).unwrap(), Some(ReplicaId::new(7)));
        replace(dir.path(), OPTIONS, &records, &head).unwrap();
        assert!(!is_wanted_anew(dir.path()).unwrap());
        assert_eq!(contents(dir.path()), (records, Some(head)));
        assert!(dir.path().join("eddy.before/anew").exists());
        assert!(!dir.path().join("eddy.joining").exists());
    }

    #[test]
    fn a_swap_that_a_crash_interrupted_is_finished_and_a_half_made_store_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let (old, new) = ([Bytes::from_static(b"old")], [Bytes::from_static(b"new")]);
        let head = Bytes::from_static(b"head");
        replace(dir.path(), OPTIONS, &new, &head).unwrap();
        let joining = dir.path().join("eddy.joining");
        std::fs::create_dir(&joining).unwrap();
        std::fs::rename(dir.path().join("eddy"), joining.join("eddy")).unwrap();
        finish(dir.path()).unwrap();
        assert!(!is_there(dir.path()).unwrap(), "it was not said to be complete");
        mark(&joining.join("complete"), "").unwrap();
        finish(dir.path()).unwrap();
        finish(dir.path()).unwrap();
        assert_eq!(contents(dir.path()).0, new);
        replace(dir.path(), OPTIONS, &old, &head).unwrap();
        assert_eq!(contents(dir.path()).0, old);
    }
}
