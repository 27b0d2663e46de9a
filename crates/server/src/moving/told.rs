//! What an operator is told.

/// How it ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ended {
    /// The revision at which it stands.
    pub revision: i64,
    /// How many keys it has.
    pub keys: i64,
    /// How many leases it has.
    pub leases: usize,
}

/// Where an import is told how it goes.
pub type Tell<'a> = &'a mut dyn FnMut(String);
