//! The note in a data dir that an import into it has not ended. Such a store may lack what its source still has, so no
//! server starts on it.

use std::path::{Path, PathBuf};

use super::StorageError;
use super::dir::{exists, io, remove_tree, sync_dir, sync_file};

fn note(data_dir: &Path) -> PathBuf {
    data_dir.join("eddy.import")
}

/// Where the note is, if there is one.
///
/// # Errors
/// When the data dir can't be read.
pub fn noted(data_dir: &Path) -> Result<Option<PathBuf>, StorageError> {
    let path = note(data_dir);
    Ok(exists(&path)?.then_some(path))
}

/// What the note says; `None` without one.
///
/// # Errors
/// When it can't be read.
pub fn read(data_dir: &Path) -> Result<Option<String>, StorageError> {
    let Some(path) = noted(data_dir)? else { return Ok(None) };
    std::fs::read_to_string(&path).map(Some).map_err(io("read", &path))
}

/// Notes that an import has begun. What an earlier one left is removed: only call this where a note was, or nothing.
///
/// # Errors
/// When the disk refuses.
pub fn begin(data_dir: &Path, text: &str) -> Result<(), StorageError> {
    std::fs::create_dir_all(data_dir).map_err(io("create", data_dir))?;
    let (path, draft) = (note(data_dir), data_dir.join("eddy.import.new"));
    std::fs::write(&draft, text).map_err(io("write", &draft))?;
    sync_file(&draft)?;
    std::fs::rename(&draft, &path).map_err(io("rename", &draft))?;
    sync_dir(data_dir)?;
    for folder in ["eddy", "eddy.joining", "eddy.before"] {
        remove_tree(&data_dir.join(folder))?;
    }
    sync_dir(data_dir)
}

/// Notes that it has ended: a server may start.
///
/// # Errors
/// When the disk refuses.
pub fn end(data_dir: &Path) -> Result<(), StorageError> {
    let path = note(data_dir);
    std::fs::remove_file(&path).map_err(io("remove", &path))?;
    sync_dir(data_dir)
}
