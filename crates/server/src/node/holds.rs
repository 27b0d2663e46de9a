//! Which compactions may be swept while walks over versions are made.

use std::collections::BTreeMap;

use eddy_crdt::Revision;
use parking_lot::Mutex;

/// The walks that are made, by the revision above which no compaction may be swept. `None`: no compaction at all.
#[derive(Default)]
pub(super) struct Holds(Mutex<BTreeMap<Option<Revision>, usize>>);

impl Holds {
    /// A walk begins.
    pub(super) fn begin(&self, above: Option<Revision>) {
        *self.0.lock().entry(above).or_default() += 1;
    }

    /// One of those that began so has ended.
    pub(super) fn end(&self, above: Option<Revision>) {
        let mut holds = self.0.lock();
        if let Some(walks) = holds.get_mut(&above) {
            *walks -= 1;
            if *walks == 0 {
                holds.remove(&above);
            }
        }
    }

    /// Whether a compaction may be swept.
    pub(super) fn allow(&self, compacted: Option<Revision>) -> bool {
        self.0.lock().first_key_value().is_none_or(|(lowest, _)| compacted <= *lowest)
    }
}
