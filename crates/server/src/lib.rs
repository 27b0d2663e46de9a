//! The process of eddy: flags, sockets, TLS, HTTP endpoints, metrics and logs around the replica.
//!
//! The replica itself is `eddy_crdt`, a machine without clock, disk and network. This crate gives it those. The rooms and
//! their order are in ARCHITECTURE.md; `tests/rooms.rs` holds the order.

pub mod admin;
pub mod api;
pub mod assemble;
pub mod auth;
pub mod backup;
pub mod cli;
pub mod command;
pub mod config;
pub mod gateway;
pub mod grpc;
pub mod http;
pub mod limits;
pub mod listen;
pub mod logging;
pub mod metrics;
pub mod moving;
pub mod node;
pub mod peer;
pub mod program;
pub mod run;
pub mod storage;
pub mod tls;
pub mod version;
