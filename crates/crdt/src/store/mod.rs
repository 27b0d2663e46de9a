//! etcd's multi-version store in memory, what is derived from its keys, and transactions on it.

pub(crate) mod auth;
pub(crate) mod crc;
pub(crate) mod digest;
pub(crate) mod hash_kv;
pub(crate) mod history;
pub(crate) mod index;
pub(crate) mod lease;
pub(crate) mod past;
pub(crate) mod range;
pub(crate) mod read;
pub(crate) mod state;
pub(crate) mod sweep;
pub(crate) mod system;
pub(crate) mod txn;
pub(crate) mod users;
pub(crate) mod walk;
