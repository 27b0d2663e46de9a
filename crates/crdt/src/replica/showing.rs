//! What clients are shown of a step: which changes at which of its revisions.

use smallvec::SmallVec;

use crate::command::event::Event;
use crate::store::history::ChangedKeys;
use crate::store::state::Position;
use crate::words::key::Key;
use crate::words::revision::Revision;

/// What one revision of a step did.
#[derive(Default)]
pub(crate) struct Shown {
    /// Which keys it changed.
    pub(crate) keys: ChangedKeys,
    /// What watchers are told.
    pub(crate) events: SmallVec<[Event; 1]>,
}

/// What a step did, revision by revision.
pub(crate) struct Showing {
    first: Revision,
    pub(crate) shown: SmallVec<[Shown; 2]>,
    /// The entry that is being shown, and where what it did begins.
    entry: usize,
    begin: usize,
}

impl Showing {
    /// Nothing shown yet; the first revision is that one.
    pub(crate) fn starting_at(first: Revision) -> Self {
        Self { first, shown: SmallVec::new(), entry: 0, begin: 0 }
    }

    /// Goes on with what an entry did.
    pub(crate) fn turn_to(&mut self, entry: usize) {
        if entry != self.entry {
            (self.entry, self.begin) = (entry, self.shown.len());
        }
    }

    /// The place of the next change of a key, which record `number` holds: at which revision after the first one, and the
    /// position. `behind` the end of what the key was, it stands at a later one.
    pub(crate) fn next(&self, number: u64, behind: bool) -> (u32, Position) {
        let after = self.shown.len().min(self.begin + usize::from(behind));
        let sub = self.shown.get(after).map_or(0, |shown| shown.keys.len()) as u32;
        (after as u32, Position { revision: self.first.after(after as u32), sub, number })
    }

    /// Takes note of what was done at the place that [`Self::next`] gave.
    pub(crate) fn push(&mut self, (after, at): (u32, Position), key: Key, event: Event) {
        if self.shown.len() <= after as usize {
            self.shown.push(Shown::default());
        }
        let shown = &mut self.shown[after as usize];
        shown.keys.push((at.sub, key));
        shown.events.push(event);
    }
}
