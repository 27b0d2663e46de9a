//! The state after a frame as what changed since the frame before: one zstd frame with the state before as its dictionary.
//! So what grows with the members of a cluster is written when it changes, not with every group.

use std::cell::RefCell;

use zstd::zstd_safe::{CCtx, CParameter, DCtx, SafeResult, compress_bound};

/// Higher levels find nothing more where nearly everything is in the dictionary, and cost more.
const LEVEL: i32 = 1;

/// A longer base is not found as a whole by the tables of the level, bytes: for these there are sparse ones.
const LONG: usize = 64 << 10;

/// What zstd reads back without being told to, as a power of two.
const WINDOW_LOG_MAX: u32 = 27;

/// No state is longer, bytes: what a few bytes on disk may make a start allocate.
pub(super) const STATE_MAX: usize = 256 << 20;

thread_local! {
    // To set one up costs more than to use it.
    static COMPRESSOR: RefCell<CCtx<'static>> = RefCell::new(CCtx::create());
    static DECOMPRESSOR: RefCell<DCtx<'static>> = RefCell::new(DCtx::create());
}

/// The change from `base` to `state`. Neither may begin as a dictionary of zstd's own does.
pub(super) fn between(base: &[u8], state: &[u8]) -> Vec<u8> {
    let mut patch = Vec::with_capacity(compress_bound(state.len()));
    let done = if base.len() <= LONG {
        COMPRESSOR.with_borrow_mut(|context| context.compress_using_dict(&mut patch, state, base, LEVEL))
    } else {
        compress_long(&mut patch, base, state)
    };
    debug_assert!(done.is_ok(), "the buffer holds the worst case");
    patch
}

fn compress_long(patch: &mut Vec<u8>, base: &[u8], state: &[u8]) -> SafeResult {
    let mut context = CCtx::create();
    // The window must reach from the end of the state to the beginning of the base.
    let window = (base.len() + state.len()).next_power_of_two().trailing_zeros().clamp(10, WINDOW_LOG_MAX);
    context.set_parameter(CParameter::CompressionLevel(LEVEL))?;
    context.set_parameter(CParameter::WindowLog(window))?;
    context.set_parameter(CParameter::EnableLongDistanceMatching(true))?;
    context.ref_prefix(base)?;
    context.compress2(patch, state)
}

/// The state of which `patch` is the change, `len` bytes long; `None` when it does not give that.
pub(super) fn apply(base: &[u8], patch: &[u8], len: usize) -> Option<Vec<u8>> {
    if len > STATE_MAX {
        return None;
    }
    let mut state = Vec::with_capacity(len);
    DECOMPRESSOR.with_borrow_mut(|context| context.decompress_using_dict(&mut state, patch, base)).ok()?;
    (state.len() == len).then_some(state)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_gives_the_state_and_is_small() {
        let base: Vec<u8> = (0..40_000_u32).flat_map(|n| n.wrapping_mul(0x9e37_79b9).to_le_bytes()).collect();
        for (base, bound) in [(&base[..], 400), (&base[..40_000], 200), (&base[..300], 60), (&[1], 30), (&[], 30)] {
            let mut state = base.to_vec();
            for at in (0..state.len()).step_by(1 + state.len() / 5) {
                state[at] ^= 1;
            }
            let patch = between(base, &state);
            assert_eq!(apply(base, &patch, state.len()).as_deref(), Some(&state[..]));
            assert!(patch.len() < bound, "{} bytes for a change in {}", patch.len(), base.len());
        }
    }
}
