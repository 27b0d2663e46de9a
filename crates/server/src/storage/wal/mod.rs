//! The write-ahead log: segments with consecutive numbers, each a header and then frames.
//!
//! **What one acknowledgement means.** A group is one frame, written with one write and made durable with one `fdatasync`
//! before the next frame is written. Space is reserved, and the new length synced, before a frame needs it.
//!
//! **How loss is told from a torn tail.** After a power cut the last frame may be there in parts: it was never acknowledged,
//! and nothing lies behind it. So a frame that does not check out is damage where another one follows, or where it is in a
//! segment that another one continues. A segment ends with a seal, which is durable before the next one is used; the next
//! one's header says after which write it begins. An orderly stop notes the last write elsewhere (see `current`).
//! One loss cannot be told from a torn tail: the very last write before a crash, lost by a disk that said it was durable.
//! A cluster's other members tell it then.

mod delta;
mod frame;
mod log;
mod segment;
mod window;

pub(super) use self::frame::Content;
pub(super) use self::log::{Appended, Draw, Logs, Recovered, Wal, check};
pub(super) use self::segment::Options;
pub(super) use self::window::Window;
