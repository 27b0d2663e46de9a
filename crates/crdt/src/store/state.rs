//! The state: all keys with their history, and what is derived from them.

use std::collections::{BTreeSet, VecDeque};

use bytes::Bytes;

use crate::command::event::Event;
use crate::command::op::Alarm;
use crate::store::digest::Digest;
use crate::store::history::{self, ChangedKeys, History};
use crate::store::index::{Content, Index, KeyVersion};
use crate::store::lease::Leases;
use crate::store::past::{Given, Held, PastValues};
use crate::store::read::{self, View};
use crate::store::sweep::Dead;
use crate::store::system::{System, SystemValue};
use crate::words::clock::Now;
use crate::words::key::{Key, Keyspace, LocalKeys};
use crate::words::revision::Revision;
use crate::words::value::{Incarnation, Live};

/// All keys with their history, and what is derived from them.
pub struct State {
    /// All client keys.
    pub index: Index,
    /// Which keys changed at which revision of the present space.
    pub history: History,
    /// What changed in spaces that a leap has left, still to be swept.
    pub retired: VecDeque<ChangedKeys>,
    /// The newest revision.
    pub revision: Revision,
    /// Revision of the last compaction.
    pub compacted: Option<Revision>,
    /// How far the last compaction has been swept.
    pub swept: Option<Revision>,
    /// Keys that were last written before this revision show it as create and mod revision.
    pub restamped: Option<Revision>,
    /// What the next transaction reads of replaced values.
    pub given: Given,
    /// All system keys.
    pub system: System,
    /// All leases.
    pub leases: Leases,
    /// All alarms that are raised.
    pub alarms: BTreeSet<Alarm>,
    /// Hash over what is replicated.
    pub digest: Digest,
    /// Hash over what stays on this replica.
    pub local_digest: Digest,
    /// Records that lost a change since the last sweep.
    pub dead: Dead,
    /// Whether there are or were other members: revisions outside of the present space may be theirs.
    pub shared: bool,
    /// The client keys that stay on this replica.
    pub local: LocalKeys,
}

/// Where in the history, and in which record, a change of a client key stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Position {
    /// The revision.
    pub revision: Revision,
    /// The position within the revision, counted from 0.
    pub sub: u32,
    /// Journal number of the record.
    pub number: u64,
}

/// What a key holds, and in which record that stands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Recorded {
    /// What it holds.
    pub live: Live,
    /// Journal number of the record.
    pub number: u64,
}

/// A client key that was deleted.
pub struct Buried {
    /// The key as it is stored.
    pub key: Key,
    /// What watchers are told.
    pub event: Event,
    /// What it was.
    pub before: Recorded,
}

impl State {
    /// No keys, at the first revision of that ordinal.
    pub fn empty(revision: Revision) -> Self {
        Self {
            index: Index::default(),
            history: History::starting_at(revision.next()),
            retired: VecDeque::new(),
            revision,
            compacted: None,
            swept: None,
            given: Given::default(),
            restamped: None,
            system: System::new(),
            leases: Leases::default(),
            alarms: BTreeSet::new(),
            digest: Digest::default(),
            local_digest: Digest::default(),
            dead: Dead::default(),
            shared: false,
            local: LocalKeys::default(),
        }
    }

    /// See [`View::is_foreign`].
    pub fn is_foreign(&self, at: Revision, current: Revision) -> bool {
        read::is_foreign(self.shared, at, current)
    }

    /// The store as of that revision. A compaction above it is not durable yet, and must not have been swept. A reader
    /// may still read at the newest revision that is durable.
    pub fn view<'a>(&'a self, current: Revision, past: &'a PastValues) -> View<'a> {
        debug_assert!(self.swept <= Some(current), "what that revision shows may be gone");
        let compacted = self.compacted.map(|compacted| compacted.min(current));
        View { index: &self.index, current, compacted, restamped: self.restamped, shared: self.shared, past }
    }

    /// In which record what a key is now stands, if it is there.
    pub fn record_of(&self, keyspace: Keyspace, key: &[u8]) -> Option<u64> {
        match keyspace {
            Keyspace::Client => Some(self.index.newest(key)?.1).filter(|newest| newest.is_live()).map(|v| v.number),
            Keyspace::System => self.system.get(key).map(|value| value.number),
        }
    }

    /// What a key is now, and in which record that stands.
    pub fn recorded(&self, keyspace: Keyspace, key: &[u8]) -> Option<Recorded> {
        match keyspace {
            Keyspace::Client => self.index.newest(key)?.1.recorded(),
            Keyspace::System => self.system.get(key).map(SystemValue::recorded),
        }
    }

    /// Deletes a client key; `None` when it is not there.
    pub fn bury(&mut self, now: Now, key: &[u8], at: Position) -> Option<Buried> {
        let Self { index, digest, local_digest, leases, local, .. } = self;
        let digest = if local.contains(key) { local_digest } else { digest };
        index.append(key, |key, versions, lately| {
            let before = versions.last()?.recorded()?;
            let Live { value, lease, version, incarnation } = &before.live;
            digest.remove(Keyspace::Client, key, value, *version, *lease);
            leases.reattach(now, key, *lease, None);
            let tombstone = at.version(*incarnation, None);
            let event = history::coming(key, versions, &tombstone, lately);
            Some((tombstone, Buried { key: key.clone(), event, before }))
        })
    }

    /// Makes a client key what a merge or another replica says. Tells the key as it is stored, the event, and the create
    /// revision.
    pub fn set(&mut self, now: Now, key: &[u8], live: &Live, at: Position) -> (Key, Event, Revision) {
        let Self { index, digest, leases, .. } = self;
        index.write(key, |key, versions, lately| {
            let before = versions.last().and_then(|before| before.content.as_ref());
            let mut create_revision = at.revision;
            if let Some(before) = before {
                digest.remove(Keyspace::Client, key, before.value.here(), before.version, before.lease);
                create_revision = before.create_revision;
            }
            digest.add(Keyspace::Client, key, &live.value, live.version, live.lease);
            leases.reattach(now, key, before.and_then(|before| before.lease), live.lease);
            let content = Content {
                value: Held::Here(live.value.clone()),
                create_revision,
                version: live.version,
                lease: live.lease,
            };
            let version = at.version(live.incarnation, Some(content));
            let event = history::coming(key, versions, &version, lately);
            (version, (key.clone(), event, create_revision))
        })
    }

    /// Makes a system key what a merge or another replica says.
    pub fn set_system(&mut self, key: &Key, live: Option<&Live>, number: u64) {
        let old = match live {
            Some(live) => {
                self.digest.add(Keyspace::System, key, &live.value, live.version, None);
                let value = SystemValue {
                    value: live.value.clone(),
                    version: live.version,
                    incarnation: live.incarnation,
                    number,
                };
                self.system.insert(key.clone(), value)
            }
            None => {
                // Of a deleted system key nothing need stay: neither its last value nor the record of the delete.
                self.dead.grave(number);
                self.system.remove(key)
            }
        };
        if let Some(old) = old {
            self.dead.change(old.number);
            self.digest.remove(Keyspace::System, key, &old.value, old.version, None);
        }
    }

    /// Takes note of what the next revision changed.
    pub fn push(&mut self, keys: ChangedKeys) {
        self.revision = self.revision.next();
        self.history.push(keys);
    }

    /// Drops what a compaction at `at` hides, of all keys at once.
    pub fn compact_all(&mut self, at: Revision) {
        let dead = &mut self.dead;
        self.index.compact_all(at, |number, tombstone| dead.add(number, tombstone));
    }

    /// Goes on at the first revision of another space, with all before it compacted.
    pub fn leap(&mut self, first: Revision) {
        let history = std::mem::replace(&mut self.history, History::starting_at(first.next()));
        self.retired.extend(history.into_keys());
        self.revision = first;
        self.compacted = Some(first);
    }

    /// Shows every key as created and written at the first revision of the present space.
    pub fn restamp(&mut self) {
        let first = Revision::first_in(self.revision.space());
        self.compact_all(first);
        self.index.restamp(first);
        self.retired.clear();
        self.restamped = Some(first);
        self.swept = self.compacted;
    }

    /// Drops a slice of what the last compaction hid, at most about `max_changes` of it. Tells whether nothing is left.
    pub fn sweep(&mut self, max_changes: usize) -> bool {
        let Some(at) = self.compacted else { return true };
        let mut budget = max_changes;
        while budget > 0 {
            let retired = self.retired.pop_front();
            let keys = match self.history.peek() {
                _ if retired.is_some() => retired,
                Some((revision, _)) if revision < at => self.history.pop(),
                // What changed at the compacted revision itself stays in the history: a watch may start there.
                Some((revision, keys)) if revision == at && self.swept < Some(at) => {
                    self.swept = Some(at);
                    Some(keys.clone())
                }
                _ => None,
            };
            let Some(keys) = keys else {
                self.swept = Some(at);
                return true;
            };
            budget = budget.saturating_sub(keys.len());
            let dead = &mut self.dead;
            for (_, key) in &keys {
                self.index.compact(key, at, &mut |number, tombstone| dead.add(number, tombstone));
            }
        }
        false
    }
}

impl Position {
    /// The version of a key that stands there.
    pub fn version(self, incarnation: Incarnation, content: Option<Content>) -> KeyVersion {
        KeyVersion { revision: self.revision, sub: self.sub, number: self.number, incarnation, content }
    }
}

impl KeyVersion {
    /// What the key holds with this version, if it is there, and in which record.
    pub fn recorded(&self) -> Option<Recorded> {
        let Content { value, version, lease, .. } = self.content.as_ref()?;
        let live =
            Live { value: value.here().clone(), lease: *lease, version: *version, incarnation: self.incarnation };
        Some(Recorded { live, number: self.number })
    }
}

impl SystemValue {
    /// What the key holds, and in which record.
    pub fn recorded(&self) -> Recorded {
        let Self { value, version, incarnation, number } = self;
        let live = Live { value: Bytes::clone(value), lease: None, version: *version, incarnation: *incarnation };
        Recorded { live, number: *number }
    }
}
