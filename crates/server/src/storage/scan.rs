//! Reads, before sled may repair it, the part of sled's log that sled would repair.
//!
//! On open sled replays its log from its last snapshot; at the first message that does not check out it takes the log
//! to end, and overwrites the rest with zeros. Below the mark nothing may be missing, so damage there must stop the start
//! before sled touches it. Only what sled 0.34's log format needs for that is known here: segments of fixed size, each
//! with a header of 20 bytes, filled with messages; every number in sled's own encoding.
//!
//! The mark is a lower bound: after a power loss the log may be newer. sled has then used segments again that hold nothing
//! live any more, the mark's own among them. Each segment header says how far the log was stable when the segment was
//! begun, and sled uses no segment above the highest such number again: that is the log's *tail*. So:
//!
//! - In the tail every segment up to the mark must be there, and every message up to the mark must check out.
//! - Below the tail a segment may be gone. Messages in it must check out unless it is being written over: the mark is below
//!   the tail, or a message of a later segment stands in it. What this check cannot tell there, `tally` does, after the
//!   replay: it compares the live records with their count and checksum.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

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
    let Ok(end) = u64::try_from(log_end) else { return Ok(()) };
    let size = segment as u64;
    let start = snapshot_end(journal)? / size * size;
    if start > end {
        return Ok(());
    }
    let log = Log::open(path, segment)?;
    let Segments { found, stable } = log.segments(start, end)?;
    let tail = (stable / size * size).max(start);
    if let Some(lost) = (tail..=end).step_by(segment).find(|lsn| !found.contains_key(lsn)) {
        let what = if lost == end / size * size {
            format!("the segment of the last acknowledged write is missing (file length {})", log.len)
        } else {
            format!("the segment with number {} is missing, which is before the last acknowledged write", lost / size)
        };
        return Err(StorageError::Damaged { path: log.path, what });
    }
    let mut buf = vec![0; segment];
    for (&lsn, &at) in &found {
        let have = usize::try_from((log.len - at).min(size)).unwrap_or(segment);
        log.read(&mut buf[..have], at)?;
        let durable = usize::try_from(end - lsn).unwrap_or(usize::MAX).min(segment - 1);
        if let Err(bad) = check_segment(&buf[..have], segment, lsn / size, durable) {
            let reused = lsn < tail && (end < stable || is_written_over(&buf[bad..have], lsn / size));
            if !reused {
                return log.damaged(at + bad as u64, "a message does not check out");
            }
        }
    }
    Ok(())
}

/// sled's log file.
struct Log {
    path: PathBuf,
    file: File,
    len: u64,
    segment: usize,
}

/// What the segment headers say.
struct Segments {
    /// Where the segments of the range in question begin in the file, by their sequence number.
    found: BTreeMap<u64, u64>,
    /// The highest stable sequence number in any header.
    stable: u64,
}

impl Log {
    fn open(path: PathBuf, segment: usize) -> Result<Self, StorageError> {
        let file = File::open(&path).map_err(io("open", &path))?;
        let len = file.metadata().map_err(io("read", &path))?.len();
        Ok(Self { path, file, len, segment })
    }

    fn read(&self, buf: &mut [u8], at: u64) -> Result<(), StorageError> {
        self.file.read_exact_at(buf, at).map_err(io("read", &self.path))
    }

    fn damaged<T>(&self, at: u64, what: &str) -> Result<T, StorageError> {
        let what = format!("{what} at byte {at}, in what was durable before the last acknowledged write");
        Err(StorageError::Damaged { path: self.path.clone(), what })
    }

    /// The segments with numbers from `start` to `end`; refuses a header that is neither empty nor whole.
    fn segments(&self, start: u64, end: u64) -> Result<Segments, StorageError> {
        let mut segments = Segments { found: BTreeMap::new(), stable: 0 };
        for at in (0..self.len).step_by(self.segment) {
            let mut header = [0; SEGMENT_HEADER];
            if self.len - at < SEGMENT_HEADER as u64 {
                break;
            }
            self.read(&mut header, at)?;
            if header == [0; SEGMENT_HEADER] {
                continue;
            }
            match Header::decode(&header) {
                Some(Header { lsn, stable }) if lsn % self.segment as u64 == 0 => {
                    segments.stable = segments.stable.max(stable);
                    if (start..=end).contains(&lsn) && segments.found.insert(lsn, at).is_some() {
                        return self.damaged(at, "a second segment with the same number begins");
                    }
                }
                _ => return self.damaged(at, "the segment header does not check out"),
            }
        }
        Ok(segments)
    }
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

struct Header {
    /// The sequence number of the segment's first byte.
    lsn: u64,
    /// Up to which number sled had written its log when it began the segment.
    stable: u64,
}

impl Header {
    fn decode(header: &[u8; SEGMENT_HEADER]) -> Option<Self> {
        let (crc, body) = header.split_first_chunk::<4>()?;
        if crc32fast::hash(body) != u32::from_le_bytes(*crc) ^ u32::MAX {
            return None;
        }
        let (lsn, stable) = body.split_first_chunk::<8>()?;
        let number = |bytes: &[u8; 8]| (u64::from_le_bytes(*bytes) ^ (u64::MAX >> 1)).cast_signed();
        // sled writes -1 as the second while nothing is stable yet.
        let stable = u64::try_from(number(stable.first_chunk()?)).unwrap_or(0);
        Some(Self { lsn: u64::try_from(number(lsn)).ok()?, stable })
    }
}

/// Walks the messages of a segment up to its byte `durable`; `Err` with the offset of the first that is not whole.
fn check_segment(buf: &[u8], segment: usize, number: u64, durable: usize) -> Result<(), usize> {
    let mut at = SEGMENT_HEADER;
    while at + MESSAGE_HEADER_MAX <= segment && at <= durable {
        let message = Message::decode(buf.get(at..).unwrap_or_default()).filter(|m| m.segment == number).ok_or(at)?;
        if message.kind == CAP {
            return Ok(());
        }
        at += message.len;
    }
    Ok(())
}

/// Whether a message of a later segment than `number` stands in `buf`.
fn is_written_over(buf: &[u8], number: u64) -> bool {
    (0..buf.len()).any(|at| Message::decode(&buf[at..]).is_some_and(|message| message.segment > number))
}

struct Message {
    kind: u8,
    /// The number of its segment, counted over the log's whole life.
    segment: u64,
    /// Its bytes, with its header.
    len: usize,
}

impl Message {
    /// The message at the front of `buf`, if it checks out.
    fn decode(buf: &[u8]) -> Option<Self> {
        let (crc, rest) = buf.split_first_chunk::<4>()?;
        let mut rest = rest;
        let (&kind, after) = rest.split_first()?;
        rest = after;
        if kind == CORRUPTED || kind >= KINDS {
            return None;
        }
        let len = usize::try_from(number_of(&mut rest)?).ok()?;
        let segment = number_of(&mut rest)?;
        number_of(&mut rest)?;
        let header = buf.len() - rest.len();
        let body = rest.get(..len)?;
        let mut hash = crc32fast::Hasher::new();
        hash.update(body);
        hash.update(&buf[4..header]);
        let whole = hash.finalize() ^ u32::MAX == u32::from_le_bytes(*crc);
        whole.then_some(Self { kind, segment, len: header + len })
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: usize = 4096;
    const REPLACE: u8 = 5;

    fn header(lsn: u64, stable: u64) -> Vec<u8> {
        let body = [lsn, stable].map(|n| (n ^ (u64::MAX >> 1)).to_le_bytes()).concat();
        let crc = crc32fast::hash(&body) ^ u32::MAX;
        [&crc.to_le_bytes()[..], &body].concat()
    }

    /// A message with so many bytes of content.
    fn message(kind: u8, number: u64, len: u8) -> Vec<u8> {
        let head = [kind, len, u8::try_from(number).unwrap(), 0];
        let body = vec![7; usize::from(len)];
        let mut hash = crc32fast::Hasher::new();
        hash.update(&body);
        hash.update(&head);
        let crc = hash.finalize() ^ u32::MAX;
        [&crc.to_le_bytes()[..], &head, &body].concat()
    }

    /// A segment full of messages of 208 bytes, begun when all before it was stable.
    fn segment(number: u64) -> Vec<u8> {
        let lsn = number * SIZE as u64;
        let mut bytes = header(lsn, lsn.saturating_sub(1));
        while bytes.len() + 208 <= SIZE {
            bytes.extend(message(REPLACE, number, 200));
        }
        bytes.extend(message(CAP, number, 0));
        bytes.resize(SIZE, 0);
        bytes
    }

    /// What `check` says of a log of these segments whose mark is in the middle of segment `marked`.
    fn say(segments: &[Vec<u8>], marked: u64) -> Result<(), String> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("db"), segments.concat()).unwrap();
        let end = i64::try_from(marked * SIZE as u64 + SIZE as u64 / 2).unwrap();
        check(dir.path(), SIZE, end).map_err(|e| e.to_string())
    }

    #[test]
    fn segments_below_the_tail_may_be_gone_and_none_of_the_tail() {
        let log = |numbers: &[u64]| numbers.iter().map(|n| segment(*n)).collect::<Vec<_>>();
        assert_eq!(say(&log(&[0, 1, 2, 3, 4]), 4), Ok(()));
        assert_eq!(say(&log(&[4, 1, 2, 3]), 4), Ok(()), "segment 0 was used again");
        // An old mark: the segment that it names was used again.
        assert_eq!(say(&log(&[0, 5, 2, 3, 4]), 1), Ok(()));
        assert_eq!(say(&log(&[6, 5, 2, 3, 4]), 1), Ok(()));
        assert!(say(&log(&[0, 1, 2, 3]), 4).unwrap_err().contains("last acknowledged write is missing"));
        assert!(say(&log(&[0, 1, 2]), 4).unwrap_err().contains("number 3 is missing"));
        // Segment 5 says that the log was stable to the end of segment 4.
        assert!(say(&log(&[0, 1, 2, 3, 5]), 5).unwrap_err().contains("number 4 is missing"));
    }

    #[test]
    fn damage_is_told_from_a_segment_that_is_being_written_over() {
        let log = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut segments: Vec<_> = (0..5).map(segment).collect();
            change(&mut segments[1]);
            segments
        };
        let flip = log(&|bytes| bytes[1000] ^= 1);
        assert!(say(&flip, 4).unwrap_err().contains("a message does not check out at byte 4948"));
        assert!(say(&flip, 1).is_ok(), "the mark is old: the replay tells whether anything that lives is lost");
        // The second half of what is to be segment 5 is on the disk, the first half with its header is not.
        let half = log(&|bytes| bytes[2048..].copy_from_slice(&segment(5)[2048..]));
        assert_eq!(say(&half, 4), Ok(()));
        let header = log(&|bytes| bytes[5] ^= 1);
        assert!(say(&header, 1).unwrap_err().contains("the segment header does not check out at byte 4096"));
        let tail = |at: usize| {
            let mut segments: Vec<_> = (0..5).map(segment).collect();
            segments[4][at] ^= 1;
            say(&segments, 4)
        };
        assert!(tail(1000).unwrap_err().contains("a message does not check out"));
        assert_eq!(tail(3500), Ok(()), "above the mark sled cuts the log");
    }
}
