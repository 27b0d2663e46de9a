//! eddy's replica as a pure state machine.
//!
//! There is no runtime, clock, randomness, disk or network in this crate: time comes in as an argument
//! ([`clock::Now`]), what must reach the disk goes out as records ([`replica::Effects`]), and the same inputs always
//! give the same outputs. The server drives it; simulations drive thousands of it from a seed.
//!
//! From the ground floor up:
//! - [`id`], [`revision`], [`clock`], [`key`], [`vector`]: the words;
//! - [`op`], [`event`]: what clients ask, and what they are told; [`tally`]: how much was done, for metrics;
//! - [`entry`]: the unit of replication, and the record of it that is journaled, with their codec;
//! - [`index`]: every key with its versions; [`history`]: which keys changed at which revision;
//! - [`window`]: a key's unsettled versions; [`merge`]: what concurrent ones mean together, by the [`rules`];
//!   [`object`]: the fields of Kubernetes objects;
//! - [`system`]: leases and alarms as keys; [`lease`]: who lives how long; [`digest`]: hashes of the state;
//! - [`read`]: ranges and compares; [`txn`]: a transaction in progress;
//! - [`sync`]: what replicas tell each other;
//! - [`replica`]: the machine; [`restore`]: the machine from its records.

pub mod clock;
mod cluster;
pub mod digest;
pub mod entry;
pub mod event;
pub mod floor;
pub mod genesis;
mod graph;
pub mod history;
pub mod id;
pub mod index;
pub mod key;
mod leap;
pub mod lease;
pub mod log;
pub mod members;
pub mod merge;
pub mod notice;
pub mod object;
pub mod op;
pub mod origins;
pub mod read;
pub mod remote;
pub mod replica;
pub mod restore;
pub mod revision;
pub mod rules;
mod settle;
pub mod snapshot;
pub mod state;
pub mod sync;
pub mod system;
pub mod tally;
pub mod txn;
pub mod vector;
pub mod window;
pub mod windows;
