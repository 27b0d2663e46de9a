//! Reads a file in order with few calls, and without holding more of it than needed.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::super::dir::io;
use super::super::disk::DiskFile;
use super::super::error::StorageError;

/// How much is read at once where less is asked for, bytes: where the reading goes on, and where it jumps.
const READ_BYTES: usize = 256 << 10;
const JUMP_BYTES: usize = 8 << 10;

/// A part of a file that was read.
pub struct Window {
    file: Arc<dyn DiskFile>,
    path: PathBuf,
    len: u64,
    from: u64,
    bytes: Vec<u8>,
}

impl Window {
    pub fn new(file: Arc<dyn DiskFile>, path: &Path) -> Result<Self, StorageError> {
        let len = file.len().map_err(io("read", path))?;
        Ok(Self { file, path: path.to_owned(), len, from: 0, bytes: Vec::new() })
    }

    /// The file's length when it was opened.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// So many bytes at a place; `None` when the file ends before.
    pub fn get(&mut self, at: u64, length: usize) -> Result<Option<&[u8]>, StorageError> {
        if at.checked_add(length as u64).is_none_or(|end| end > self.len) {
            return Ok(None);
        }
        let inside = at >= self.from && at + length as u64 <= self.from + self.bytes.len() as u64;
        if !inside {
            let end = self.from + self.bytes.len() as u64;
            let ahead = if (self.from..=end + JUMP_BYTES as u64).contains(&at) { READ_BYTES } else { JUMP_BYTES };
            let most = usize::try_from(self.len - at).unwrap_or(usize::MAX);
            self.bytes.clear();
            self.bytes.shrink_to(READ_BYTES);
            self.bytes.resize(length.max(ahead).min(most), 0);
            self.from = at;
            self.file.read_at(&mut self.bytes, at).map_err(io("read", &self.path))?;
        }
        let skip = usize::try_from(at - self.from).unwrap_or(usize::MAX);
        Ok(self.bytes.get(skip..skip + length))
    }
}
