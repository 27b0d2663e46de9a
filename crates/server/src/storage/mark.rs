//! The mark: one small block that says how far the journal is known to be durable.
//!
//! It is overwritten in place after each durable write and not synced: it is a lower bound, and lies within one disk
//! sector, which disks write whole.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::xxh3_64;

use super::StorageError;
use super::dir::io;

const MAGIC: &[u8; 8] = b"eddymark";
/// magic, flags, generation, next number, log position, checksum: six words.
const LEN: usize = 48;
const FLAG_UNSYNCED: u64 = 1;

/// What the mark says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct State {
    /// The generation of the journal that is durable at least.
    pub generation: u64,
    /// The number after the last durable record; for messages only.
    pub next: u64,
    /// sled's log was durable up to this sequence number; -1: unknown.
    pub log_end: i64,
    /// A process with fsync off has the store open, or ended without closing it.
    pub unsynced: bool,
}

/// The open mark file.
#[derive(Debug)]
pub(super) struct Mark {
    file: File,
    path: PathBuf,
}

impl Mark {
    /// Creates or replaces the mark, at once or not at all; durable once its directory is synced.
    pub fn create(path: &Path, state: State) -> Result<Self, StorageError> {
        let draft = path.with_extension("new");
        let file = File::create(&draft).map_err(io("create", &draft))?;
        let mark = Self { file, path: path.to_owned() };
        mark.write(state)?;
        mark.sync()?;
        std::fs::rename(&draft, path).map_err(io("rename", &draft))?;
        Ok(mark)
    }

    /// Opens an existing mark.
    pub fn open(path: &Path) -> Result<(Self, State), StorageError> {
        let file = OpenOptions::new().read(true).write(true).open(path).map_err(io("open", path))?;
        let damaged = |what: &str| StorageError::Damaged { path: path.to_owned(), what: what.to_owned() };
        let mut block = [0; LEN];
        if file.metadata().map_err(io("read", path))?.len() != LEN as u64 {
            return Err(damaged("the mark of the last durable write has the wrong length"));
        }
        file.read_exact_at(&mut block, 0).map_err(io("read", path))?;
        let (body, sum) = block.split_at(LEN - 8);
        if sum != xxh3_64(body).to_le_bytes() || &body[..8] != MAGIC {
            return Err(damaged(
                "the mark of the last durable write has a wrong checksum, so a loss could not be noticed",
            ));
        }
        let word = |i: usize| u64::from_le_bytes(std::array::from_fn(|b| block[i * 8 + b]));
        let state = State {
            unsynced: word(1) & FLAG_UNSYNCED != 0,
            generation: word(2),
            next: word(3),
            log_end: word(4).cast_signed(),
        };
        Ok((Self { file, path: path.to_owned() }, state))
    }

    /// Overwrites the mark without syncing it.
    pub fn write(&self, state: State) -> Result<(), StorageError> {
        let mut block = [0; LEN];
        block[..8].copy_from_slice(MAGIC);
        let words =
            [u64::from(state.unsynced) * FLAG_UNSYNCED, state.generation, state.next, state.log_end.cast_unsigned()];
        for (i, word) in words.into_iter().enumerate() {
            block[8 + i * 8..16 + i * 8].copy_from_slice(&word.to_le_bytes());
        }
        let sum = xxh3_64(&block[..LEN - 8]);
        block[LEN - 8..].copy_from_slice(&sum.to_le_bytes());
        self.file.write_all_at(&block, 0).map_err(io("write", &self.path))
    }

    /// Makes the mark itself durable; needed only where it is created or a flag of it must not be lost.
    pub fn sync(&self) -> Result<(), StorageError> {
        self.file.sync_all().map_err(io("sync", &self.path))
    }
}
