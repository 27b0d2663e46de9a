//! What is known of each origin of entries.

use std::sync::Arc;

use crate::entry::Chain;
use crate::words::vector::VersionVector;

/// What is known of an origin, up to its newest entry here, and where its part of the log begins.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct OriginState {
    /// The chain hash up to its newest entry.
    pub chain: Chain,
    /// All that it had applied then besides its own entries.
    pub deps: Arc<VersionVector>,
    /// The chain hash up to the entry before its first one in the log.
    pub base_chain: Chain,
    /// All that it had applied then besides its own entries.
    pub base_deps: Arc<VersionVector>,
}

impl OriginState {
    /// Its log begins after its newest entry.
    pub fn rebase(&mut self) {
        self.base_chain = self.chain;
        self.base_deps = Arc::clone(&self.deps);
    }
}
