//! Chain hashes: which entries an origin made, in one number.

/// Length of a chain hash, bytes.
pub const CHAIN_LEN: usize = 16;

/// Hash of an origin's entries up to one of them: each covers the one before. Tells a lost or forked tail.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Chain([u8; CHAIN_LEN]);

impl Chain {
    /// Wraps the bytes of a hash.
    pub const fn new(bytes: [u8; CHAIN_LEN]) -> Self {
        Self(bytes)
    }

    /// The hash as bytes.
    pub fn as_bytes(&self) -> &[u8; CHAIN_LEN] {
        &self.0
    }

    /// Reads a hash back; `None` when it has another length.
    pub fn from_wire(bytes: &[u8]) -> Option<Self> {
        Some(Self(bytes.try_into().ok()?))
    }
}
