//! Where a replica comes from: a founders' list, its own records, or another replica's state.

pub(crate) mod genesis;
pub(crate) mod restore;
pub(crate) mod snapshot;

#[cfg(test)]
mod tests;
