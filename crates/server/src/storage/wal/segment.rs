//! One file of the log: a header with the whole state at its start, frames, and space that is reserved for more.
//!
//! ```text
//! header   "eddywal2", number u64 LE, nonce u64 LE, flags u64 LE, length of the state u64 LE, checksum u64 LE, state
//! state    1 u8, bytes of the file that are allocated varint, meta (see `page`)
//! ```
//! The file gets its name when header and first space are durable; so a header that does not check out is damage. Each
//! state says how long the file was when it was written; so a file that is shorter was cut.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::BufMut;
use xxhash_rust::xxh3::xxh3_64;

use super::super::dir::{damaged, io};
use super::super::disk::{Disk, DiskFile};
use super::super::error::StorageError;
use super::super::page::{Meta, get_varint, put_varint};
use super::frame::{self, ALIGN, Frame, HEADER};
use super::{delta, window::Window};

const MAGIC: &[u8; 8] = b"eddywal2";
const FIXED: usize = 48;
/// Appends to this segment were not waited for.
const FLAG_UNSYNCED: u64 = 1;

/// Space is reserved in steps: as much again as there is, but at most so many times the smallest step.
const GROW_FACTOR_MAX: u64 = 16;

/// An append of so much is a large one, bytes: writing zeros before it would be the greater part of it.
const LARGE_BYTES: u64 = 16 << 10;

/// How the log is kept.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// A segment that is longer, in bytes, is continued in the next one.
    pub segment_bytes: u64,
    /// Space is reserved in steps of at least so many bytes.
    pub grow_bytes: u64,
    /// Whether an append waits for the disk.
    pub sync: bool,
}

/// Bytes that a state is encoded as.
pub(super) fn encode_state(meta: &Meta, allocated: u64) -> Vec<u8> {
    // No dictionary of zstd's own begins with a 1.
    let mut state = vec![1];
    put_varint(&mut state, allocated);
    meta.encode(&mut state);
    state
}

fn decode_state(state: &[u8]) -> Option<(Meta, u64)> {
    let mut buf = state.strip_prefix(&[1])?;
    let allocated = get_varint(&mut buf)?;
    Some((Meta::decode(buf)?, allocated))
}

/// A segment that can be read, and appended to if it is the last.
#[derive(Debug)]
pub(super) struct Segment {
    pub number: u64,
    pub path: PathBuf,
    pub file: Arc<dyn DiskFile>,
    pub nonce: u64,
    /// Appends were not waited for, by this process or one before.
    pub unsynced: bool,
    /// Where the next frame begins.
    pub end: u64,
    /// How long the file is.
    pub allocated: u64,
    /// Whether there is any frame.
    pub begun: bool,
}

/// What a segment holds.
pub(super) struct Found {
    pub segment: Segment,
    /// The state before its first frame.
    pub first: Meta,
    /// The state after its last frame.
    pub last: Meta,
    /// `last` as it is encoded.
    pub state: Vec<u8>,
    /// The last frame says that the log goes on in the next segment.
    pub sealed: bool,
    /// Where a frame lies after one that does not check out.
    pub later: Option<u64>,
}

/// The name of a segment.
pub(super) fn name(number: u64) -> String {
    format!("{number:016}.log")
}

/// The number of the segment of that name.
pub(super) fn number(name: &str) -> Option<u64> {
    name.strip_suffix(".log").filter(|digits| digits.len() == 16)?.parse().ok()
}

/// Whether a segment of that name was being made.
pub(super) fn is_draft(name: &str) -> bool {
    name.strip_suffix(".new").is_some_and(|stem| number(&format!("{stem}.log")).is_some())
}

/// Receives what each frame holds while the log is replayed.
pub(super) type Visit<'a> = dyn FnMut(&Segment, u64, &frame::Places, &[u8]) + 'a;

impl Segment {
    /// Makes a segment that begins with a state, durably but for the folder.
    pub fn create(
        disk: &dyn Disk,
        folder: &Path,
        (number, nonce): (u64, u64),
        meta: &Meta,
        options: Options,
    ) -> Result<(Self, Vec<u8>), StorageError> {
        let (path, unsynced) = (folder.join(name(number)), !options.sync);
        let draft = path.with_extension("new");
        // Longer with a longer varint: twice the bound is above both.
        let room = FIXED as u64 + encode_state(meta, u64::MAX).len() as u64 + frame::SEAL_BYTES;
        let allocated = room.next_multiple_of(options.grow_bytes);
        let state = encode_state(meta, allocated);
        let mut header = MAGIC.to_vec();
        for word in [number, nonce, u64::from(unsynced) * FLAG_UNSYNCED, state.len() as u64] {
            header.put_u64_le(word);
        }
        let sum = header_sum(&header, &state);
        header.put_u64_le(sum);
        header.extend_from_slice(&state);
        let made = (|| {
            let file = disk.create(&draft).map_err(io("create", &draft))?;
            file.extend(0, allocated, true).map_err(io("extend", &draft))?;
            file.write_at(&header, 0).map_err(io("write", &draft))?;
            file.sync_all().map_err(io("sync", &draft))?;
            disk.rename(&draft, &path).map_err(io("rename", &draft))?;
            Ok(file)
        })();
        let file = made.inspect_err(|_| drop(disk.remove(&draft)))?;
        let end = frame::align(header.len() as u64);
        let segment = Self { number, path, file: file.into(), nonce, unsynced, end, allocated, begun: false };
        Ok((segment, state))
    }

    /// Reads a segment and passes each of its frames to `visit`.
    pub fn read(disk: &dyn Disk, folder: &Path, number: u64, visit: &mut Visit<'_>) -> Result<Found, StorageError> {
        let path = folder.join(name(number));
        let file: Arc<dyn DiskFile> = disk.open(&path).map_err(io("open", &path))?.into();
        let mut window = Window::new(Arc::clone(&file), &path)?;
        let (nonce, unsynced, mut state) = read_header(&mut window, &path, number)?;
        let bad = || damaged(&path, "the header of the segment does not check out".to_owned());
        let (first, _) = decode_state(&state).ok_or_else(bad)?;
        let end = frame::align((FIXED + state.len()) as u64);
        let allocated = window.len();
        let mut segment = Self { number, path, file, nonce, unsynced, end, allocated, begun: false };
        let mut sealed = false;
        while let Some((length, parsed)) = frame_at(&mut window, nonce, segment.end)? {
            let Frame::Group { state_len, patch, places } = parsed else {
                sealed = true;
                break;
            };
            let after = delta::apply(&state, patch, state_len);
            state = after.ok_or_else(|| segment.damaged("a message does not give a state"))?;
            visit(&segment, segment.end, &places, window.get(segment.end, length)?.unwrap_or_default());
            segment.end = frame::align(segment.end + length as u64);
            segment.begun = true;
        }
        let (last, was) = decode_state(&state).ok_or_else(|| segment.damaged("a message does not give a state"))?;
        // Where nobody waits for the disk, the length is not waited for either.
        if segment.allocated < was && !sealed && !unsynced {
            let what = format!("the file was cut at byte {}; it was {was} bytes long", segment.allocated);
            return Err(damaged(&segment.path, what));
        }
        let later = if sealed { None } else { later_frame(&mut window, nonce, segment.end)? };
        Ok(Found { segment, first, last, state, sealed, later })
    }

    /// The error that names the place where the frames end.
    pub fn damaged(&self, what: &str) -> StorageError {
        damaged(&self.path, format!("{what}, at byte {}", self.end))
    }

    /// Has space for so many bytes and a seal. Answers whether the file grew.
    pub fn reserve(&mut self, bytes: u64, options: Options) -> Result<bool, StorageError> {
        let need = self.end + bytes + frame::SEAL_BYTES + ALIGN;
        if need <= self.allocated {
            return Ok(false);
        }
        let step = self.allocated.next_multiple_of(options.grow_bytes).min(options.grow_bytes * GROW_FACTOR_MAX);
        let target = need.next_multiple_of(step);
        self.file.extend(self.allocated, target, bytes < LARGE_BYTES).map_err(io("extend", &self.path))?;
        if options.sync {
            self.file.sync_all().map_err(io("sync", &self.path))?;
        }
        self.allocated = target;
        Ok(true)
    }
}

fn header_sum(fixed: &[u8], state: &[u8]) -> u64 {
    xxh3_64(fixed).rotate_left(1) ^ xxh3_64(state)
}

fn read_header(window: &mut Window, path: &Path, number: u64) -> Result<(u64, bool, Vec<u8>), StorageError> {
    let bad = || damaged(path, "the header of the segment does not check out, at byte 0".to_owned());
    let fixed: [u8; FIXED] = window.get(0, FIXED)?.and_then(|fixed| fixed.try_into().ok()).ok_or_else(bad)?;
    let word = |i: usize| u64::from_le_bytes(std::array::from_fn(|b| fixed[i * 8 + b]));
    let length = usize::try_from(word(4)).ok().filter(|length| *length <= delta::STATE_MAX).ok_or_else(bad)?;
    let state = window.get(FIXED as u64, length)?.ok_or_else(bad)?.to_vec();
    if !fixed.starts_with(MAGIC) || header_sum(&fixed[..FIXED - 8], &state) != word(5) || word(1) != number {
        return Err(bad());
    }
    Ok((word(2), word(3) & FLAG_UNSYNCED != 0, state))
}

/// The frame at a place with its length, if there is one that checks out.
fn frame_at<'a>(window: &'a mut Window, nonce: u64, at: u64) -> Result<Option<(usize, Frame<'a>)>, StorageError> {
    let Some(body) = window.get(at, HEADER)?.and_then(|header| frame::body_length(header, nonce)) else {
        return Ok(None);
    };
    let length = HEADER + body as usize;
    let Some(bytes) = window.get(at, length)? else { return Ok(None) };
    Ok(frame::decode(bytes, nonce, at).map(|parsed| (length, parsed)))
}

/// A frame behind the end of those that check out. One group at a time is on its way to the disk; so if there is one, what
/// lies before it was acknowledged.
fn later_frame(window: &mut Window, nonce: u64, end: u64) -> Result<Option<u64>, StorageError> {
    /// How much is looked at together.
    const STEP: u64 = 64 << 10;
    let magic = frame::magic(nonce).to_le_bytes();
    let mut at = end + ALIGN;
    while at < window.len() {
        let length = STEP.min(window.len() - at);
        let bytes = window.get(at, usize::try_from(length).unwrap_or(0))?.unwrap_or_default();
        let candidates: Vec<u64> = (at..)
            .step_by(ALIGN as usize)
            .zip(bytes.chunks_exact(ALIGN as usize))
            .filter(|(_, c)| c.starts_with(&magic))
            .map(|(at, _)| at)
            .collect();
        for candidate in candidates {
            if frame_at(window, nonce, candidate)?.is_some() {
                return Ok(Some(candidate));
            }
        }
        at += length;
    }
    Ok(None)
}
