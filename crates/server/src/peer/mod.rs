//! Peers: one stream to each, kept up, with the replica's own protocol on it.
//!
//! ```text
//! dial  -> link -> session task -> committer queue       received inputs are applied as client writes are
//!   service ^          ^---------- durable vector        entries on disk are sent, in batches
//! ```
//!
//! The member with the smaller id dials. All queues here are bounded, and only a peer's own task waits for it. So a slow
//! peer is sent entries less often, and delays no other peer and no client.

mod board;
mod declarations;
mod dial;
mod end;
mod events;
mod fetch;
mod inbox;
pub mod join;
mod lines;
mod link;
mod losses;
mod peers;
mod probe;
mod service;
mod session;
mod status;
mod strays;
mod troubles;

pub use self::dial::Dialer;
pub(crate) use self::dial::{PING_INTERVAL, PING_TIMEOUT};
pub use self::peers::{Halt, Options, Peers};
pub use self::service::{Caller, Station, routes};
pub(crate) use self::troubles::Troubles;
