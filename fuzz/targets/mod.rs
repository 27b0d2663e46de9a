//! The bodies of the fuzz targets: what comes from outside, as bytes, through the functions that take it.
//!
//! A target panics when something is wrong, and only then. `fuzz/src/main.rs` gives the bytes of libFuzzer to one of them;
//! `crates/server/tests/fuzz` gives the kept corpus to all of them, without a fuzzer.

mod config_file;
pub mod database;
mod delta;
pub mod entry;
mod etcd_request;
pub mod gateway_json;
mod http_path;
mod input;
mod object;
pub mod pair;
pub mod peer_message;
mod record;
mod session;
pub mod snapshot_chunk;

/// What takes any bytes.
pub type Target = fn(&[u8]);

/// All targets, under the names of their folders in the corpus.
pub const TARGETS: &[(&str, Target)] = &[
    ("config_file", config_file::run),
    ("database", database::run),
    ("delta", delta::run),
    ("entry", entry::run),
    ("etcd_request", etcd_request::run),
    ("gateway_json", gateway_json::run),
    ("http_path", http_path::run),
    ("object", object::run),
    ("peer_message", peer_message::run),
    ("record", record::run),
    ("session", session::run),
    ("snapshot_chunk", snapshot_chunk::run),
];
