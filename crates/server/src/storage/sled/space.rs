//! Space ahead of sled's log.

use std::fs::File;
use std::os::unix::fs::FileExt;

use super::super::dir::io;
use super::super::{StorageError, scan};
use super::{SEGMENT, SledJournal};

/// Below this the disk is low: what is left is for deletes, a compaction and the rewriting after it.
const LOW_BYTES: u64 = 8 << 20;

/// An append of so much is a large one.
const LARGE_BYTES: usize = 16 << 10;

impl SledJournal {
    /// Has allocated segments ready ahead of sled, so that a full disk is noticed before anything is written; where appends
    /// are small, so that their syncs need not commit a new file length either.
    pub(super) fn reserve(&mut self, bytes: usize) -> Result<(), StorageError> {
        let need = 2 + (bytes as u64).saturating_mul(2) / SEGMENT as u64;
        let position = self.log_end() / SEGMENT as i64;
        if self.reserved.0 == position && self.reserved.1 >= need {
            return Ok(());
        }
        if self.dirty {
            // Nothing of sled's may be on its way to the file while its end is extended here.
            self.risky(Self::flush)?;
        }
        let len = self.log.metadata().map_err(io("read", &self.log_path))?.len();
        let segments = len.div_ceil(SEGMENT as u64);
        let mut free = 0;
        while free < need && free < segments && self.unused(segments - 1 - free)? {
            free += 1;
        }
        let target = (segments + need - free) * SEGMENT as u64;
        if len < target
            && let Err(e) = extend(&self.log, len, target, bytes, self.options.fsync)
        {
            // Give back what was taken; a file that stays longer does no harm.
            self.log.set_len(len).ok();
            return Err(io("extend", &self.log_path)(e));
        }
        if len < target {
            self.look_at_space();
        }
        self.reserved = (self.log_end() / SEGMENT as i64, need);
        Ok(())
    }

    pub(super) fn look_at_space(&mut self) {
        // Where the file system does not tell, a full disk is noticed when it is full.
        self.low = fs4::available_space(self.dir.root()).is_ok_and(|free| free < LOW_BYTES);
    }

    /// Whether sled has never written to a segment.
    fn unused(&self, segment: u64) -> Result<bool, StorageError> {
        let mut header = [0xff; scan::SEGMENT_HEADER];
        let read = self.log.read_at(&mut header, segment * SEGMENT as u64).map_err(io("read", &self.log_path))?;
        Ok(read == header.len() && header == [0; scan::SEGMENT_HEADER])
    }
}

/// Allocates a file from `from` to `to`: with zeros, so that syncs of small appends need not commit where the file's blocks
/// are. For a large one that is the lesser part of its sync, and writing everything twice the greater.
fn extend(file: &File, from: u64, to: u64, append_bytes: usize, sync: bool) -> std::io::Result<()> {
    // Where the file system cannot, or says that it is full, writing tells.
    if append_bytes >= LARGE_BYTES && fs4::FileExt::allocate(file, to).is_ok() {
        return Ok(());
    }
    // Block by block: Linux caches a longer write in units of its size, and then writes such a unit out whole for each
    // small append into it (measured: 160 KB instead of 6 KB per append).
    let zeros = [0; 4096];
    let mut at = from;
    while at < to {
        let len = usize::try_from(to - at).unwrap_or(zeros.len()).min(zeros.len());
        file.write_all_at(&zeros[..len], at)?;
        at += len as u64;
    }
    if sync { file.sync_all() } else { Ok(()) }
}
