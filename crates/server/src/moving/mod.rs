//! Moving in, and out: a copy of another etcd that follows it until it is told to stop.
//!
//! [`import`] makes a data dir of eddy that follows an etcd, [`export`] has an etcd follow an eddy. Both begin with a backup of
//! one revision, and then do each later revision again, in order. As each is one transaction on equal keys, it gets the
//! same number on both sides, and so do the versions of its keys.
//!
//! `remote` is an etcd as its client sees it, `steps` its watch as whole revisions; `compare` reads both sides and finds the
//! first difference; `copy` is the store that an import writes to, and `follow`
//! keeps it up.

pub mod compare;
mod copy;
mod error;
pub mod export;
mod follow;
pub mod import;
mod lag;
mod remote;
mod steps;
mod told;

pub use error::MoveError;
pub use remote::{Remote, User};
pub use told::{Ended, Tell};
