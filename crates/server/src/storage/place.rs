//! Whether a store is the one that was written last, or a copy of it.
//!
//! A copy is an older state: what was acknowledged since it was made is missing, and nothing in it tells. But a copy is
//! made of other files. So the store keeps a small file that says which file it is, by its number and the time of its
//! creation. It is replaced at every start, so that a copy that is written over the original in place is noticed, too.
//! A file system that is set back as a whole is not noticed; a replica then hears it from its peers.

use std::fs::{File, Metadata};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use super::dir::{Dir, io, sync_dir};
use super::error::StorageError;

fn path(root: &Path) -> PathBuf {
    root.join("place")
}

/// What tells this file from every other on its file system.
fn name_of(metadata: &Metadata) -> String {
    let created = metadata.created().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    format!("{} {}\n", metadata.ino(), created.unwrap_or_default().as_nanos())
}

/// Whether the store was copied to where it is. A store without the file is taken for what it seems to be.
pub(super) fn is_copy(root: &Path) -> Result<bool, StorageError> {
    let path = path(root);
    match (std::fs::read(&path), std::fs::metadata(&path)) {
        (Ok(said), Ok(metadata)) => Ok(said != name_of(&metadata).as_bytes()),
        (Err(e), _) | (_, Err(e)) if e.kind() == ErrorKind::NotFound => Ok(false),
        (Err(e), _) | (_, Err(e)) => Err(io("read", &path)(e)),
    }
}

/// From now on this is the original.
pub(super) fn take(dir: &Dir) -> Result<(), StorageError> {
    let (path, draft) = (path(dir.root()), dir.root().join("place.new"));
    let failed = |e| io("write", &draft)(e);
    let mut file = File::create(&draft).map_err(failed)?;
    let name = name_of(&file.metadata().map_err(failed)?);
    file.write_all(name.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)?;
    std::fs::rename(&draft, &path).map_err(io("rename", &draft))?;
    sync_dir(dir.root())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_beside_or_over_the_original_is_noticed() {
        let data = tempfile::tempdir().unwrap();
        let dir = Dir::lock(data.path()).unwrap();
        assert!(!is_copy(dir.root()).unwrap(), "there is no such file yet");
        take(&dir).unwrap();
        assert!(!is_copy(dir.root()).unwrap());
        let old = std::fs::read(path(dir.root())).unwrap();
        let moved = data.path().join("moved");
        std::fs::rename(data.path().join("eddy"), &moved).unwrap();
        std::fs::rename(&moved, data.path().join("eddy")).unwrap();
        assert!(!is_copy(dir.root()).unwrap(), "it was moved, not copied");

        let other = tempfile::tempdir().unwrap();
        let copy = Dir::lock(other.path()).unwrap();
        std::fs::copy(path(dir.root()), path(copy.root())).unwrap();
        assert!(is_copy(copy.root()).unwrap());
        take(&copy).unwrap();
        assert!(!is_copy(copy.root()).unwrap());

        take(&dir).unwrap();
        std::fs::write(path(dir.root()), old).unwrap();
        assert!(is_copy(dir.root()).unwrap(), "written over in place");
    }
}
