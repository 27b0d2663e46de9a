//! Values as what changed since another value.
//!
//! A delta is one zstd frame made with the base as its prefix. It names the base by hash, never by position, so that a
//! receiver either has exactly those bytes or knows that it has not. What comes out is compared with the hash of what
//! went in: a delta gives the sender's bytes or an error.

use std::cell::RefCell;

use bytes::Bytes;
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};
use zstd::zstd_safe::{CCtx, CParameter, DCtx};

/// What the fields that name the base, the length and the hash cost on the wire, bytes. A delta must save more.
pub const OVERHEAD: usize = 32;

/// Values below this are sent whole: nothing to gain, bytes.
const LEN_MIN: usize = 96;

/// Values above this are sent whole, and no delta may claim to give more: what a few bytes may make a receiver
/// allocate, bytes. etcd's own limit for a request is 1.5 MiB.
pub const LEN_MAX: usize = 16 << 20;

/// A longer base is not indexed as a whole by the tables of the level: for these there are sparse ones, bytes.
const LONG: usize = 1 << 16;

/// Higher levels find nothing more where nearly everything is in the base, and cost more.
const LEVEL: i32 = 3;

/// A value as a change of another one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Delta {
    /// Hash of the bytes it is a change of; see [`hash`].
    pub base: u128,
    /// Length of the value it gives, bytes.
    pub len: usize,
    /// XXH3 (64 bits) of the value it gives.
    pub check: u64,
    /// The change, as a zstd frame.
    pub patch: Bytes,
}

/// Why a delta gives no value.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DeltaError {
    /// It claims to give more than any delta may.
    #[error("a delta of {0} bytes, of which at most {LEN_MAX} are taken")]
    TooLarge(usize),
    /// These are not the bytes it is a change of.
    #[error("a delta for another base")]
    Base,
    /// The change is no zstd frame, or gives something else than it should.
    #[error("a delta that does not give what it says")]
    Damaged,
}

/// How a delta names its base: XXH3, 128 bits.
pub fn hash(value: &[u8]) -> u128 {
    xxh3_128(value)
}

impl Delta {
    /// The value as a change of `base`; `None` where that saves nothing.
    pub fn between(base: &[u8], value: &[u8]) -> Option<Self> {
        if !(LEN_MIN..=LEN_MAX).contains(&value.len()) || base.len() > LEN_MAX || base.is_empty() {
            return None;
        }
        // What does not fit here saves nothing: then zstd says so, and the value is sent whole.
        let mut patch = Vec::with_capacity(value.len() - OVERHEAD);
        compress(&mut patch, value, base)?;
        (patch.len() + OVERHEAD < value.len()).then(|| Self {
            base: hash(base),
            len: value.len(),
            check: xxh3_64(value),
            patch: patch.into(),
        })
    }

    /// The value, from the base.
    ///
    /// # Errors
    /// When `base` is not the base, or the delta is damaged.
    pub fn apply(&self, base: &[u8]) -> Result<Bytes, DeltaError> {
        if self.len > LEN_MAX {
            return Err(DeltaError::TooLarge(self.len));
        }
        if hash(base) != self.base {
            return Err(DeltaError::Base);
        }
        let mut value = Vec::with_capacity(self.len);
        decompress(&mut value, &self.patch, base).ok_or(DeltaError::Damaged)?;
        if value.len() != self.len || xxh3_64(&value) != self.check {
            return Err(DeltaError::Damaged);
        }
        Ok(value.into())
    }
}

thread_local! {
    // To set one up costs more than to use it for a few kilobytes.
    static COMPRESSOR: RefCell<CCtx<'static>> = RefCell::new(CCtx::create());
    static DECOMPRESSOR: RefCell<DCtx<'static>> = RefCell::new(DCtx::create());
}

/// Whether zstd would take the base for one of its own dictionaries, unless it is given as a prefix.
fn looks_like_a_dictionary(base: &[u8]) -> bool {
    base.starts_with(&[0x37, 0xa4, 0x30, 0xec])
}

fn compress(patch: &mut Vec<u8>, value: &[u8], base: &[u8]) -> Option<usize> {
    if base.len() <= LONG && !looks_like_a_dictionary(base) {
        return COMPRESSOR.with_borrow_mut(|context| context.compress_using_dict(patch, value, base, LEVEL)).ok();
    }
    let mut context = CCtx::try_create()?;
    // The window must reach from the end of the value to the beginning of the base.
    let window = (base.len() + value.len()).next_power_of_two().trailing_zeros().clamp(10, 26);
    for parameter in [
        CParameter::CompressionLevel(LEVEL),
        CParameter::WindowLog(window),
        CParameter::EnableLongDistanceMatching(base.len() > LONG),
        CParameter::ContentSizeFlag(false),
        CParameter::ChecksumFlag(false),
        CParameter::DictIdFlag(false),
    ] {
        context.set_parameter(parameter).ok()?;
    }
    context.ref_prefix(base).ok()?;
    context.compress2(patch, value).ok()
}

fn decompress(value: &mut Vec<u8>, patch: &[u8], base: &[u8]) -> Option<usize> {
    if !looks_like_a_dictionary(base) {
        return DECOMPRESSOR.with_borrow_mut(|context| context.decompress_using_dict(value, patch, base)).ok();
    }
    let mut context = DCtx::try_create()?;
    context.ref_prefix(base).ok()?;
    context.decompress(value, patch).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn text(len: usize) -> Vec<u8> {
        (0u32..)
            .flat_map(|n| format!("\"field{n}\":{},", n.wrapping_mul(2_654_435_761)).into_bytes())
            .take(len)
            .collect()
    }

    #[test]
    fn a_small_edit_of_any_size_of_value_is_a_small_delta() {
        for len in [200, 2_000, 100_000, 3_000_000] {
            let base = text(len);
            let mut value = base.clone();
            value.splice(len / 2..len / 2 + 3, *b"changed");
            let delta = Delta::between(&base, &value).expect("smaller");
            // Repeated matches over long values cost a few bytes per 128 KiB block.
            assert!(delta.patch.len() <= 60 + len / 8192, "{} bytes for {len}", delta.patch.len());
            assert_eq!(delta.apply(&base), Ok(value.into()));
        }
    }

    #[test]
    fn what_saves_nothing_is_no_delta() {
        let mut noise = 1u64;
        let mut random = |len: usize| -> Vec<u8> {
            let mut next = || {
                noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (noise >> 33) as u8
            };
            (0..len).map(|_| next()).collect()
        };
        let (base, value) = (random(2000), random(2000));
        assert_eq!(Delta::between(&base, &value), None);
        assert_eq!(Delta::between(b"", &text(500)), None);
        assert_eq!(Delta::between(&text(50), &text(51)), None, "short values are cheaper whole");
    }

    #[test]
    fn a_base_that_looks_like_a_dictionary_is_plain_bytes() {
        // zstd reads a dictionary that begins so as one of its own trained ones, unless told otherwise.
        let mut base = vec![0x37, 0xa4, 0x30, 0xec];
        base.extend(text(1000));
        let mut value = base.clone();
        value[500] ^= 1;
        let delta = Delta::between(&base, &value).expect("smaller");
        assert_eq!(delta.apply(&base), Ok(value.into()));
    }

    #[test]
    fn damage_and_another_base_are_told_apart() {
        let base = text(2000);
        let mut value = base.clone();
        value[700] ^= 1;
        let delta = Delta::between(&base, &value).expect("smaller");
        assert_eq!(delta.apply(&value), Err(DeltaError::Base));
        for at in 0..delta.patch.len() {
            let mut patch = delta.patch.to_vec();
            patch[at] ^= 0x10;
            let damaged = Delta { patch: patch.into(), ..delta.clone() };
            // Either noticed, or a bit that zstd does not use.
            assert!(damaged.apply(&base).map_or_else(|e| e == DeltaError::Damaged, |v| v == value), "byte {at}");
            let cut = Delta { patch: delta.patch.slice(..at), ..delta.clone() };
            assert_eq!(cut.apply(&base), Err(DeltaError::Damaged), "cut at {at}");
        }
        let long = Delta { len: usize::MAX, ..delta.clone() };
        assert_eq!(long.apply(&base), Err(DeltaError::TooLarge(usize::MAX)));
        let wrong = Delta { len: delta.len + 1, ..delta };
        assert_eq!(wrong.apply(&base), Err(DeltaError::Damaged));
    }

    proptest! {
        #[test]
        fn any_value_comes_back_from_any_base(
            base in proptest::collection::vec(0u8..8, 0..600),
            value in proptest::collection::vec(0u8..8, 0..600),
            shared in proptest::collection::vec(any::<u8>(), 0..600),
        ) {
            let (base, value) = ([&base[..], &shared].concat(), [&shared[..], &value].concat());
            if let Some(delta) = Delta::between(&base, &value) {
                prop_assert!(delta.patch.len() + OVERHEAD < value.len());
                prop_assert_eq!(delta.apply(&base), Ok(value.into()));
            }
        }
    }
}
