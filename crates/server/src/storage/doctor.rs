//! What is wrong with the store of a stopped replica. Nothing in the data dir is written, not even by a start that fails:
//! the disk here can only be read, and sled is given a copy.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::checkpoint::job::Pace;
use super::checkpoint::sled::SledTrees;
use super::checkpoint::tree::{Draft, Tree, Trees};
use super::checkpoint::{self, source};
use super::current::Current;
use super::dir::{Dir, exists, io};
use super::disk::{Disk, DiskFile, RealDisk};
use super::error::StorageError;
use super::page::KEY_LEN;
use super::store::{Setup, Store};
use super::{moving, place, stage, wal};

/// Something that keeps a replica from starting, or from starting as it was.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// The file, or the folder.
    pub path: PathBuf,
    /// What is wrong there.
    pub what: String,
    /// Whether bytes are not as they were written. Otherwise `what` says what to do.
    pub is_damage: bool,
}

/// What was found.
#[derive(Debug, Default)]
pub struct Examined {
    /// What is wrong; none when all that was written is there.
    pub findings: Vec<Finding>,
    /// What is worth knowing.
    pub notes: Vec<String>,
    // Nobody starts on the store while it is looked at.
    _dir: Option<Dir>,
}

/// A store that is only read.
pub struct Stored<'a>(&'a mut Store);

impl Stored<'_> {
    /// The last head; `None` for a store that was never written to.
    pub fn last_head(&self) -> Option<Bytes> {
        self.0.last_head()
    }

    /// Passes every live record in ascending order of its number to `visit`.
    ///
    /// # Errors
    /// What is wrong with the store.
    pub fn look(&mut self, visit: &mut dyn FnMut(u64, Bytes)) -> Result<(), StorageError> {
        self.0.look(&mut |number, record| {
            visit(number, record);
            Ok(())
        })
    }

    /// A record.
    ///
    /// # Errors
    /// What is wrong with the store.
    pub fn read(&mut self, number: u64) -> Result<Option<Bytes>, StorageError> {
        self.0.find(number)
    }
}

/// Looks at the store of a data dir; where it can be opened, `judge` is to read all of it. What has to be written goes to
/// `scratch`.
///
/// # Errors
/// When there is no store, or it is in use: nothing was looked at.
pub fn examine(
    data_dir: &Path,
    scratch: &Path,
    judge: &mut dyn FnMut(&mut Stored<'_>) -> Result<(), StorageError>,
) -> Result<Examined, StorageError> {
    let dir = Dir::look_at(data_dir)?;
    let root = dir.root().to_owned();
    let mut examined = Examined { _dir: Some(dir), ..Examined::default() };
    examined.beside(data_dir, &root)?;
    if !examined.format(&root) {
        return Ok(examined);
    }
    let trees = Arc::new(Copies { root: root.clone(), scratch: scratch.to_owned() });
    let found = |error: StorageError| finding(error, &root, scratch);
    match open(&root, trees.clone()) {
        Ok(mut store) => {
            examined.findings.extend(judge(&mut Stored(&mut store)).err().map(found));
            let (checkpoint, bytes) = store.extent();
            let checkpoint = checkpoint.map_or("no checkpoint".to_owned(), |number| format!("checkpoint {number}"));
            examined.notes.push(format!("{checkpoint}, and {bytes} bytes of log behind it"));
            for path in store.stale() {
                examined.notes.push(format!("{} means nothing any more; the next start removes it", path.display()));
            }
            if store.is_unsynced() {
                examined.notes.push(
                    "it was served without fsync and not stopped in order: its end may be missing. A member of several \
                     begins anew from the others"
                        .to_owned(),
                );
            }
        }
        Err(error) => {
            examined.findings.push(found(error));
            // The log comes first. What it hides of the checkpoint is looked for all the same.
            if let Ok(Current { checkpoint: Some(number), .. }) = Current::read(&Untouched, &root)
                && let Err(error) = walk(&*trees, &checkpoint::folder(&root, number))
            {
                let other = found(error);
                if examined.findings.iter().all(|known| known.path != other.path) {
                    examined.findings.push(other);
                }
            }
        }
    }
    Ok(examined)
}

impl Examined {
    /// What lies beside the store, and says something about it.
    fn beside(&mut self, data_dir: &Path, root: &Path) -> Result<(), StorageError> {
        if let Some(path) = moving::noted(data_dir)? {
            let what = "an import into it has not ended, so no server starts: run `eddy import` again and stop it, or \
                        remove this file to start with what is there";
            self.findings.push(Finding { path, what: what.to_owned(), is_damage: false });
        }
        if stage::is_wanted_anew(data_dir)? {
            self.notes.push("the next start takes over what the other members have: it must not be served".to_owned());
        }
        let before = data_dir.join("eddy.before");
        if exists(&before)? {
            self.notes.push(format!("{} is the store before the last time it began anew", before.display()));
        }
        if place::is_copy(root)? {
            self.notes.push(
                "it is a copy, or was copied back: a member of several begins anew from the others, with other revisions"
                    .to_owned(),
            );
        }
        Ok(())
    }

    /// Whether the format is the one that is read here.
    fn format(&mut self, root: &Path) -> bool {
        let path = root.join("format");
        let (what, is_damage) = match self._dir.as_ref().map(Dir::check_format) {
            Some(Ok(true)) | None => return true,
            Some(Ok(false)) => ("the file is missing".to_owned(), true),
            Some(Err(error)) => {
                let text = error.to_string();
                let what = text
                    .strip_prefix(&format!("{} ", path.display()))
                    .map_or(text.clone(), |rest| format!("it {rest}"));
                (what, false)
            }
        };
        self.findings.push(Finding { path, what, is_damage });
        false
    }
}

fn open(root: &Path, trees: Arc<Copies>) -> Result<Store, StorageError> {
    let setup = Setup {
        disk: Arc::new(Untouched),
        trees,
        root: root.to_owned(),
        log: wal::Options { segment_bytes: u64::MAX, grow_bytes: 0, sync: false },
        log_bytes: u64::MAX,
        pace: Pace::Background,
        retry: Duration::MAX,
    };
    Store::open(setup, Box::new(|| Err(ErrorKind::ReadOnlyFilesystem.into())))
}

/// Reads all pages of a checkpoint.
fn walk(trees: &dyn Trees, path: &Path) -> Result<(), StorageError> {
    let tree = trees.open(path)?;
    source::meta_of(&*tree)?;
    let mut key = [0; KEY_LEN];
    while let Some((found, value)) = tree.at_or_above(&key)? {
        match source::records_at(&*tree, &found, &value)?.1 {
            Some(next) => key = next,
            None => break,
        }
    }
    Ok(())
}

/// What an error says, at the place in the data dir.
fn finding(error: StorageError, root: &Path, scratch: &Path) -> Finding {
    let there = |path: &Path| path.strip_prefix(scratch).map_or(path.to_owned(), |inside| root.join(inside));
    let (path, what) = match &error {
        StorageError::Damaged { path, what } => (there(path), what.clone()),
        StorageError::Io { doing, path, source } => (there(path), format!("the system cannot {doing} it: {source}")),
        other => (root.to_owned(), other.to_string()),
    };
    Finding { path, what, is_damage: true }
}

/// sled may write to what it opens, so it opens copies.
#[derive(Debug)]
struct Copies {
    root: PathBuf,
    scratch: PathBuf,
}

impl Trees for Copies {
    fn create(&self, path: &Path) -> Result<Box<dyn Draft>, StorageError> {
        Err(io("create", path)(ErrorKind::ReadOnlyFilesystem.into()))
    }

    fn open(&self, path: &Path) -> Result<Arc<dyn Tree>, StorageError> {
        let copy = self.scratch.join(path.strip_prefix(&self.root).unwrap_or(path));
        match RealDisk.remove_tree(&copy).and_then(|()| copy_tree(path, &copy)) {
            Ok(()) => SledTrees.open(&copy),
            Err(error) => Err(io("copy", path)(error)),
        }
    }
}

fn copy_tree(from: &Path, to: &Path) -> io::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let copy = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_tree(&entry.path(), &copy)?;
        } else {
            std::fs::copy(entry.path(), copy)?;
        }
    }
    Ok(())
}

/// The real disk, without all that writes.
#[derive(Debug)]
struct Untouched;

fn refused<T>() -> io::Result<T> {
    Err(ErrorKind::ReadOnlyFilesystem.into())
}

impl Disk for Untouched {
    fn create_dir(&self, _path: &Path) -> io::Result<()> {
        refused()
    }

    fn create(&self, _path: &Path) -> io::Result<Box<dyn DiskFile>> {
        refused()
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(ReadFile(File::open(path)?)))
    }

    fn rename(&self, _from: &Path, _to: &Path) -> io::Result<()> {
        refused()
    }

    fn remove(&self, _path: &Path) -> io::Result<()> {
        refused()
    }

    fn remove_tree(&self, _path: &Path) -> io::Result<()> {
        refused()
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        RealDisk.list(path)
    }

    fn sync_dir(&self, _path: &Path) -> io::Result<()> {
        refused()
    }

    fn available(&self, path: &Path) -> Option<u64> {
        RealDisk.available(path)
    }
}

#[derive(Debug)]
struct ReadFile(File);

impl DiskFile for ReadFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read_at(&self, into: &mut [u8], at: u64) -> io::Result<()> {
        self.0.read_exact_at(into, at)
    }

    fn write_at(&self, _bytes: &[u8], _at: u64) -> io::Result<()> {
        refused()
    }

    fn extend(&self, _from: u64, _to: u64, _write: bool) -> io::Result<()> {
        refused()
    }

    fn sync_data(&self) -> io::Result<()> {
        refused()
    }

    fn sync_all(&self) -> io::Result<()> {
        refused()
    }
}
