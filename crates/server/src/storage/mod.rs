//! The durable journal: opaque records under increasing journal numbers.
//!
//! This module knows nothing about etcd, keys or replicas. It keeps what it acknowledged, or says which file lost it;
//! it never drops a record silently. The bytes on disk, and why they are so:
//!
//! ```text
//! <data-dir>/eddy/            0700; foreign files beside it (sockets) are left alone
//!   format                    one line with the version of this layout; written last when a store is created
//!   lock                      locked while a process has the store open
//!   place                     tells a copy of the store from the store, see `place`
//!   current                   which checkpoint counts, and from which segment on the log does, see `current`
//!   wal/                      the write-ahead log: numbered segments of frames, see `wal`
//!   checkpoint.<number>/      a sled database: pages of records, see `page` and `checkpoint`
//! ```
//!
//! A group is written to the log and nowhere else before it is acknowledged. When the log has outgrown what is live, a
//! checkpoint is built aside from what is live. It is synced and named the current one. Then the checkpoint before it
//! and the old segments go. A start reads the checkpoint and the log behind it. Nothing that has its name is ever
//! changed, but that the log grows at its end. So nothing that a power cut does to what is being written touches what
//! was acknowledged.
//!
//! **Damage.** Everything that is read is checked. The number, bytes and checksum sum of all live records are part of
//! each frame and of each checkpoint. What does not check out is named, and the start is refused before anything is
//! changed. `wal` says how a torn tail is told from damage.

mod checkpoint;
mod contain;
mod contract;
mod current;
#[cfg(test)]
mod cuts;
mod dir;
mod disk;
pub mod doctor;
mod error;
pub mod faulty;
mod journal;
pub mod moving;
mod overlay;
mod page;
mod place;
#[cfg(test)]
mod simulated;
pub mod stage;
mod store;
mod wal;

pub use self::contract::{AppendStats, Doubt, Group, Journal, keeping_error};
pub use self::error::StorageError;
pub use self::journal::{DiskJournal, Options};
