//! What can be wrong with a journal.

use crate::entry::CodecError;
use crate::merge::rules::UnknownRules;
use crate::words::id::Dot;
use crate::words::revision::Revision;

/// Why a journal does not give a replica.
#[derive(Debug, thiserror::Error)]
pub enum Damage {
    /// The bytes of the head are none.
    #[error("the head: {0}")]
    Head(CodecError),
    /// The bytes of a record are none.
    #[error("record {number}: {source}")]
    Codec {
        /// Its number.
        number: u64,
        /// What is wrong with it.
        source: CodecError,
    },
    /// A record says another number than it is stored under, or they do not grow.
    #[error("record {found} where one after {last} was expected")]
    Number {
        /// The number found.
        found: u64,
        /// The number of the record before.
        last: u64,
    },
    /// An entry does not continue its origin's chain.
    #[error("record {number}: entry {dot:?} does not follow the one before it (chain hash)")]
    Chain {
        /// The record.
        number: u64,
        /// The entry.
        dot: Dot,
    },
    /// A revision that no compaction hid is not there.
    #[error("revision {missing} is missing")]
    Revision {
        /// Which.
        missing: Revision,
    },
    /// The state that the records give is not the one that the head was stored with.
    #[error("the records give another state than was stored ({what})")]
    State {
        /// What differs.
        what: &'static str,
    },
    /// The rules by which its cluster merges are not known to this build.
    #[error(transparent)]
    Rules(#[from] UnknownRules),
    /// A record that was read before could not be read a second time, or is another one now.
    #[error("record {number} cannot be read again")]
    Again {
        /// Its number.
        number: u64,
    },
    /// There are records but no head.
    #[error("the journal has records but no head")]
    NoHead,
}
