//! Snapshots of the state, for a member that begins with nothing or lacks what is not kept any more.
//!
//! A snapshot is what is settled (each key as it is below its window) and after it the entries of the log. The receiver
//! applies these as it applies all entries, so it ends with the same windows. While a snapshot is read its giver
//! settles nothing ([`crate::Input::Hold`]), so that the chunks fit together. A chunk that does not fit is refused, and
//! the receiver begins again.

mod chunk;
mod give;
mod install;
mod rebase;
mod recovery;

pub use chunk::{SettledKey, SnapshotChunk};
pub use install::{InstallError, Installed, Installer};
