//! Start-up: a replica from its records and its head.
//!
//! Whatever a journal can have lost or changed shows here as [`Damage`]: the records' own numbers and chain hashes,
//! the run of revisions, and at the end the hash of the state, which the head holds.

use bytes::Bytes;

use crate::clock::{Clock, Now};
use crate::digest::Digest;
use crate::entry::{Chain, Change, ChangeKind, CodecError, Head, Record};
use crate::history::{ChangedKeys, History};
use crate::id::{Dot, Identity};
use crate::index::{Index, KeyVersion};
use crate::key::{Key, Keyspace};
use crate::replica::{Replica, State};
use crate::revision::Revision;
use crate::system::{self, System, SystemKey, SystemValue};

/// Why a journal does not give a replica.
#[derive(Debug, thiserror::Error)]
pub enum Damage {
    /// The bytes of a record or of the head are none.
    #[error("record {number}: {source}")]
    Codec {
        /// Its number; the head's is zero.
        number: u64,
        /// What is wrong with it.
        source: CodecError,
    },
    /// A record says another number than it is stored under, or they do not grow.
    #[error("record {found} where one after {last} was expected")]
    Number {
        /// The number found.
        found: u64,
        /// The number of the record before.
        last: u64,
    },
    /// An entry does not continue its origin's chain.
    #[error("record {number}: entry {dot:?} does not follow the one before it (chain hash)")]
    Chain {
        /// The record.
        number: u64,
        /// The entry.
        dot: Dot,
    },
    /// A revision that no compaction hid is not there.
    #[error("revision {missing} is missing")]
    Revision {
        /// Which.
        missing: Revision,
    },
    /// The state that the records give is not the one that the head was stored with.
    #[error("the records give another state than was stored ({what})")]
    State {
        /// What differs.
        what: &'static str,
    },
    /// There are records but no head.
    #[error("the journal has records but no head")]
    NoHead,
}

/// Takes records one by one, in order.
#[derive(Default)]
pub struct Loader {
    index: Index,
    system: System,
    changed: Vec<(Revision, ChangedKeys)>,
    dead: Vec<u64>,
    last_number: u64,
    /// The last entry seen whole, and the chain hash up to it.
    last_whole: Option<(Dot, Chain)>,
}

impl Loader {
    /// A loader that has seen nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next record, as it was stored under that number.
    ///
    /// # Errors
    /// When it is damaged, or not the one that can come next.
    pub fn record(&mut self, number: u64, bytes: Bytes) -> Result<(), Damage> {
        let record = Record::decode(bytes).map_err(|source| Damage::Codec { number, source })?;
        if record.number != number || number <= self.last_number {
            return Err(Damage::Number { found: record.number, last: self.last_number });
        }
        self.last_number = number;
        self.check_chain(&record)?;
        let mut keys = ChangedKeys::new();
        for change in record.changes {
            match change.keyspace {
                Keyspace::Client => {
                    let revision =
                        record.revision.ok_or(Damage::Codec { number, source: CodecError::Field("revision") })?;
                    keys.push(self.push(number, revision, change)?);
                }
                Keyspace::System => self.system(number, change),
            }
        }
        if let Some(revision) = record.revision {
            self.changed.push((revision, keys));
        }
        Ok(())
    }

    fn check_chain(&mut self, record: &Record) -> Result<(), Damage> {
        let dot = record.head.dot;
        if record.trimmed || dot.seq == 0 {
            return Ok(());
        }
        if let Some((before, chain)) = self.last_whole
            && before.origin == dot.origin
            && before.seq + 1 == dot.seq
            && chain != record.head.previous
        {
            return Err(Damage::Chain { number: record.number, dot });
        }
        self.last_whole = Some((dot, record.head.previous.extend(&record.head, &record.changes)));
        Ok(())
    }

    fn push(&mut self, number: u64, revision: Revision, change: Change) -> Result<(u32, Key), Damage> {
        let key = match self.index.newest(&change.key) {
            Some((_, newest)) if (newest.revision, newest.sub) >= (revision, change.sub) => {
                return Err(Damage::Codec { number, source: CodecError::Field("order of changes") });
            }
            Some((key, _)) => key.clone(),
            // Copied: the record's bytes share the memory of a whole page of the journal.
            None => Bytes::copy_from_slice(&change.key),
        };
        let (value, lease) = match change.kind {
            ChangeKind::Put { value, lease } => (Some(Bytes::copy_from_slice(&value)), lease),
            ChangeKind::Delete | ChangeKind::Expire => (None, None),
        };
        let version = KeyVersion {
            revision,
            sub: change.sub,
            value,
            create_revision: change.create_revision,
            version: change.version,
            lease,
            incarnation: change.incarnation,
            number,
        };
        self.index.push(&key, version);
        Ok((change.sub, key))
    }

    fn system(&mut self, number: u64, change: Change) {
        let key = Bytes::copy_from_slice(&change.key);
        let old = match change.kind {
            ChangeKind::Put { value, .. } => self.system.insert(
                key,
                SystemValue {
                    value: Bytes::copy_from_slice(&value),
                    version: change.version,
                    incarnation: change.incarnation,
                    number,
                },
            ),
            ChangeKind::Delete | ChangeKind::Expire => {
                self.dead.push(number);
                self.system.remove(&key)
            }
        };
        self.dead.extend(old.map(|old| old.number));
    }

    /// The replica whose records these were, with leases counted anew from `now`. A store without records and head
    /// gives a new replica of that identity.
    ///
    /// # Errors
    /// When the records do not give the state that the head was stored with.
    pub fn finish(self, now: Now, head: Option<&Bytes>, identity: Identity) -> Result<Replica, Damage> {
        let Some(head) = head else {
            return if self.last_number == 0 { Ok(Replica::new(identity)) } else { Err(Damage::NoHead) };
        };
        let head = Head::decode(head).map_err(|source| Damage::Codec { number: 0, source })?;
        if self.last_number >= head.next_number {
            return Err(Damage::Number { found: self.last_number, last: head.next_number.saturating_sub(1) });
        }
        if let Some((dot, chain)) = self.last_whole
            && dot.seq == head.vector.get(dot.origin)
            && dot.origin == head.identity.origin()
            && chain != head.chain
        {
            return Err(Damage::Chain { number: self.last_number, dot });
        }
        let history = history(self.changed, &head)?;
        let mut state = State {
            index: self.index,
            system: self.system,
            leases: Default::default(),
            compacted: head.compacted,
            digest: Digest::default(),
            local_digest: Digest::default(),
            dead: self.dead,
        };
        let mut dead = std::mem::take(&mut state.dead);
        state.index.compact_all(head.compacted, |number| dead.push(number));
        // Old versions are not in the state's hash; that one is missing shows in how many there are.
        if head.versions.is_some_and(|versions| versions != state.index.versions()) {
            return Err(Damage::State { what: "number of versions" });
        }
        // Ascending: a put must be gone from disk before the delete that hides it.
        dead.sort_unstable();
        state.dead = dead;

        let mut replica = Replica::new(head.identity);
        derive(&mut state, &mut replica, now);
        if state.digest.get() != head.state_hash {
            return Err(Damage::State { what: "hash of the replicated keys" });
        }
        if state.local_digest.get() != head.local_hash {
            return Err(Damage::State { what: "hash of the replica's own keys" });
        }
        replica.state = state;
        replica.history = history;
        replica.revision = head.revision;
        replica.next_number = head.next_number;
        replica.vector = head.vector;
        replica.chain = head.chain;
        replica.clock = Clock::starting_at(head.stamp);
        replica.swept = head.compacted;
        Ok(replica)
    }
}

/// The history from the compacted revision on, without gaps.
fn history(changed: Vec<(Revision, ChangedKeys)>, head: &Head) -> Result<History, Damage> {
    let mut changed = changed.into_iter().skip_while(|(revision, _)| *revision < head.compacted).peekable();
    // The space's first revision is the empty store: nothing happened there.
    let oldest = Revision::new(head.compacted.get().max(Revision::first_of(head.identity.ordinal).get()));
    let first = match changed.peek() {
        Some((revision, _)) if *revision == oldest => oldest,
        _ => oldest.next(),
    };
    let mut history = History::starting_at(first);
    for (revision, keys) in changed {
        if revision != history.next() {
            return Err(Damage::Revision { missing: history.next() });
        }
        history.push(keys);
    }
    if history.next() != head.revision.next() {
        return Err(Damage::Revision { missing: history.next() });
    }
    Ok(history)
}

/// What is not stored because it follows from the keys: leases, alarms, hashes.
fn derive(state: &mut State, replica: &mut Replica, now: Now) {
    for (key, value) in &state.system {
        state.digest.add(Keyspace::System, key, &value.value, value.version, None);
        match SystemKey::decode(key) {
            Some(SystemKey::Lease(id)) => {
                state.leases.grant(now, id, system::lease_ttl(&value.value).unwrap_or_default());
            }
            Some(SystemKey::Alarm(alarm)) => {
                replica.alarms.insert(alarm);
            }
            None => {}
        }
    }
    for (key, versions) in state.index.iter() {
        let Some(newest) = versions.last() else { continue };
        let Some(value) = &newest.value else { continue };
        let local = crate::key::is_replica_local(key);
        let digest = if local { &mut state.local_digest } else { &mut state.digest };
        digest.add(Keyspace::Client, key, value, newest.version, newest.lease);
        state.leases.reattach(key, None, newest.lease);
    }
}
