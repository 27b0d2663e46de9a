//! The words of the crate: names of replicas and entries, time, revisions, keys, version vectors.
//!
//! Plain values. This room knows no other.

pub(crate) mod chain;
pub(crate) mod clock;
pub(crate) mod fence;
pub(crate) mod id;
pub(crate) mod key;
pub(crate) mod revision;
pub(crate) mod value;
pub(crate) mod vector;
