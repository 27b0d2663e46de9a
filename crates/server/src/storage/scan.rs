//! Reads, before sled may repair it, the part of sled's log that sled would repair.
//!
//! On open sled replays its log from its last snapshot; at the first message that does not check out it takes the log
//! to end, and overwrites the rest with zeros. Below the mark nothing may be missing, so damage there must stop the start
//! before sled touches it. Only what sled 0.34's log format needs for that is known here: segments of fixed size, each
//! with a header of 20 bytes, filled with messages; every number in sled's own encoding.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::StorageError;
use super::dir::io;

/// crc32, log sequence number, highest stable sequence number.
pub(super) const SEGMENT_HEADER: usize = 20;
/// A message header is at most so long; what is left of a segment below it is unused.
const MESSAGE_HEADER_MAX: usize = 32;
const CORRUPTED: u8 = 0;
const CAP: u8 = 2;
const KINDS: u8 = 12;

/// Checks the log in `journal/db` from sled's last snapshot to `log_end`.
pub(super) fn check(journal: &Path, segment: usize, log_end: i64) -> Result<(), StorageError> {
    let path = journal.join("db");
    let damaged = |at: u64, what: &str| {
        let what = format!("{what} at byte {at}, in what was durable before the last acknowledged write");
        Err(StorageError::Damaged { path: path.clone(), what })
    };
    let Ok(end) = u64::try_from(log_end) else { return Ok(()) };
    let size = segment as u64;
    let start = snapshot_end(journal)? / size * size;
    if start > end {
        return Ok(());
    }
    let file = File::open(&path).map_err(io("open", &path))?;
    let len = file.metadata().map_err(io("read", &path))?.len();
    let mut segments = BTreeMap::new();
    for at in (0..len).step_by(segment) {
        let mut header = [0; SEGMENT_HEADER];
        if len - at < SEGMENT_HEADER as u64 {
            break;
        }
        file.read_exact_at(&mut header, at).map_err(io("read", &path))?;
        if header == [0; SEGMENT_HEADER] {
            continue;
        }
        match segment_lsn(&header) {
            Some(lsn) if lsn % size == 0 => {
                if (start..=end).contains(&lsn) && segments.insert(lsn, at).is_some() {
                    return damaged(at, "a second segment with the same number begins");
                }
            }
            _ => return damaged(at, "the segment header does not check out"),
        }
    }
    if !segments.contains_key(&(end / size * size)) {
        let what = format!("the segment of the last acknowledged write is missing (file length {len})");
        return Err(StorageError::Damaged { path, what });
    }
    let mut buf = vec![0; segment];
    for (&lsn, &at) in &segments {
        let have = usize::try_from((len - at).min(size)).unwrap_or(segment);
        file.read_exact_at(&mut buf[..have], at).map_err(io("read", &path))?;
        let durable = usize::try_from(end - lsn).unwrap_or(usize::MAX).min(segment - 1);
        if let Err(bad) = check_segment(&buf[..have], segment, lsn / size, durable) {
            return damaged(at + bad as u64, "a message does not check out");
        }
    }
    Ok(())
}

/// The sequence number up to which sled's newest snapshot reaches: the hexadecimal suffix of its name.
fn snapshot_end(journal: &Path) -> Result<u64, StorageError> {
    let mut newest = 0;
    for entry in std::fs::read_dir(journal).map_err(io("read", journal))? {
        let name = entry.map_err(io("read", journal))?.file_name();
        let suffix = name.to_str().and_then(|name| name.strip_prefix("snap."));
        if let Some(end) = suffix.and_then(|hex| u64::from_str_radix(hex, 16).ok()) {
            newest = newest.max(end);
        }
    }
    Ok(newest)
}

fn segment_lsn(header: &[u8; SEGMENT_HEADER]) -> Option<u64> {
    let (crc, body) = header.split_first_chunk::<4>()?;
    if crc32fast::hash(body) != u32::from_le_bytes(*crc) ^ u32::MAX {
        return None;
    }
    let lsn = u64::from_le_bytes(*body.first_chunk()?);
    Some(lsn ^ (u64::MAX >> 1))
}

/// Walks the messages of a segment up to its byte `durable`; `Err` with the offset of the first that is not whole.
fn check_segment(buf: &[u8], segment: usize, number: u64, durable: usize) -> Result<(), usize> {
    let mut at = SEGMENT_HEADER;
    while at + MESSAGE_HEADER_MAX <= segment && at <= durable {
        let message = buf.get(at..).unwrap_or_default();
        let (kind, len) = message_len(message, number).ok_or(at)?;
        if kind == CAP {
            return Ok(());
        }
        at += len;
    }
    Ok(())
}

/// Kind and whole length of the message at the front of `buf`, if it checks out.
fn message_len(buf: &[u8], number: u64) -> Option<(u8, usize)> {
    let (crc, rest) = buf.split_first_chunk::<4>()?;
    let mut rest = rest;
    let (&kind, after) = rest.split_first()?;
    rest = after;
    if kind == CORRUPTED || kind >= KINDS {
        return None;
    }
    let len = usize::try_from(number_of(&mut rest)?).ok()?;
    let in_segment = number_of(&mut rest)?;
    number_of(&mut rest)?;
    let header = buf.len() - rest.len();
    let body = rest.get(..len)?;
    let mut hash = crc32fast::Hasher::new();
    hash.update(body);
    hash.update(&buf[4..header]);
    (hash.finalize() ^ u32::MAX == u32::from_le_bytes(*crc) && in_segment == number).then_some((kind, header + len))
}

/// sled's variable-length numbers.
fn number_of(buf: &mut &[u8]) -> Option<u64> {
    let (&first, rest) = buf.split_first()?;
    let byte = |i: usize| rest.get(i).copied().map(u64::from);
    let (value, used) = match first {
        0..=240 => (u64::from(first), 0),
        241..=248 => (240 + 256 * (u64::from(first) - 241) + byte(0)?, 1),
        249 => (2288 + 256 * byte(0)? + byte(1)?, 2),
        250.. => {
            let used = usize::from(first) - 247;
            let mut le = [0; 8];
            le[..used].copy_from_slice(rest.get(..used)?);
            (u64::from_le_bytes(le), used)
        }
    };
    *buf = &rest[used..];
    Some(value)
}
