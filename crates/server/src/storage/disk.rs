//! What the log and the checkpoints ask of a disk, and the real disk. Tests have one that loses what was not synced.

use std::fmt;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::Path;

/// A file system below the store. What is not synced may be lost in a power cut, in any order.
pub(super) trait Disk: Send + Sync + fmt::Debug {
    /// Makes a folder; one that is there stays.
    fn create_dir(&self, path: &Path) -> io::Result<()>;
    /// Makes an empty file; one that is there is emptied.
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;
    /// Opens a file that is there.
    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;
    /// Gives a file another name, in the place of whatever has it.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file; none is fine.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Removes a folder with all that is in it; none is fine.
    fn remove_tree(&self, path: &Path) -> io::Result<()>;
    /// The names in a folder; none where there is no folder.
    fn list(&self, path: &Path) -> io::Result<Vec<String>>;
    /// Makes the names in a folder durable.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;
    /// Bytes that are free; `None` where the file system does not tell.
    fn available(&self, path: &Path) -> Option<u64>;

    /// All bytes of a file.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let file = self.open(path)?;
        let mut bytes = vec![0; usize::try_from(file.len()?).map_err(io::Error::other)?];
        file.read_at(&mut bytes, 0)?;
        Ok(bytes)
    }
}

/// An open file.
pub(super) trait DiskFile: Send + Sync + fmt::Debug {
    /// Its length in bytes.
    fn len(&self) -> io::Result<u64>;
    /// Fills the buffer from a place.
    fn read_at(&self, into: &mut [u8], at: u64) -> io::Result<()>;
    /// Writes all of the bytes at a place.
    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()>;
    /// Lengthens the file with zeros, and has blocks for them: written where `write` is set, else only reserved.
    fn extend(&self, from: u64, to: u64, write: bool) -> io::Result<()>;
    /// Makes the contents durable; the length only where contents need it.
    fn sync_data(&self) -> io::Result<()>;
    /// Makes contents and length durable.
    fn sync_all(&self) -> io::Result<()>;
}

/// The operating system's.
#[derive(Debug, Clone, Copy)]
pub(super) struct RealDisk;

fn unless_missing(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

impl Disk for RealDisk {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(path)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path)?;
        Ok(Box::new(RealFile(file)))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        Ok(Box::new(RealFile(file)))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        unless_missing(std::fs::remove_file(path))
    }

    fn remove_tree(&self, path: &Path) -> io::Result<()> {
        unless_missing(std::fs::remove_dir_all(path))
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        let entries = match std::fs::read_dir(path) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut names = Vec::new();
        for entry in entries {
            names.extend(entry?.file_name().into_string());
        }
        names.sort();
        Ok(names)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn available(&self, path: &Path) -> Option<u64> {
        fs4::available_space(path).ok()
    }
}

#[derive(Debug)]
struct RealFile(File);

impl DiskFile for RealFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read_at(&self, into: &mut [u8], at: u64) -> io::Result<()> {
        self.0.read_exact_at(into, at)
    }

    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.0.write_all_at(bytes, at)
    }

    fn extend(&self, from: u64, to: u64, write: bool) -> io::Result<()> {
        // Where the file system cannot, or says that it is full, writing tells.
        if !write && fs4::FileExt::allocate(&self.0, to).is_ok() {
            return Ok(());
        }
        // Block by block: Linux caches a longer write in units of its size. It then writes such a unit out whole for
        // each small append into it (measured: 160 KB instead of 6 KB per append).
        let zeros = [0; 4096];
        let mut at = from;
        while at < to {
            let len = usize::try_from(to - at).unwrap_or(zeros.len()).min(zeros.len());
            if let Err(e) = self.0.write_all_at(&zeros[..len], at) {
                // Give back what was taken; a file that stays longer does no harm.
                self.0.set_len(from).ok();
                return Err(e);
            }
            at += len as u64;
        }
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn sync_all(&self) -> io::Result<()> {
        self.0.sync_all()
    }
}
