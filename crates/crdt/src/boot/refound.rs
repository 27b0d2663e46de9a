//! A cluster founded from a backup: the first entry of its members, and then the keys as the backup has them.
//!
//! All members that are founded from one backup begin with the same state, so they need no coordination. The keys count as
//! settled by the first entry. Each keeps the revisions that it had, and the member goes on in a space of its own above
//! them. What clients saw after the backup was made is there no more. So everything before that space is compacted, and
//! clients list again.
//!
//! A founder alone may also go on where the keys come from, if nobody counts on there: see [`Refounder::finish_at`].

use bytes::Bytes;

use crate::boot::genesis::{DOT, Genesis};
use crate::command::auth::{Permission, ROOT};
use crate::command::op::KeyValue;
use crate::command::reply::Refusal;
use crate::entry::change::is_version_number;
use crate::entry::{Applied, Bases, Change, ChangeKind, Notes, Record};
use crate::replica::Replica;
use crate::replica::spaces::Stride;
use crate::replica::turn::Turn;
use crate::store::auth::{AuthKey, AuthValue, EnabledValue, GrantValue, PermissionValue, RoleValue, UserValue};
use crate::store::lease::{MAX_TTL_S, MIN_TTL_S};
use crate::store::system::{SystemKey, lease_value};
use crate::words::clock::{Now, Stamp};
use crate::words::id::{Identity, LeaseId};
use crate::words::key::{Key, Keyspace};
use crate::words::revision::{Revision, SPACES};
use crate::words::value::{Incarnation, Live};

/// Keys in a record, and about how many bytes of them.
const KEYS_PER_RECORD: usize = 256;
const BYTES_PER_RECORD: usize = 256 << 10;

/// Why no cluster can be founded from a backup.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RefoundError {
    /// The founder is not on the list.
    #[error("this member is not among the founders")]
    NotAFounder,
    /// A key has numbers that no store gives.
    #[error("a key has impossible revisions or an impossible version")]
    Impossible,
    /// A key comes before one that was written later.
    #[error("the keys do not come in the order of their revisions")]
    Order,
    /// There is no revision space above those of the backup.
    #[error("no revision space is left above the revisions in it")]
    SpacesExhausted,
    /// The revisions are those of another member.
    #[error("its revisions lie in space {0}, which is not one of a first member")]
    ForeignSpace(u64),
}

/// Takes leases and keys, and gives the records of a journal.
pub struct Refounder {
    replica: Replica,
    turn: Turn,
    owner: Identity,
    /// Changes of the next record, all of one revision.
    changes: Vec<Change>,
    revision: Option<Revision>,
    bytes: usize,
    /// The position behind the last one.
    sub: u32,
}

/// What begins the incarnations of all keys: the first entry.
const INCARNATION: Incarnation = Incarnation { stamp: Stamp::new(0), dot: DOT };

impl Refounder {
    /// A founder of that cluster. `identity` must have a birth that was never used.
    ///
    /// # Errors
    /// When the founder is not on the list.
    pub fn new(identity: Identity, genesis: &Genesis) -> Result<Self, RefoundError> {
        let mut turn = Turn::new(Now::default());
        let replica = Replica::begin(&mut turn, identity, genesis).ok_or(RefoundError::NotAFounder)?;
        // The same at all members, so that their states are equal. Another one takes a lease over when it renews it.
        let first = genesis.ranked().first().map_or(identity.replica, |founder| founder.id);
        let owner = Identity { replica: first, ..identity };
        Ok(Self { replica, turn, owner, changes: vec![], revision: None, bytes: 0, sub: 0 })
    }

    /// Takes a lease, before all keys.
    pub fn lease(&mut self, id: LeaseId, ttl_s: i64) {
        let value = lease_value(ttl_s.clamp(MIN_TTL_S, MAX_TTL_S), self.owner.replica);
        self.system(SystemKey::Lease(id), value);
    }

    /// Takes a role with what it may do, before all keys.
    pub fn role(&mut self, name: String, permissions: Vec<Permission>) {
        for Permission { range, right } in permissions {
            let key = AuthKey::Permission { role: name.clone(), range };
            self.system(SystemKey::Auth(key), PermissionValue::new(1, Some(right)).write());
        }
        self.system(SystemKey::Auth(AuthKey::Role(name)), RoleValue { life: 1, gone: false }.write());
    }

    /// Takes a user with its roles, before all keys. One without the hash of a password never has one.
    pub fn user(&mut self, name: String, password: Option<Bytes>, roles: Vec<String>) {
        for role in roles {
            // Of the role root the deletions are counted.
            let role_life = u64::from(role != ROOT);
            let key = AuthKey::Grant { user: name.clone(), role };
            self.system(SystemKey::Auth(key), GrantValue { user_life: 1, role_life, revoked: false }.write());
        }
        let no_password = password.is_none();
        let value = UserValue { life: 1, gone: false, password: password.unwrap_or_default(), no_password };
        self.system(SystemKey::Auth(AuthKey::User(name)), value.write());
    }

    /// From its start on every call needs a user.
    pub fn enable_auth(&mut self) {
        self.system(SystemKey::Auth(AuthKey::Enabled), EnabledValue { enabled: true }.write());
    }

    fn system(&mut self, key: SystemKey, value: Bytes) {
        let key = key.encode();
        let live = Live { value, lease: None, version: 1, incarnation: INCARNATION };
        self.make_room(None, key.len() + live.value.len());
        self.replica.state.set_system(&key, Some(&live), self.replica.journal.next_number);
        self.add(Keyspace::System, key, &live, None);
    }

    /// Takes a key, with its position within the revision at which it was last written. Keys come in the order of these
    /// revisions and positions, each once.
    ///
    /// # Errors
    /// When there can be no such key.
    pub fn key(&mut self, key: KeyValue, sub: u32) -> Result<(), RefoundError> {
        let KeyValue { key, value, create_revision, mod_revision, version, lease } = key;
        let is_possible = create_revision.get() > 0 && create_revision <= mod_revision && version > 0;
        if key.is_empty() || !is_possible || !is_version_number(version) {
            return Err(RefoundError::Impossible);
        }
        self.place(mod_revision, sub, key.len() + value.len())?;
        let live = Live { value, lease, version, incarnation: INCARNATION };
        let state = &mut self.replica.state;
        let digest = if state.local.contains(&key) { &mut state.local_digest } else { &mut state.digest };
        digest.add(Keyspace::Client, &key, &live.value, version, lease);
        self.add(Keyspace::Client, key, &live, Some(create_revision));
        Ok(())
    }

    /// Takes a key that was deleted at the revision at which this ends ([`Self::finish_at`]): a watch may begin there. It
    /// comes in the same order as the others.
    ///
    /// # Errors
    /// When it comes too late.
    pub fn deleted(&mut self, key: Key, revision: Revision, sub: u32) -> Result<(), RefoundError> {
        self.place(revision, sub, key.len())?;
        let local = self.replica.state.local.contains(&key);
        let applied = Some(Applied { sub: self.sub, create_revision: None, after: 0 });
        let change = Change::new(Keyspace::Client, key, ChangeKind::Delete, INCARNATION);
        self.changes.push(Change { local, applied, ..change });
        self.sub = self.sub.saturating_add(1);
        Ok(())
    }

    /// Goes to a position.
    fn place(&mut self, revision: Revision, sub: u32, bytes: usize) -> Result<(), RefoundError> {
        let is_behind = self.revision.is_none_or(|last| (last, self.sub) <= (revision, sub));
        if !is_behind {
            return Err(RefoundError::Order);
        }
        self.make_room(Some(revision), bytes);
        self.sub = sub;
        Ok(())
    }

    fn add(&mut self, keyspace: Keyspace, key: Key, live: &Live, create_revision: Option<Revision>) {
        let local = keyspace == Keyspace::Client && self.replica.state.local.contains(&key);
        let kind = ChangeKind::Put { value: live.value.clone(), lease: live.lease, version: live.version };
        let applied = Some(Applied { sub: self.sub, create_revision, after: 0 });
        self.changes.push(Change { local, applied, ..Change::new(keyspace, key, kind, INCARNATION) });
        self.sub = self.sub.saturating_add(1);
    }

    /// Ends the present record where a key of that revision, and of so many bytes, does not belong into it.
    fn make_room(&mut self, revision: Option<Revision>, bytes: usize) {
        let is_full = self.changes.len() == KEYS_PER_RECORD || self.bytes + bytes > BYTES_PER_RECORD;
        if revision != self.revision || (is_full && !self.changes.is_empty()) {
            self.end_record();
        }
        if revision != self.revision {
            (self.revision, self.sub) = (revision, 0);
        }
        self.bytes += bytes;
    }

    fn end_record(&mut self) {
        self.bytes = 0;
        if self.changes.is_empty() {
            return;
        }
        let record = Record {
            number: self.replica.journal.number(),
            revision: self.revision,
            head: None,
            changes: std::mem::take(&mut self.changes),
            outcomes: vec![],
            trimmed: true,
            settled: true,
            until: None,
            bases: Bases::default(),
            notes: Notes::default(),
        };
        self.turn.effects.records.push(record.encode());
    }

    /// The records that are ready since the last call, in order, and a head for the time being.
    pub fn records(&mut self) -> (Vec<Bytes>, Bytes) {
        let (noted, head) = self.replica.close_group();
        (std::mem::take(&mut self.turn.effects.records).into_iter().chain(noted).collect(), head.encode())
    }

    /// Ends. `above` is the highest revision that clients may have seen. Tells where the member goes on; the last records,
    /// and the head that counts, are told by [`Self::records`].
    ///
    /// # Errors
    /// When there is no space above that.
    pub fn finish(&mut self, above: Revision) -> Result<Revision, RefoundError> {
        self.end_record();
        self.replica.state.revision = self.replica.state.revision.max(above);
        let stride = Stride::Alone(self.replica.identity.birth);
        self.replica.enter_space(stride).map_err(|_: Refusal| RefoundError::SpacesExhausted)
    }

    /// Ends, and goes on at the revision that the keys were taken at, as if they had been written here. All before it counts
    /// as compacted. Only right for a founder alone, and while no other replica goes on counting from these keys.
    ///
    /// # Errors
    /// When that revision is one of another member.
    pub fn finish_at(&mut self, revision: Revision) -> Result<(), RefoundError> {
        self.end_record();
        if revision.space() % SPACES != u64::from(self.replica.identity.ordinal) {
            return Err(RefoundError::ForeignSpace(revision.space()));
        }
        let state = &mut self.replica.state;
        if revision > state.revision {
            state.leap(revision);
        }
        Ok(())
    }
}
