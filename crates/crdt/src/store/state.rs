//! What transactions and remote entries change: the keys, and what is derived from them.

use std::sync::Arc;

use crate::command::event::Event;
use crate::merge::rules::Rules;
use crate::merge::window::Live;
use crate::merge::windows::Windows;
use crate::replica::sweep::Dead;
use crate::store::digest::Digest;
use crate::store::history;
use crate::store::index::{Incarnation, Index, KeyVersion};
use crate::store::lease::Leases;
use crate::store::system::{System, SystemValue};
use crate::words::clock::Now;
use crate::words::key::{self, Key, Keyspace};
use crate::words::revision::Revision;

/// What a transaction, or an entry of another replica, may change.
pub struct State {
    /// What the clocks say, for what is counted from it.
    pub now: Now,
    /// All client keys.
    pub index: Index,
    /// All system keys.
    pub system: System,
    /// All leases.
    pub leases: Leases,
    /// Revision of the last compaction; -1 for none.
    pub compacted: Revision,
    /// Hash over what is replicated.
    pub digest: Digest,
    /// Hash over what stays on this replica.
    pub local_digest: Digest,
    /// Records that lost a change since the last sweep.
    pub dead: Dead,
    /// Whether there are other members: only then are there windows.
    pub windowed: bool,
    /// The unsettled versions.
    pub windows: Windows,
    /// How concurrent versions are merged.
    pub rules: Arc<Rules>,
    /// Whether there are or were other members: revisions outside of the present space may be theirs.
    pub shared: bool,
}

impl State {
    /// Nothing at all.
    pub fn empty() -> Self {
        Self {
            now: Now::default(),
            index: Index::default(),
            system: System::new(),
            leases: Leases::default(),
            compacted: Revision::new(-1),
            digest: Digest::default(),
            local_digest: Digest::default(),
            dead: Dead::default(),
            windowed: false,
            windows: Windows::default(),
            rules: Arc::default(),
            shared: false,
        }
    }

    /// Opens the window of a client key on what it is now.
    pub fn open_client(&mut self, key: &Key) {
        let Self { windows, index, .. } = self;
        windows.open(Keyspace::Client, key, || {
            let newest = index.newest(key).map(|(_, newest)| newest).filter(|newest| newest.value.is_some());
            (newest.and_then(KeyVersion::live), newest.map_or(0, |newest| newest.number))
        });
    }

    /// Opens the window of a system key on what it is now.
    pub fn open_system(&mut self, key: &Key) {
        let Self { windows, system, .. } = self;
        windows.open(Keyspace::System, key, || match system.get(key) {
            Some(value) => (Some(live_of(value)), value.number),
            None => (None, 0),
        });
    }

    /// What a key is now, and in which record that stands.
    pub fn live(&self, keyspace: Keyspace, key: &[u8]) -> (Option<Live>, u64) {
        let (live, number) = match keyspace {
            Keyspace::Client => {
                let newest = self.index.newest(key).map(|(_, newest)| newest);
                (newest.and_then(KeyVersion::live), newest.map_or(0, |newest| newest.number))
            }
            Keyspace::System => {
                let value = self.system.get(key);
                (value.map(live_of), value.map_or(0, |value| value.number))
            }
        };
        let number = if live.is_some() { number } else { 0 };
        (live, number)
    }

    /// Puts a tombstone on a client key that is there. Tells the key as it is stored, the event, and the life that ended.
    pub fn bury(&mut self, key: &[u8], revision: Revision, sub: u32, number: u64) -> (Key, Event, Incarnation) {
        let Self { index, digest, local_digest, leases, now, .. } = self;
        let digest = if key::is_replica_local(key) { local_digest } else { digest };
        let tombstone = KeyVersion {
            revision,
            sub,
            value: None,
            create_revision: Revision::default(),
            version: 0,
            lease: None,
            incarnation: Incarnation::NONE,
            number,
        };
        index.write(key, tombstone, |key, versions, tombstone| {
            let newest = versions.last();
            if let Some(before) = newest
                && let Some(old) = &before.value
            {
                digest.remove(Keyspace::Client, key, old, before.version, before.lease);
                leases.reattach(*now, key, before.lease, None);
                tombstone.incarnation = before.incarnation;
            }
            (key.clone(), history::event(key, told(versions, revision), tombstone), tombstone.incarnation)
        })
    }

    /// Makes a client key what a merge or another replica says. Tells the key as it is stored, the event, and the create
    /// revision.
    pub fn set(
        &mut self,
        key: &[u8],
        live: &Live,
        revision: Revision,
        sub: u32,
        number: u64,
    ) -> (Key, Event, Revision) {
        let Self { index, digest, leases, now, .. } = self;
        let version = KeyVersion {
            revision,
            sub,
            value: Some(live.value.clone()),
            create_revision: revision,
            version: live.version,
            lease: live.lease,
            incarnation: live.incarnation,
            number,
        };
        index.write(key, version, |key, versions, version| {
            let before = versions.last().filter(|before| before.value.is_some());
            if let Some(before) = before
                && let Some(old) = &before.value
            {
                digest.remove(Keyspace::Client, key, old, before.version, before.lease);
                version.create_revision = before.create_revision;
            }
            digest.add(Keyspace::Client, key, &live.value, live.version, live.lease);
            leases.reattach(*now, key, before.and_then(|before| before.lease), live.lease);
            (key.clone(), history::event(key, told(versions, revision), version), version.create_revision)
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
}

/// What an event at that revision says was there before: the newest version that an earlier revision made.
fn told(versions: &[KeyVersion], revision: Revision) -> Option<&KeyVersion> {
    match versions.last() {
        Some(newest) if newest.revision == revision => crate::store::index::newest_at(versions, revision.prev()),
        newest => newest,
    }
}

fn live_of(value: &SystemValue) -> Live {
    Live { value: value.value.clone(), lease: None, version: value.version, incarnation: value.incarnation }
}
