//! No sweep while somebody walks over all versions.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::engine::Engine;

/// Keeps sweeps away while it lives.
pub(super) struct Hold(Arc<Engine>);

impl Hold {
    /// Tells also how many there were before.
    pub(super) fn new(engine: &Arc<Engine>) -> (Self, usize) {
        let before = engine.holds.fetch_add(1, Ordering::AcqRel);
        (Self(Arc::clone(engine)), before)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.holds.fetch_sub(1, Ordering::AcqRel);
        // The committer may sleep until there is something to sweep.
        self.0.queue.poke();
    }
}
