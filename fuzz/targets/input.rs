//! Reading the bytes of a fuzzer piece by piece, and the checksums that it cannot guess.

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64;

/// The field that ends messages and records: number 15 of type fixed64.
const CHECKSUM_TAG: u8 = 15 << 3 | 1;

/// Bytes that are read from their beginning. After the end there are zeros.
pub struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn byte(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or(0)
    }

    /// A number below 65,536.
    pub fn short(&mut self) -> usize {
        usize::from(self.byte()) | usize::from(self.byte()) << 8
    }

    /// That many bytes, or those that there are.
    pub fn take(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }

    pub fn rest(&mut self) -> &'a [u8] {
        self.take(usize::MAX)
    }
}

/// The bytes with the checksum that messages and records end in.
pub fn seal(body: &[u8]) -> Bytes {
    let mut bytes = body.to_vec();
    bytes.push(CHECKSUM_TAG);
    bytes.extend_from_slice(&xxh3_64(body).to_le_bytes());
    bytes.into()
}
