//! Pauses while a backup is made, so that writes do not wait for a processor.

use std::cell::Cell;
use std::time::{Duration, Instant};

use eddy_crdt::{PastPlace, PastValues, Replica, Revision};

use super::order::Look;
use crate::node::NodeError;

/// How long a backup works at a time while somebody writes.
pub(super) const SLICE: Duration = Duration::from_micros(500);

/// How long it waits after that.
pub(super) const PAUSE: Duration = Duration::from_micros(500);

/// A replica whose backup is made in slices of work. While somebody writes, a pause follows each slice: work without an end
/// would hold a processor for as long as the system lets it, and a write would wait.
pub(super) struct Paced<'a, L, P> {
    replica: &'a L,
    slice: Duration,
    pause: P,
    /// When the present slice began.
    since: Cell<Instant>,
    /// The revision at the end of the last slice.
    seen: Cell<Option<Revision>>,
}

impl<'a, L: Look, P: Fn()> Paced<'a, L, P> {
    /// The same replica, with a pause after so much work.
    pub fn new(replica: &'a L, slice: Duration, pause: P) -> Self {
        Self { replica, slice, pause, since: Cell::new(Instant::now()), seen: Cell::new(None) }
    }
}

impl<L: Look, P: Fn()> Look for Paced<'_, L, P> {
    fn look<T>(&self, look: impl FnOnce(&Replica) -> T) -> T {
        let (found, revision) = self.replica.look(|replica| (look(replica), replica.revision()));
        if self.since.get().elapsed() >= self.slice {
            // Without writes nobody is held up, and the backup is done sooner.
            if self.seen.replace(Some(revision)).is_some_and(|seen| seen != revision) {
                (self.pause)();
            }
            self.since.set(Instant::now());
        }
        found
    }

    fn recall(&self, places: Vec<PastPlace>) -> Result<PastValues, NodeError> {
        self.replica.recall(places)
    }
}
