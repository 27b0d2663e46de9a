//! TLS with etcd's flags and file formats, over rustls. Here are the rules of versions and suites ([`check_rules`]),
//! and client certificates ([`client_auth`]). Certificates are read again when their files change ([`server_config`]).

mod certs;
mod client;
mod client_auth;
mod error;
mod rules;
pub(crate) mod san;
mod self_signed;
mod server;

pub use certs::ReloadingCert;
pub use client::peer_client_config;
pub use error::TlsError;
pub use rules::{Side, check_rules};
pub use server::server_config;
