//! The ways in which a request can be malformed.

/// Why a request is malformed. [`super::status`] has the texts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Invalid {
    /// The request has no key.
    EmptyKey,
    /// A step of a transaction is empty, or of a kind that this build does not know.
    EmptyOp,
    /// `ignore_value` together with a value.
    ValueProvided,
    /// `ignore_lease` together with a lease.
    LeaseProvided,
    /// More steps or compares than `--max-txn-ops`.
    TooManyOps,
    /// A transaction would write a key twice.
    DuplicateKey,
    /// An unknown sort order or target.
    SortOption,
    /// A write larger than `--max-request-bytes`.
    TooLarge,
}
