//! Where a replica comes from: a founders' list, a backup, its own records, or another replica's state.

pub(crate) mod genesis;
pub(crate) mod refound;
pub(crate) mod restore;
pub(crate) mod snapshot;

#[cfg(test)]
mod tests;
