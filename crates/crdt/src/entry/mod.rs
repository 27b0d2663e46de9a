//! Entries (the unit of replication), the records that journal them, and the head that goes with each flush.
//!
//! An **entry** is one committed transaction as its origin made it. A **record** is an entry with what applying it gave
//! on this replica: revision, create revisions, outcomes of merges. The replica numbers its records. Records are
//! protobuf, so that fields can be added; the layout is described in `docs/format.md`.

pub(crate) mod chain;
pub(crate) mod change;
pub(crate) mod codec;
pub(crate) mod head;
pub(crate) mod record;

#[cfg(test)]
mod tests;

pub use change::{Applied, Change, ChangeKind, net};
pub use codec::CodecError;
pub use head::{Head, OriginHead, Past};
pub use record::{Bases, Below, Entry, EntryHead, Notes, Record};
