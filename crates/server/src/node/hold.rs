//! Who walks over versions in slices keeps those that it needs from being swept meanwhile.
//!
//! A sweep of a compaction drops nothing that is visible at its revision or later. So a walk holds back sweeps of compactions
//! above what it reads, and no others: as walks end, each compaction is swept some time, however many walks there are.

use std::sync::Arc;

use eddy_crdt::Revision;

use super::engine::Engine;

/// Keeps sweeps of compactions above a revision away while it lives.
pub(super) struct Hold {
    engine: Arc<Engine>,
    above: Option<Revision>,
}

impl Hold {
    /// To be made under the lock under which the walk looks at the replica first.
    pub(super) fn new(engine: &Arc<Engine>, above: Option<Revision>) -> Self {
        engine.holds.begin(above);
        Self { engine: Arc::clone(engine), above }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.engine.holds.end(self.above);
        // The committer may sleep until there is something to sweep.
        self.engine.queue.poke();
    }
}
