//! The peer protocol without the network: what two replicas tell each other, and when.
//!
//! A [`Session`] is one session with one peer. An [`Exchange`] is what all sessions of a replica share. A [`Message`] is
//! what they say. [`PeerStatus`] is what an operator sees of a peer. Values travel as [`Delta`]s of other values.
//!
//! Nothing here opens a connection or reads a clock. The server and the simulation move the messages.

pub(crate) mod delta;
pub(crate) mod entry_wire;
pub(crate) mod error;
pub(crate) mod exchange;
pub(crate) mod message;
pub(crate) mod session;
mod state;
pub(crate) mod status;
mod wire;

#[cfg(test)]
mod tests;

pub use delta::{Delta, DeltaError};
pub use entry_wire::{Encoded, Received, Unresolved, decode as decode_entry, encode as encode_entry};
pub use error::SyncError;
pub use exchange::{EncodeTally, Exchange, Tuning};
pub use message::{AckBatch, ENTRY_MAX, Hello, Message, PROTOCOL, Piece, Reason};
pub use session::{Session, SessionEffects, SessionEvent, Standing};
pub use status::{Equality, PeerStatus, SessionTally, Stage};
pub use wire::DecodeError;
