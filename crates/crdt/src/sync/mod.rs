//! The peer protocol without the network: what two replicas tell each other, and when.
//!
//! - [`message`]: what they say, with its codec; [`error`]: what can be wrong with it;
//! - [`delta`], [`entry_wire`]: values as changes of other values, entries as they travel;
//! - [`exchange`]: what all sessions of a replica share;
//! - [`session`]: one session with one peer; [`report`]: what an operator is shown of it.
//!
//! Nothing here opens a connection or reads a clock. The server and the simulation move the messages.

pub mod delta;
pub mod entry_wire;
pub mod error;
pub mod exchange;
pub mod message;
pub mod report;
pub mod session;
mod state;
mod wire;

#[cfg(test)]
mod tests;

pub use error::{DecodeError, SyncError};
pub use exchange::{EncodeTally, Exchange, Tuning};
pub use message::{Hello, Message, Reason};
pub use report::{Equality, PeerReport, SessionTally, Stage};
pub use session::{Session, SessionEvent, Standing, Turn};
