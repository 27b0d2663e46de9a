//! Keys and values of a checkpoint.
//!
//! A **page** holds consecutive records under the number of its first one. A record that does not fit into a page is
//! split into **parts** under its own number. One sled insert costs microseconds and a rewrite of its tree node later,
//! whatever its size, hence many records per insert.
//!
//! ```text
//! key    number u64 BE, part u32 BE      (12 x 0xff: the meta value)
//! value  kind u8, xxh3 u64 LE over key and the rest, meta length varint, meta, then by kind
//!        PAGE  { number - previous number (the key's at first) varint, length varint, bytes } ...
//!        PART  length of the whole record u64 LE, bytes
//!        META  nothing
//! ```
//! Every value may carry the [`Meta`] as of its write; the one of the highest generation counts. So a small group is one
//! insert, which sled writes with one message, not a batch.

use bytes::{Buf, BufMut, Bytes};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Records are gathered into pages up to this size. sled moves a node of more than a quarter of a segment to a blob
/// file. A node holds up to 17 values: 17 x (12 KiB + parts of overhead) stays below 256 KiB.
pub(super) const PAGE_BYTES: usize = 12 << 10;

/// What a record costs beside its bytes, for the sizes that are reported.
pub(super) const RECORD_OVERHEAD: u64 = 8;

pub(super) const KEY_LEN: usize = 12;
pub(super) type PageKey = [u8; KEY_LEN];

/// The key of the meta value; sorts after every record. `u64::MAX` is therefore no journal number.
pub(super) const META_KEY: PageKey = [0xff; KEY_LEN];

const KIND_PAGE: u8 = 1;
const KIND_PART: u8 = 2;
const KIND_META: u8 = 3;
const HEADER: usize = 1 + 8;

pub(super) fn key(number: u64, part: u32) -> PageKey {
    let mut key = [0; KEY_LEN];
    key[..8].copy_from_slice(&number.to_be_bytes());
    key[8..].copy_from_slice(&part.to_be_bytes());
    key
}

pub(super) fn parse_key(key: &[u8]) -> Option<(u64, u32)> {
    let (number, part) = key.split_first_chunk::<8>()?;
    Some((u64::from_be_bytes(*number), u32::from_be_bytes(part.try_into().ok()?)))
}

/// The checksum of one live record; their wrapping sum is in the meta, so that a lost or doubled record shows.
pub(super) fn record_sum(number: u64, record: &[u8]) -> u64 {
    xxh3_64_with_seed(record, number)
}

/// What is true of the whole journal, changed atomically with the records.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Meta {
    /// Counts the writes to the journal; the mark holds the last durable one.
    pub generation: u64,
    /// The number the next group must start at, from 1; none before one was appended.
    pub next: Option<u64>,
    /// Number of live records.
    pub live: u64,
    /// Bytes of live records with their overhead.
    pub live_bytes: u64,
    /// Wrapping sum of [`record_sum`] over the live records.
    pub sum: u64,
    /// Highest `live_bytes` since the last defragmentation.
    pub high_water: u64,
    /// The owner's state.
    pub head: Bytes,
}

impl Meta {
    pub fn add(&mut self, number: u64, record: &[u8]) {
        self.live += 1;
        self.live_bytes += record.len() as u64 + RECORD_OVERHEAD;
        self.sum = self.sum.wrapping_add(record_sum(number, record));
        self.high_water = self.high_water.max(self.live_bytes);
    }

    pub fn remove(&mut self, number: u64, record: &[u8]) {
        self.live = self.live.saturating_sub(1);
        self.live_bytes = self.live_bytes.saturating_sub(record.len() as u64 + RECORD_OVERHEAD);
        self.sum = self.sum.wrapping_sub(record_sum(number, record));
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        for n in [self.generation, self.next.unwrap_or_default(), self.live, self.live_bytes, self.high_water] {
            put_varint(out, n);
        }
        out.put_u64_le(self.sum);
        out.extend_from_slice(&self.head);
    }

    pub fn decode(mut from: &[u8]) -> Option<Self> {
        let buf = &mut from;
        let mut meta = Self {
            generation: get_varint(buf)?,
            next: Some(get_varint(buf)?).filter(|next| *next > 0),
            live: get_varint(buf)?,
            live_bytes: get_varint(buf)?,
            high_water: get_varint(buf)?,
            ..Self::default()
        };
        meta.sum = buf.try_get_u64_le().ok()?;
        meta.head = Bytes::copy_from_slice(buf);
        Some(meta)
    }
}

pub(super) fn put_varint(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

pub(super) fn get_varint(buf: &mut &[u8]) -> Option<u64> {
    let mut n = 0u64;
    for shift in (0..64).step_by(7) {
        let byte = buf.try_get_u8().ok()?;
        n |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(n);
        }
    }
    None
}

pub(super) fn get_slice<'a>(buf: &mut &'a [u8], len: u64) -> Option<&'a [u8]> {
    let (slice, rest) = buf.split_at_checked(usize::try_from(len).ok()?)?;
    *buf = rest;
    Some(slice)
}

fn finish(key: &PageKey, kind: u8, meta: Option<&Meta>, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(payload.len() + HEADER + 64);
    out.push(kind);
    out.put_u64_le(0);
    let mut encoded = Vec::new();
    if let Some(meta) = meta {
        meta.encode(&mut encoded);
    }
    put_varint(&mut out, encoded.len() as u64);
    out.extend_from_slice(&encoded);
    out.extend_from_slice(payload);
    let sum = checksum(key, kind, &out[HEADER..]);
    out[1..HEADER].copy_from_slice(&sum.to_le_bytes());
    out
}

fn checksum(key: &[u8], kind: u8, body: &[u8]) -> u64 {
    xxh3_64_with_seed(body, xxh3_64(key).wrapping_add(u64::from(kind)))
}

/// A value as it is read back.
#[derive(Debug)]
pub(super) struct Value<'a> {
    pub meta: Option<Meta>,
    pub content: Content<'a>,
}

/// What a value holds beside the meta.
#[derive(Debug)]
pub(super) enum Content<'a> {
    Page(Vec<(u64, &'a [u8])>),
    Part { number: u64, part: u32, total: u64, bytes: &'a [u8] },
    Meta,
}

/// Reads a value; `None` when it does not check out.
pub(super) fn decode<'a>(key: &[u8], value: &'a [u8]) -> Option<Value<'a>> {
    let (number, part) = parse_key(key)?;
    let mut buf = value;
    let kind = buf.try_get_u8().ok()?;
    if buf.try_get_u64_le().ok()? != checksum(key, kind, buf) {
        return None;
    }
    let len = get_varint(&mut buf)?;
    let encoded = get_slice(&mut buf, len)?;
    let meta = if encoded.is_empty() { None } else { Some(Meta::decode(encoded)?) };
    let content = match kind {
        KIND_META if key == META_KEY => Content::Meta,
        KIND_PART => {
            let total = buf.try_get_u64_le().ok()?;
            Content::Part { number, part, total, bytes: buf }
        }
        KIND_PAGE if part == 0 => {
            let mut records = Vec::new();
            let mut at = number;
            while !buf.is_empty() {
                let delta = get_varint(&mut buf)?;
                if records.is_empty() != (delta == 0) {
                    return None;
                }
                at = at.checked_add(delta)?;
                let len = get_varint(&mut buf)?;
                records.push((at, get_slice(&mut buf, len)?));
            }
            Content::Page(records)
        }
        _ => return None,
    };
    Some(Value { meta, content })
}

/// The meta alone.
pub(super) fn encode_meta(meta: &Meta) -> Vec<u8> {
    finish(&META_KEY, KIND_META, Some(meta), &[])
}

/// Gathers records, in ascending order, into pages.
#[derive(Debug, Default)]
pub(super) struct Packer {
    first: u64,
    last: u64,
    payload: Vec<u8>,
    empty: bool,
    done: Vec<(PageKey, u8, Vec<u8>)>,
    bytes: usize,
}

impl Packer {
    pub fn new() -> Self {
        Self { empty: true, ..Self::default() }
    }

    /// Adds a record; its number must be above the one before.
    pub fn push(&mut self, number: u64, record: &[u8]) {
        self.bytes += record.len() + KEY_LEN;
        if !self.empty && self.payload.len() + record.len() > PAGE_BYTES {
            self.cut();
        }
        if record.len() > PAGE_BYTES {
            self.push_parts(number, record);
            return;
        }
        if self.empty {
            self.first = number;
            self.last = number;
            self.empty = false;
        }
        put_varint(&mut self.payload, number - self.last);
        put_varint(&mut self.payload, record.len() as u64);
        self.payload.extend_from_slice(record);
        self.last = number;
    }

    fn push_parts(&mut self, number: u64, record: &[u8]) {
        for (part, bytes) in (0u32..).zip(record.chunks(PAGE_BYTES)) {
            let mut payload = Vec::with_capacity(bytes.len() + 8);
            payload.put_u64_le(record.len() as u64);
            payload.extend_from_slice(bytes);
            self.done.push((key(number, part), KIND_PART, payload));
        }
    }

    /// Ends the current page: what follows goes to another one.
    pub fn cut(&mut self) {
        if !self.empty {
            self.done.push((key(self.first, 0), KIND_PAGE, std::mem::take(&mut self.payload)));
            self.empty = true;
        }
    }

    /// Bytes that were pushed.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The values, the last one with `meta`.
    pub fn finish(mut self, meta: Option<&Meta>) -> Vec<(PageKey, Vec<u8>)> {
        self.cut();
        let last = self.done.len();
        (1..)
            .zip(self.done)
            .map(|(i, (key, kind, payload))| (key, finish(&key, kind, meta.filter(|_| i == last), &payload)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_and_parts_come_back_as_they_were() {
        let meta = Meta {
            generation: 300,
            next: Some(9),
            live: 3,
            live_bytes: 77,
            sum: u64::MAX,
            high_water: 99,
            head: Bytes::from_static(b"h"),
        };
        let long = vec![7u8; PAGE_BYTES * 2 + 1];
        let mut packer = Packer::new();
        packer.push(5, b"");
        packer.push(700, b"abc");
        packer.push(701, &long);
        let values = packer.finish(Some(&meta));
        assert_eq!(values.len(), 4);
        let first = decode(&values[0].0, &values[0].1).expect("valid");
        assert!(first.meta.is_none());
        assert!(matches!(first.content, Content::Page(r) if r == [(5, &b""[..]), (700, &b"abc"[..])]));
        let mut whole = Vec::new();
        for (i, (key, value)) in values[1..].iter().enumerate() {
            let value = decode(key, value).expect("valid");
            let Content::Part { number: 701, part, total, bytes } = value.content else { panic!("{value:?}") };
            assert_eq!((part as usize, total as usize), (i, long.len()));
            assert_eq!(value.meta, (i == 2).then(|| meta.clone()));
            whole.extend_from_slice(bytes);
        }
        assert_eq!(whole, long);
    }

    #[test]
    fn every_flipped_bit_of_a_value_shows() {
        let mut packer = Packer::new();
        packer.push(1, b"some record");
        packer.push(2, b"another");
        let (key, value) = packer.finish(Some(&Meta::default())).remove(0);
        for bit in 0..value.len() * 8 {
            let mut bad = value.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&key, &bad).is_none(), "bit {bit}");
        }
        assert!(decode(&super::key(2, 0), &value).is_none(), "a value under a foreign key");
    }
}
