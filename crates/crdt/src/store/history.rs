//! Which keys changed at which revision, back to the last compaction: what watchers catch up from.
//!
//! Only keys are kept; what happened to them is looked up in the [`Index`].

use std::collections::VecDeque;

use smallvec::SmallVec;

use crate::command::event::{Commit, Event, EventKind};
use crate::store::index::{self, Index, KeyVersion};
use crate::store::past::{Lately, Past, PastValues};
use crate::words::key::Key;
use crate::words::revision::Revision;

/// The keys that one revision changed, in order, each with its `sub`.
pub type ChangedKeys = SmallVec<[(u32, Key); 1]>;

/// Bytes of replaced values that are asked for at once: they take memory until they are told.
const MISSING_BYTES: usize = 1 << 20;

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

    /// What `asked` wants of whole commits, oldest first, and the revision up to which that is all. Ends before the first
    /// commit of which `past` lacks something; what those behind it lack is noted there, too.
    pub fn commits(&self, index: &Index, asked: &EventsAsked<'_>, past: &PastValues) -> (Vec<Commit>, Revision) {
        let (mut commits, mut reached) = (Vec::new(), asked.from.prev());
        let mut looked = 0;
        for (revision, keys) in self.from(asked.from).take_while(|(revision, _)| *revision <= asked.to) {
            if looked >= asked.limit || past.missing_bytes() >= MISSING_BYTES {
                return (commits, reached);
            }
            looked += keys.len();
            let commit = commit(index, revision, keys, asked.concerns, past);
            if past.is_short() {
                continue;
            }
            reached = revision;
            if !commit.events.is_empty() {
                commits.push(commit);
            }
        }
        (commits, if past.is_short() { reached } else { asked.to })
    }

    /// What the revisions from one on changed.
    pub fn from(&self, from: Revision) -> impl Iterator<Item = (Revision, &ChangedKeys)> {
        let skip = usize::try_from(from.get() - self.first.get()).unwrap_or(0);
        let revision = |place: usize| Revision::new(self.first.get() + place as i64);
        self.changed
            .range(skip.min(self.changed.len())..)
            .enumerate()
            .map(move |(at, keys)| (revision(skip + at), keys))
    }
}

/// Which events are asked for.
#[derive(Clone, Copy)]
pub struct EventsAsked<'a> {
    /// From this revision on.
    pub from: Revision,
    /// Up to this one.
    pub to: Revision,
    /// No further commit is looked at when so many changes were.
    pub limit: usize,
    /// Of which keys.
    pub concerns: &'a dyn Fn(&Key) -> bool,
}

fn commit(
    index: &Index,
    revision: Revision,
    keys: &ChangedKeys,
    concerns: &dyn Fn(&Key) -> bool,
    past: &PastValues,
) -> Commit {
    let events = keys.iter().filter(|(_, key)| concerns(key)).filter_map(|(sub, key)| {
        // A version that a compaction has dropped is no event any more.
        let (prev, version) = index.at(key, revision, *sub)?;
        Some(event(key, prev, version, index.past(past)))
    });
    Commit { revision, events: events.collect() }
}

/// The event that tells watchers of a version; `prev` is what was visible at the revision before.
pub fn event(key: &Key, prev: Option<&KeyVersion>, version: &KeyVersion, past: Past<'_>) -> Event {
    let prev = prev.and_then(|prev| prev.to_key_value(key, past));
    if let Some(kv) = version.to_key_value(key, past) {
        return Event { kind: EventKind::Put(kv), prev };
    }
    Event { kind: EventKind::Delete { key: key.clone(), revision: version.revision }, prev }
}

/// The event of a version that is about to be added to the others of its key.
pub fn coming(key: &Key, versions: &[KeyVersion], version: &KeyVersion, lately: &Lately) -> Event {
    event(key, index::shown_before(versions, version.revision), version, Past { lately, read: None })
}
