//! The store's directory: its layout, its format, its lock, and what a crash may have left half done in it.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use super::error::StorageError;

/// The line in the `format` file. Another number means: this version must not touch the store.
const FORMAT: &str = "eddy journal 3\n";

/// Formats of before, each with the reason why they mean something else now.
const OUTDATED: [(&str, &str); 2] = [
    ("eddy journal 1\n", "its files are laid out otherwise"),
    ("eddy journal 2\n", "its revisions are numbered with 40 bits in each space, and now they are with 32"),
];

/// Turns an [`std::io::Error`] into a [`StorageError`] that says what was tried on which file.
pub(super) fn io(doing: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> StorageError {
    let path = path.to_owned();
    move |source| match source.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => StorageError::NoSpace { path },
        _ => StorageError::Io { doing, path, source },
    }
}

/// The error that names a damaged file.
pub(super) fn damaged(path: &Path, what: String) -> StorageError {
    StorageError::Damaged { path: path.to_owned(), what }
}

/// The locked directory.
#[derive(Debug)]
pub(super) struct Dir {
    root: PathBuf,
    // Held for its lock; the system drops it with the process.
    _lock: Option<File>,
}

impl Dir {
    /// Creates the directory where it is missing, and locks it.
    pub fn lock(data_dir: &Path) -> Result<Self, StorageError> {
        let root = data_dir.join("eddy");
        let mut create = DirBuilder::new();
        create.recursive(true).mode(0o700);
        create.create(&root).map_err(io("create", &root))?;
        let path = root.join("lock");
        let lock =
            OpenOptions::new().write(true).create(true).truncate(false).open(&path).map_err(io("create", &path))?;
        Self::locked(root, &path, Some(lock))
    }

    /// Locks the directory that is there, and makes nothing: where there is no lock file, nobody has it open.
    pub fn look_at(data_dir: &Path) -> Result<Self, StorageError> {
        let root = data_dir.join("eddy");
        let path = root.join("lock");
        let lock = match File::open(&path) {
            Err(e) if e.kind() == ErrorKind::NotFound => None,
            opened => Some(opened.map_err(io("open", &path))?),
        };
        Self::locked(root, &path, lock)
    }

    fn locked(root: PathBuf, path: &Path, lock: Option<File>) -> Result<Self, StorageError> {
        match lock.as_ref().map_or(Ok(()), File::try_lock) {
            Ok(()) => Ok(Self { root, _lock: lock }),
            Err(TryLockError::WouldBlock) => Err(StorageError::InUse { path: root }),
            Err(TryLockError::Error(source)) => Err(io("lock", path)(source)),
        }
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    pub fn format(&self) -> PathBuf {
        self.root.join("format")
    }

    /// Whether the store was created completely; refuses a format that is not ours.
    pub fn check_format(&self) -> Result<bool, StorageError> {
        let path = self.format();
        let found = match std::fs::read(&path) {
            Ok(found) => found,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(false),
            Err(e) => return Err(io("read", &path)(e)),
        };
        if found == FORMAT.as_bytes() {
            return Ok(true);
        }
        let supported = FORMAT.trim_end().to_owned();
        if let Some((outdated, why)) = OUTDATED.iter().find(|(outdated, _)| found == outdated.as_bytes()) {
            return Err(StorageError::Outdated { path, found: outdated.trim_end().to_owned(), why, supported });
        }
        let found = String::from_utf8_lossy(&found[..found.len().min(80)]).trim_end().to_owned();
        Err(StorageError::Format { path, found, supported })
    }

    /// Declares the store created.
    pub fn write_format(&self) -> Result<(), StorageError> {
        let path = self.format();
        let draft = self.root.join("format.new");
        std::fs::write(&draft, FORMAT).map_err(io("write", &draft))?;
        sync_file(&draft)?;
        std::fs::rename(&draft, &path).map_err(io("rename", &draft))?;
        sync_dir(&self.root)?;
        // A start that made folders above it may have been cut short before their names were durable.
        for above in self.root.ancestors().skip(1) {
            let above = if above.as_os_str().is_empty() { Path::new(".") } else { above };
            match sync_dir(above) {
                // One that this process may not read it did not make.
                Err(StorageError::Io { source, .. }) if source.kind() == ErrorKind::PermissionDenied => break,
                synced => synced?,
            }
        }
        Ok(())
    }
}

pub(super) fn exists(path: &Path) -> Result<bool, StorageError> {
    path.try_exists().map_err(io("look for", path))
}

pub(super) fn remove_tree(path: &Path) -> Result<(), StorageError> {
    match std::fs::remove_dir_all(path) {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(io("remove", path)(e)),
        _ => Ok(()),
    }
}

pub(super) fn sync_file(path: &Path) -> Result<(), StorageError> {
    File::open(path).and_then(|f| f.sync_all()).map_err(io("sync", path))
}

/// Makes the names in a directory durable.
pub(super) fn sync_dir(path: &Path) -> Result<(), StorageError> {
    sync_file(path)
}

/// Makes a directory with all its files durable.
pub(super) fn sync_tree(path: &Path) -> Result<(), StorageError> {
    for entry in std::fs::read_dir(path).map_err(io("read", path))? {
        let entry = entry.map_err(io("read", path))?;
        let kind = entry.file_type().map_err(io("read", path))?;
        if kind.is_dir() {
            sync_tree(&entry.path())?;
        } else if kind.is_file() {
            sync_file(&entry.path())?;
        }
    }
    sync_dir(path)
}

/// Bytes that the blocks of a directory's files take.
pub(super) fn bytes_on_disk(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let Ok(entries) = std::fs::read_dir(path) else { return 0 };
    entries
        .flatten()
        .map(|entry| match entry.metadata() {
            Ok(m) if m.is_dir() => bytes_on_disk(&entry.path()),
            Ok(m) => m.blocks() * 512,
            Err(_) => 0,
        })
        .sum()
}
