//! Deltas: a made-up one gives a value of the length it says or an error, and a true one gives the value back.

use bytes::Bytes;
use eddy_crdt::sync::Delta;
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

use super::input::Input;

/// The longest value that a delta may give, bytes.
const LEN_MAX: usize = 16 << 20;

pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let (how, base_len, len) = (input.byte(), input.short(), input.short());
    let base = input.take(base_len);
    let rest = input.rest();
    if how & 1 == 0 {
        made_up(base, len << (how >> 4), rest);
    } else {
        true_one(base, rest, how, len);
    }
}

fn made_up(base: &[u8], len: usize, patch: &[u8]) {
    let delta = Delta { base: xxh3_128(base), len, check: xxh3_64(base), patch: Bytes::copy_from_slice(patch) };
    if let Ok(value) = delta.apply(base) {
        assert_eq!(value.len(), len);
        assert!(len <= LEN_MAX, "{} bytes from a patch of {}", len, patch.len());
    }
    if delta.len > LEN_MAX {
        assert!(delta.apply(base).is_err(), "a delta of {len} bytes was taken");
    }
}

fn true_one(base: &[u8], value: &[u8], how: u8, at: usize) {
    let Some(delta) = Delta::between(base, value) else { return };
    assert!(delta.patch.len() < value.len());
    assert_eq!(delta.apply(base).as_deref(), Ok(value));
    // Damaged, it gives the same or nothing.
    let mut patch = delta.patch.to_vec();
    let at = at % patch.len();
    patch[at] ^= how.max(1);
    let damaged = Delta { patch: patch.into(), ..delta.clone() };
    if let Ok(given) = damaged.apply(base) {
        assert_eq!(given, value);
    }
    let longer = Delta { len: delta.len + 1, ..delta };
    assert!(longer.apply(base).is_err());
}
