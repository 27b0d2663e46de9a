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
//! - [`system`]: leases, alarms and members as keys; [`members`], [`genesis`]: who belongs to the cluster; [`lease`]: who lives
//!   how long; [`digest`]: hashes of the state;
//! - [`state`], [`windows`]: what an entry may change; [`read`]: ranges and compares; [`txn`]: a transaction in progress;
//! - [`log`], [`floor`], [`origins`]: what some member may lack, what all have, what is known of who made it;
//! - [`replica`]: the machine, with [`remote`] entries, [`inspect`] to look at it, and [`tidy`] to forget; [`notice`]: what
//!   operators are told;
//! - [`restore`]: the machine from its records; [`snapshot`]: from another's state.
//! - [`sync`]: what replicas tell each other.

pub mod clock;
mod cluster;
pub mod digest;
mod doubt;
pub mod entry;
pub mod event;
pub mod floor;
pub mod genesis;
mod graph;
pub mod history;
pub mod id;
pub mod index;
pub mod inspect;
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
mod own;
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
pub mod tidy;
pub mod txn;
pub mod vector;
pub mod window;
pub mod windows;
