//! The process around the replica: flags, TLS, connections, signals.

mod classes;
mod connections;
mod flags;
mod lifecycle;
mod manual;
mod rpcs;
mod support;
mod tls;
