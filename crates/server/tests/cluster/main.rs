//! Several real processes on loopback: what is written at one is read at the others, whatever happens between them.

#[path = "../support/mod.rs"]
mod support;

mod cluster;
mod faults;
mod members;
mod relay;
mod security;
mod sync;
