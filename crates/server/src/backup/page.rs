//! The pages of bbolt's file format, version 2: what the writer and the reader both know.
//!
//! A file is a row of pages of one size. Each begins with a header of 16 bytes: its number, its kind, how many elements it
//! has, and how many pages more it takes. Numbers are little-endian. The first two pages are metas, of which the one with the
//! higher transaction counts. A leaf element is `flags, place, key length, value length` and a branch element is `place, key
//! length, page`. Places are counted from the element itself.

/// The page size of what is written. That of what is read stands in its meta.
pub const PAGE_SIZE: usize = 4096;

/// Bytes of a page's header, of a leaf's element and of a branch's element: all the same.
pub const HEADER: usize = 16;

/// A page of a tree that leads to others.
pub const BRANCH: u16 = 0x01;
/// A page of a tree with keys and values.
pub const LEAF: u16 = 0x02;
/// A page that says where the rest is.
pub const META: u16 = 0x04;
/// The page that names the free pages.
pub const FREELIST: u16 = 0x10;

/// The flag of a leaf's element whose value is a bucket.
pub const BUCKET: u32 = 0x01;

/// Bytes of a bucket as a value: the number of its root page, and a sequence. Root 0 says that the one page of the bucket
/// follows in the value itself.
pub const BUCKET_HEADER: usize = 16;

/// What stands for the page of the freelist where it is not written down.
pub const NO_FREELIST: u64 = u64::MAX;

const MAGIC: u32 = 0xED0C_DAED;
const VERSION: u32 = 2;
/// Bytes of a meta behind the page's header, and of these what the checksum covers.
const META_BYTES: usize = 64;
const SUMMED: usize = 56;

/// What a meta says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Meta {
    /// Bytes of a page.
    pub page_size: u32,
    /// The root page of the bucket that holds all buckets.
    pub root: u64,
    /// The page of the freelist.
    pub freelist: u64,
    /// How many pages are in use: the first number that is not.
    pub pages: u64,
    /// The transaction that wrote it.
    pub transaction: u64,
}

/// Why a page is no valid meta.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MetaError {
    /// It is too short.
    #[error("it ends within its first page")]
    Short,
    /// Another file.
    #[error("it is no bbolt database (no magic number)")]
    Foreign,
    /// Another version of the format.
    #[error("its format is version {0}, not 2")]
    Version(u32),
    /// Altered bytes.
    #[error("the checksum of its meta page is wrong")]
    Checksum,
    /// A page size that bbolt does not have.
    #[error("its page size is {0}")]
    PageSize(u32),
}

/// The FNV-1a hash, 64 bits.
pub fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// The header of a page.
pub fn header(id: u64, kind: u16, count: u16, overflow: u32) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..8].copy_from_slice(&id.to_le_bytes());
    header[8..10].copy_from_slice(&kind.to_le_bytes());
    header[10..12].copy_from_slice(&count.to_le_bytes());
    header[12..].copy_from_slice(&overflow.to_le_bytes());
    header
}

/// The number at that place; `None` beyond the end.
pub fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at.checked_add(2)?)?.try_into().ok()?))
}

/// The number at that place; `None` beyond the end.
pub fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

/// The number at that place; `None` beyond the end.
pub fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

impl Meta {
    /// The whole page.
    pub fn encode(&self, id: u64) -> Vec<u8> {
        let mut page = header(id, META, 0, 0).to_vec();
        for number in [MAGIC, VERSION, self.page_size, 0] {
            page.extend_from_slice(&number.to_le_bytes());
        }
        // The zero is the sequence of the root bucket.
        for number in [self.root, 0, self.freelist, self.pages, self.transaction] {
            page.extend_from_slice(&number.to_le_bytes());
        }
        let sum = fnv1a(&page[HEADER..]);
        page.extend_from_slice(&sum.to_le_bytes());
        page.resize(self.page_size as usize, 0);
        page
    }

    /// Reads it out of the first bytes of a page.
    ///
    /// # Errors
    /// When these are no meta.
    pub fn decode(page: &[u8]) -> Result<Self, MetaError> {
        let meta = page.get(HEADER..HEADER + META_BYTES).ok_or(MetaError::Short)?;
        let number = |at| u32_at(meta, at).ok_or(MetaError::Short);
        let long = |at| u64_at(meta, at).ok_or(MetaError::Short);
        if number(0)? != MAGIC {
            return Err(MetaError::Foreign);
        }
        if number(4)? != VERSION {
            return Err(MetaError::Version(number(4)?));
        }
        if long(SUMMED)? != fnv1a(&meta[..SUMMED]) {
            return Err(MetaError::Checksum);
        }
        let page_size = number(8)?;
        if !page_size.is_power_of_two() || !(512..=1 << 16).contains(&page_size) {
            return Err(MetaError::PageSize(page_size));
        }
        Ok(Self { page_size, root: long(16)?, freelist: long(32)?, pages: long(40)?, transaction: long(48)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_fnv1a() {
        assert_eq!([fnv1a(b""), fnv1a(b"a")], [0xcbf2_9ce4_8422_2325, 0xaf63_dc4c_8601_ec8c]);
    }

    #[test]
    fn a_meta_comes_back_and_no_altered_byte_passes() {
        let meta = Meta { page_size: 4096, root: 3, freelist: 2, pages: 9, transaction: 1 };
        let page = meta.encode(1);
        assert_eq!((page.len(), Meta::decode(&page)), (4096, Ok(meta)));
        for at in HEADER..HEADER + META_BYTES {
            let mut altered = page.clone();
            altered[at] ^= 1;
            assert!(Meta::decode(&altered).is_err(), "byte {at}");
        }
        assert_eq!(Meta::decode(&page[..50]), Err(MetaError::Short));
    }
}
