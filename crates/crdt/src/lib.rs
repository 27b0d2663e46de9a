//! eddy's replica as a pure state machine.
//!
//! There is no runtime, clock, randomness, disk or network in this crate: time comes in as an argument
//! ([`clock::Now`]), what must reach the disk goes out as records ([`replica::Effects`]), and the same inputs always
//! give the same outputs. The server drives it; simulations drive thousands of it from a seed.
//!
//! From the ground floor up:
//! - [`id`], [`revision`], [`clock`], [`key`], [`vector`]: the words;
//! - [`op`], [`event`]: what clients ask, and what they are told;

pub mod clock;
pub mod event;
pub mod id;
pub mod key;
pub mod op;
pub mod revision;
pub mod vector;
