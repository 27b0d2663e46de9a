//! Backups in the format of etcd's database, so that etcd's tools read them, and what etcd wrote is read here.
//!
//! [`give`] writes one of a running replica, [`restore`] makes a data dir of one,
//! [`history`] reads what happened since the compaction in one. `page`, `write` and `read` know bbolt's file format and nothing else; `schema`
//! knows what etcd keeps in such a file; `order` brings the replica's versions into the order of revisions.

pub mod give;
pub mod history;
mod order;
mod pace;
pub mod page;
pub mod read;
pub mod restore;
pub mod schema;
#[cfg(test)]
mod tests;
pub mod write;
