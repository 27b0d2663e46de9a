//! The file that says which checkpoint counts, and from which segment on the log is to be read.
//!
//! It is a few lines of text with a checksum, written aside, synced, and given its name; what it names is durable before.

use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::xxh3_64;

use super::dir::{damaged, io};
use super::disk::Disk;
use super::error::StorageError;

/// What the file says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Current {
    /// The checkpoint's number, from 1; none before there is one.
    pub checkpoint: Option<u64>,
    /// The log's first segment that is not in the checkpoint.
    pub segment: u64,
    /// The number of the last write before an orderly stop, if the stop was one.
    pub end: Option<u64>,
}

/// Where the file lies.
pub(super) fn path(root: &Path) -> PathBuf {
    root.join("current")
}

fn draft(root: &Path) -> PathBuf {
    root.join("current.new")
}

impl Current {
    /// The number of the next checkpoint.
    pub fn next_checkpoint(self) -> u64 {
        self.checkpoint.map_or(1, |checkpoint| checkpoint + 1)
    }

    fn lines(self) -> String {
        let [checkpoint, end] = [self.checkpoint, self.end].map(Option::unwrap_or_default);
        format!("checkpoint {checkpoint}\nsegment {}\nend {end}\n", self.segment)
    }

    fn encode(self) -> String {
        let lines = self.lines();
        format!("{lines}checksum {:016x}\n", xxh3_64(lines.as_bytes()))
    }

    fn decode(text: &str) -> Option<Self> {
        let mut words = text.lines().filter_map(|line| line.split_once(' ')?.1.parse().ok());
        let [checkpoint, segment, end]: [u64; 3] = [words.next()?, words.next()?, words.next()?];
        let known = |number: u64| (number > 0).then_some(number);
        let current = Self { checkpoint: known(checkpoint), segment, end: known(end) };
        (current.encode() == text).then_some(current)
    }

    /// Reads the file.
    pub fn read(disk: &dyn Disk, root: &Path) -> Result<Self, StorageError> {
        let path = path(root);
        let bytes = match disk.read(&path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                return Err(damaged(&path, "the file is missing".to_owned()));
            }
            bytes => bytes.map_err(io("read", &path))?,
        };
        let current = std::str::from_utf8(&bytes).ok().and_then(Self::decode);
        current.ok_or_else(|| damaged(&path, "it does not check out".to_owned()))
    }

    /// Makes this what the file says, durably.
    ///
    /// # Errors
    /// [`StorageError::NoSpace`]: the file says what it said before. After another error it may say either.
    pub fn write(self, disk: &dyn Disk, root: &Path) -> Result<(), StorageError> {
        let (path, draft) = (path(root), draft(root));
        let text = self.encode();
        let written = (|| {
            let file = disk.create(&draft).map_err(io("create", &draft))?;
            file.write_at(text.as_bytes(), 0).map_err(io("write", &draft))?;
            file.sync_all().map_err(io("sync", &draft))?;
            disk.rename(&draft, &path).map_err(io("rename", &draft))
        })();
        if let Err(e) = written {
            disk.remove(&draft).map_err(io("remove", &draft))?;
            return Err(e);
        }
        // From here on nobody knows which of the two a power cut leaves.
        disk.sync_dir(root).map_err(|source| StorageError::Io { doing: "sync", path: root.to_owned(), source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_bit_shows() {
        let current = Current { checkpoint: Some(3), segment: 17, end: Some(4711) };
        let text = current.encode();
        assert_eq!(Current::decode(&text), Some(current));
        for bit in 0..text.len() * 8 {
            let mut bad = text.clone().into_bytes();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(std::str::from_utf8(&bad).ok().and_then(Current::decode), None, "bit {bit}");
        }
    }
}
