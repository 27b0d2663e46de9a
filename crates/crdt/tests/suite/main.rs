//! All suites of the replica in one program: `cargo test -p eddy-crdt --test suite NAME::` runs one.
//!
//! Each suite's first lines say what it proves and which variables make it longer. `support` has what they share.

mod support;

mod cluster;
mod damage;
mod hashkv;
mod merge;
mod model;
mod planted;
mod simulation;
mod sync;
