//! Start-up: a replica from its records and its head.
//!
//! Whatever a journal can have lost or changed shows here as [`Damage`]: the records' own numbers and chain hashes,
//! the run of revisions, and at the end the hash of the state, which the head holds.

mod damage;
mod loader;
mod replication;

pub use damage::Damage;
pub use loader::Loader;
