//! The etcd v3 API: one file for each gRPC service.

pub mod watch;
