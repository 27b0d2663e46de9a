//! Which keys changed at which revision, back to the last compaction: what watchers catch up from.
//!
//! Only keys are kept; what happened to them is looked up in the [`Index`].

use std::collections::VecDeque;

use smallvec::SmallVec;

use crate::command::event::{Commit, Event, EventKind};
use crate::store::index::{Index, KeyVersion};
use crate::words::key::Key;
use crate::words::revision::Revision;

/// The keys that one revision changed, in order, each with its `sub`.
pub type ChangedKeys = SmallVec<[(u32, Key); 1]>;

/// A run of adjacent revisions, ending at the newest.
#[derive(Debug)]
pub struct History {
    first: Revision,
    changed: VecDeque<ChangedKeys>,
}

impl History {
    /// An empty history whose next revision will be `next`.
    pub fn starting_at(next: Revision) -> Self {
        Self { first: next, changed: VecDeque::new() }
    }

    /// The next revision to come.
    pub fn next(&self) -> Revision {
        Revision::new(self.first.get() + self.changed.len() as i64)
    }

    /// Adds what the next revision changed.
    pub fn push(&mut self, keys: ChangedKeys) {
        self.changed.push_back(keys);
    }

    /// Takes the oldest revision away.
    pub fn pop(&mut self) -> Option<ChangedKeys> {
        let keys = self.changed.pop_front()?;
        self.first = self.first.next();
        if self.changed.len() < self.changed.capacity() / 8 {
            // What a burst took is given back.
            self.changed.shrink_to(2 * self.changed.len());
        }
        Some(keys)
    }

    /// The oldest revision's keys, left in place.
    pub fn peek(&self) -> Option<(Revision, &ChangedKeys)> {
        self.changed.front().map(|keys| (self.first, keys))
    }

    /// All changed keys, oldest first.
    pub fn into_keys(self) -> impl Iterator<Item = ChangedKeys> {
        self.changed.into_iter()
    }

    /// Whole commits from revision `from` to `to`, both included, oldest first, until at least `limit` events are
    /// together.
    pub fn commits(&self, index: &Index, from: Revision, to: Revision, limit: usize) -> Vec<Commit> {
        let skip = usize::try_from(from.get() - self.first.get()).unwrap_or(0);
        let mut commits = Vec::new();
        let mut events = 0;
        for (place, keys) in self.changed.iter().enumerate().skip(skip) {
            let revision = Revision::new(self.first.get() + place as i64);
            if revision > to || events >= limit {
                break;
            }
            let commit = commit(index, revision, keys);
            events += commit.events.len();
            commits.push(commit);
        }
        commits
    }
}

fn commit(index: &Index, revision: Revision, keys: &ChangedKeys) -> Commit {
    let events = keys.iter().filter_map(|(sub, key)| {
        // A version that a compaction has dropped is no event any more.
        let (prev, version) = index.at(key, revision, *sub)?;
        Some(event(key, prev, version))
    });
    Commit { revision, events: events.collect() }
}

/// The event that tells watchers of a version; `prev` is what was visible at the revision before.
pub fn event(key: &Key, prev: Option<&KeyVersion>, version: &KeyVersion) -> Event {
    let prev = prev.and_then(|prev| prev.to_key_value(key));
    if let Some(kv) = version.to_key_value(key) {
        return Event { kind: EventKind::Put(kv), prev };
    }
    Event { kind: EventKind::Delete { key: key.clone(), revision: version.revision }, prev }
}
