//! Start-up: a replica from its records and its head.
//!
//! Every loss or change that a journal can have suffered shows here as [`Damage`]. A start checks the records' own
//! numbers and chain hashes, and the run of revisions. At the end it checks the hash of the state, which the head
//! holds.

mod again;
mod damage;
mod loader;
mod replication;

pub use damage::Damage;
pub use loader::Loader;
