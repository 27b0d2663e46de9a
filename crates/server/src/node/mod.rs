//! The node: one replica, the thread that alone changes it, the thread that alone writes its journal, and the
//! [`Handle`] that all other parts hold.
//!
//! ```text
//! put, txn, ... -> queue -> committer (applies a group) -> storage thread (one append and flush) -> replies, watchers
//! range         -> the state as of the last durable revision, at once
//! ```
//!
//! Nothing leaves that is not durable. A read needs no place in the queue and never waits. Every write that was
//! acknowledged before the read began is durable, so the durable revision is what a linearizable read must show. A write
//! that is applied but not durable was acknowledged to no client. For the same reason reads stay right after a failed
//! flush, when the node takes no more writes.

pub use self::backup::Captured;
pub use self::error::{NodeError, StartError};
pub use self::handle::{Handle, REQUEST_TIMEOUT};
pub use self::start::{Options, PROGRESS_INTERVAL_DEFAULT, PROGRESS_INTERVAL_MIN, QUOTA_DEFAULT, load, start};
pub use self::state::{HashKv, NodeState, Status};
pub use self::sweeper::SweepPace;

mod admission;
pub mod alarm;
mod answer;
pub mod autocompact;
mod backlog;
mod backup;
mod calls;
mod committer;
mod engine;
mod error;
#[cfg(debug_assertions)]
mod faults;
mod handle;
mod hashes;
mod hold;
mod holds;
pub mod hub;
pub mod identity;
mod matcher;
pub mod observe;
mod past;
pub mod peering;
mod pipe;
mod queue;
mod recall;
pub(crate) mod sessions;
mod slow;
mod start;
mod state;
mod storage_thread;
mod sweeper;
#[cfg(test)]
mod tests;
pub mod watch;
