//! Gives the bytes of libFuzzer to the target that the variable EDDY_FUZZ_TARGET names. `fuzz/run` builds and starts it.
//!
//! One program for all targets: linking it takes longer than compiling them.
#![no_main]

use std::alloc::System;
use std::sync::LazyLock;

use cap::Cap;
use libfuzzer_sys::fuzz_target;

#[path = "../targets/mod.rs"]
mod targets;

/// The most memory that one input may make the process hold, bytes. What is allocated and never touched counts too, which
/// libFuzzer's own limit does not see.
const MEMORY_MAX: usize = 512 << 20;

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, MEMORY_MAX);

static TARGET: LazyLock<targets::Target> = LazyLock::new(|| {
    let wanted = std::env::var("EDDY_FUZZ_TARGET").unwrap_or_default();
    let found = targets::TARGETS.iter().find(|(name, _)| *name == wanted);
    found.unwrap_or_else(|| panic!("EDDY_FUZZ_TARGET={wanted:?} names no target; fuzz/run sets it")).1
});

fuzz_target!(|data: &[u8]| TARGET(data));
