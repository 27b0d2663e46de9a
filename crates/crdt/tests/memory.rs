//! What the types of all built-in kinds take in memory once they are read. A program of its own, because all that it allocates
//! is counted.

use std::alloc::System;

use cap::Cap;
use eddy_crdt::merge::Object;

#[global_allocator]
static HEAP: Cap<System> = Cap::new(System, usize::MAX);

/// The text that they are read from; it is part of the program and counts, too.
const TEXT: &str = include_str!("../src/merge/object/schema/kubernetes.schema");
/// The design's bar, bytes.
const MAX: usize = 1_000_000;

#[test]
fn the_types_of_all_kinds_take_less_than_a_megabyte() {
    let before = HEAP.allocated();
    drop(Object::parse(br#"{"apiVersion":"v1","kind":"Pod"}"#).expect("a pod"));
    let held = HEAP.allocated() - before;
    println!("{held} bytes are held, read from {}", TEXT.len());
    assert!(held > TEXT.len(), "nothing was read");
    assert!(held + TEXT.len() < MAX, "{held} bytes are held, read from {}", TEXT.len());
}
