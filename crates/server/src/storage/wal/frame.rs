//! One frame of the log: a group of records, what became of older records, and the state after them. It is there whole or
//! not at all.
//!
//! ```text
//! frame   magic u32 LE, length of the body u32 LE, checksum u64 LE, body, zeros up to a multiple of 8
//! body    kind u8, then for a GROUP:
//!         length of the state varint, length of the patch varint, patch (see `delta`)
//!         number of the first record varint, count varint, { length varint, bytes } ...
//!         count varint, { number varint, 0 | length + 1 varint, bytes } ...     (older records: dropped | replaced)
//!         for a SEAL nothing: the log goes on in the next segment
//! ```
//! Magic and checksum depend on a random number of the segment, the checksum on the frame's place, too. So neither what an
//! older file left on the disk nor what a client wrote is ever taken for a frame.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::{Buf, BufMut, Bytes};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::super::page::{get_slice, get_varint, put_varint};

/// Magic, length, checksum.
pub(super) const HEADER: usize = 16;

/// Frames begin at multiples of this, so that there are few places to look for one.
pub(super) const ALIGN: u64 = 8;

const KIND_GROUP: u8 = 1;
const KIND_SEAL: u8 = 2;

/// What a seal takes at most, bytes.
pub(super) const SEAL_BYTES: u64 = 24;

/// The next place where a frame can begin.
pub(super) fn align(at: u64) -> u64 {
    at.next_multiple_of(ALIGN)
}

/// What is appended at once.
#[derive(Debug, Clone, Copy)]
pub struct Content<'a> {
    /// The number of the first new record.
    pub first: u64,
    /// New records.
    pub records: &'a [Bytes],
    /// Older records with their new content; `None`: dropped.
    pub changes: &'a BTreeMap<u64, Option<Bytes>>,
}

impl Content<'_> {
    /// The most bytes that a frame of it takes, with a state of so many bytes.
    pub fn bytes_max(&self, state: usize) -> u64 {
        let records = self.records.iter().map(|record| record.len() + 5).sum::<usize>();
        let changes = self.changes.values().map(|to| to.as_ref().map_or(0, Bytes::len) + 15).sum::<usize>();
        // The patch is at most a little longer than the state.
        (HEADER + 64 + records + changes + state + state / 128 + 512) as u64
    }
}

/// Where bytes lie in a frame, by the number of their record; `None`: the record was dropped.
pub(super) type Places = Vec<(u64, Option<Range<usize>>)>;

/// The number that frames of a segment begin with. Never zero, which is what reserved space begins with.
pub(super) fn magic(nonce: u64) -> u32 {
    xxh3_64(&nonce.to_le_bytes()) as u32 | 1
}

fn checksum(nonce: u64, at: u64, length: u32, body: &[u8]) -> u64 {
    let seed = xxh3_64_with_seed(&at.to_le_bytes(), nonce ^ u64::from(length).rotate_left(32));
    xxh3_64_with_seed(body, seed)
}

fn begin(out: &mut Vec<u8>) {
    out.clear();
    out.resize(HEADER, 0);
}

/// Completes the header; `None` when the frame is too long for one.
fn finish(out: &mut Vec<u8>, nonce: u64, at: u64) -> Option<()> {
    let length = u32::try_from(out.len() - HEADER).ok()?;
    let sum = checksum(nonce, at, length, &out[HEADER..]);
    out[..4].copy_from_slice(&magic(nonce).to_le_bytes());
    out[4..8].copy_from_slice(&length.to_le_bytes());
    out[8..16].copy_from_slice(&sum.to_le_bytes());
    out.resize(out.len().next_multiple_of(ALIGN as usize), 0);
    Some(())
}

/// Writes the frame of a group at place `at` into `out`. `None`: it is too long.
pub(super) fn encode(
    out: &mut Vec<u8>,
    nonce: u64,
    at: u64,
    (state_len, patch): (usize, &[u8]),
    content: Content<'_>,
) -> Option<Places> {
    begin(out);
    let mut places = Vec::with_capacity(content.records.len() + content.changes.len());
    out.put_u8(KIND_GROUP);
    put_varint(out, state_len as u64);
    put_varint(out, patch.len() as u64);
    out.extend_from_slice(patch);
    put_varint(out, content.first);
    put_varint(out, content.records.len() as u64);
    for (number, record) in (content.first..).zip(content.records) {
        put_varint(out, record.len() as u64);
        places.push((number, Some(out.len()..out.len() + record.len())));
        out.extend_from_slice(record);
    }
    put_varint(out, content.changes.len() as u64);
    for (number, to) in content.changes {
        put_varint(out, *number);
        put_varint(out, to.as_ref().map_or(0, |bytes| bytes.len() as u64 + 1));
        let bytes = to.as_deref().unwrap_or_default();
        places.push((*number, to.as_ref().map(|_| out.len()..out.len() + bytes.len())));
        out.extend_from_slice(bytes);
    }
    finish(out, nonce, at)?;
    Some(places)
}

/// Writes a seal for place `at` into `out`.
pub(super) fn encode_seal(out: &mut Vec<u8>, nonce: u64, at: u64) {
    begin(out);
    out.put_u8(KIND_SEAL);
    // One byte is never too long.
    finish(out, nonce, at).unwrap_or_default();
}

/// The length of the body, if this may be the header of a frame.
pub(super) fn body_length(header: &[u8], nonce: u64) -> Option<u32> {
    let mut header = header;
    (header.try_get_u32_le().ok()? == magic(nonce)).then_some(())?;
    header.try_get_u32_le().ok()
}

/// A frame as it is read back.
#[derive(Debug)]
pub(super) enum Frame<'a> {
    /// A group: the state's length and change, and where the records lie, from the beginning of the frame.
    Group { state_len: usize, patch: &'a [u8], places: Places },
    /// The log goes on in the next segment.
    Seal,
}

/// Reads a frame, header included; `None` when it does not check out.
pub(super) fn decode(frame: &[u8], nonce: u64, at: u64) -> Option<Frame<'_>> {
    let (header, body) = frame.split_at_checked(HEADER)?;
    let length = body_length(header, nonce)?;
    let sum = u64::from_le_bytes(header.get(8..16)?.try_into().ok()?);
    if body.len() != length as usize || checksum(nonce, at, length, body) != sum {
        return None;
    }
    let mut buf = body;
    match buf.try_get_u8().ok()? {
        KIND_SEAL => return buf.is_empty().then_some(Frame::Seal),
        KIND_GROUP => {}
        _ => return None,
    }
    let state_len = usize::try_from(get_varint(&mut buf)?).ok()?;
    let length = get_varint(&mut buf)?;
    let patch = get_slice(&mut buf, length)?;
    let mut places = Vec::new();
    let mut take = |buf: &mut &[u8], number: u64, length: Option<u64>| {
        let from = frame.len() - buf.len();
        let bytes = get_slice(buf, length.unwrap_or(0))?;
        places.push((number, length.map(|_| from..from + bytes.len())));
        Some(())
    };
    let first = get_varint(&mut buf)?;
    let count = get_varint(&mut buf)?;
    for number in first..first.checked_add(count)? {
        let length = get_varint(&mut buf)?;
        take(&mut buf, number, Some(length))?;
    }
    for _ in 0..get_varint(&mut buf)? {
        let number = get_varint(&mut buf)?;
        let length = get_varint(&mut buf)?.checked_sub(1);
        take(&mut buf, number, length)?;
    }
    buf.is_empty().then_some(Frame::Group { state_len, patch, places })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_comes_back_and_every_flipped_bit_shows() {
        let changes = BTreeMap::from([(3, None), (4, Some(Bytes::new())), (900, Some(Bytes::from_static(b"new")))]);
        let records = [Bytes::from_static(b"some record"), Bytes::new()];
        let content = Content { first: 1000, records: &records, changes: &changes };
        let mut out = Vec::new();
        let places = encode(&mut out, 7, 48, (9, b"patch"), content).expect("short");
        assert!(out.len() as u64 <= content.bytes_max(9) && out.len() % 8 == 0);
        let length = HEADER + body_length(&out, 7).expect("a header") as usize;
        let frame = out[..length].to_vec();
        let Some(Frame::Group { state_len: 9, patch: b"patch", places: found }) = decode(&frame, 7, 48) else {
            panic!("it does not come back");
        };
        assert_eq!(found, places);
        let bytes = |at: usize| found[at].1.clone().map(|range| &frame[range]);
        assert_eq!((bytes(0), bytes(1), bytes(2)), (Some(&b"some record"[..]), Some(&b""[..]), None));
        assert_eq!((bytes(3), bytes(4)), (Some(&b""[..]), Some(&b"new"[..])));
        for bit in 0..frame.len() * 8 {
            let mut bad = frame.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&bad, 7, 48).is_none(), "bit {bit}");
        }
        assert!(decode(&frame, 7, 56).is_none(), "at another place");
        assert!(decode(&frame, 8, 48).is_none(), "in another segment");
    }
}
