//! Opening the sled database, and what its errors mean.

use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::path::Path;
use std::time::{Duration, Instant};

use sled::Db;

use super::super::StorageError;
use super::super::contain::contain;
use super::super::dir::io;

/// sled's unit of allocation and reuse. Large enough that a tree node of full pages stays below a quarter of it.
pub(super) const SEGMENT: usize = 1 << 20;

/// What sled may keep in memory. It spreads this over 256 parts, each of which must hold a few small nodes.
const CACHE_BYTES: u64 = 8 << 20;

pub(super) fn open_log(path: &Path) -> Result<File, StorageError> {
    OpenOptions::new().read(true).write(true).open(path).map_err(io("open", path))
}

pub(super) fn open_sled(path: &Path) -> Result<Db, StorageError> {
    /// sled lets go of its own lock only when the last of its threads has dropped a reference, shortly after a close.
    const PATIENCE: Duration = Duration::from_secs(5);
    let config = sled::Config::new()
        .path(path)
        .mode(sled::Mode::HighThroughput)
        .cache_capacity(CACHE_BYTES)
        .segment_size(SEGMENT)
        // No thread of sled's that wakes and syncs by itself.
        .flush_every_ms(None);
    drop_drafts(path)?;
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

/// Removes what a kill left of a snapshot that sled was writing. sled 0.34 would take it for its newest one, whole or not;
/// the last whole one, which it removes only afterwards, and the log say all there is to know.
fn drop_drafts(path: &Path) -> Result<(), StorageError> {
    let entries = match std::fs::read_dir(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(io("read", path))?,
    };
    for entry in entries {
        let entry = entry.map_err(io("read", path))?;
        if entry.file_name().as_encoded_bytes().ends_with(b".generating") {
            std::fs::remove_file(entry.path()).map_err(io("remove", &entry.path()))?;
        }
    }
    Ok(())
}

pub(super) fn damaged(path: &Path, what: String) -> StorageError {
    StorageError::Damaged { path: path.to_owned(), what }
}

/// sled's error: what the system refused stays that; everything else means that the files are not as they were written.
pub(super) fn sled_error(path: &Path, error: sled::Error) -> StorageError {
    match error {
        sled::Error::Io(e) if is_from_system(&e) => io("use", path)(e),
        other => damaged(path, other.to_string()),
    }
}

/// sled keeps the error of a write for all who wait for it as the text of its debug output.
fn is_from_system(error: &std::io::Error) -> bool {
    error.raw_os_error().is_some()
        || error.kind() == ErrorKind::StorageFull
        || error.to_string().starts_with("Os { code: ")
}
