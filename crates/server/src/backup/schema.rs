//! What stands in which bucket of etcd's database, and how keys and values are encoded there.

use bytes::Bytes;
use eddy_crdt::{
    Alarm, AlarmKind, LeaseId, Member, Permission, PermissionRange, Revision, Right, StoredVersion, User, Users,
};
use eddy_proto::authpb;
use eddy_proto::authpb::permission::Type;
use eddy_proto::etcdserverpb::{AlarmMember, AlarmType};
use eddy_proto::mvccpb::KeyValue;
use prost::Message;
use serde_json::json;

/// The bucket of all versions of all keys, by revision.
pub const KEY: &str = "key";
/// The bucket of what etcd keeps for itself.
pub const META: &str = "meta";
/// The bucket of leases.
pub const LEASE: &str = "lease";

/// The bucket that says whether calls need a user.
pub const AUTH: &str = "auth";
/// The bucket of roles.
pub const ROLES: &str = "authRoles";
/// The bucket of users.
pub const USERS: &str = "authUsers";

/// In `auth`: whether calls need a user.
pub const AUTH_ENABLED: &[u8] = b"authEnabled";
/// In `meta`: how far the last compaction was asked for.
pub const COMPACTING: &[u8] = b"scheduledCompactRev";
/// In `meta`: how far the last compaction was done.
pub const COMPACTED: &[u8] = b"finishedCompactRev";

/// Bytes of a revision.
const REVISION: usize = 17;
/// What follows the revision of a delete.
const TOMBSTONE: u8 = b't';

/// The place of a version: the revision, the position within it, and whether it deleted its key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct VersionPlace {
    /// The revision.
    pub main: i64,
    /// The position within it.
    pub sub: i64,
    /// Whether the key was deleted.
    pub tombstone: bool,
}

impl VersionPlace {
    /// How long its key in the bucket is.
    pub fn encoded_len(self) -> usize {
        REVISION + usize::from(self.tombstone)
    }

    /// Its key in the bucket.
    pub fn encode(self) -> Vec<u8> {
        let mut key = Vec::with_capacity(REVISION + 1);
        key.extend_from_slice(&self.main.to_be_bytes());
        key.push(b'_');
        key.extend_from_slice(&self.sub.to_be_bytes());
        key.extend(self.tombstone.then_some(TOMBSTONE));
        key
    }

    /// Reads it back; `None` when etcd writes no such key.
    pub fn decode(key: &[u8]) -> Option<Self> {
        let (revision, rest) = key.split_at_checked(REVISION)?;
        let tombstone = match rest {
            [] => false,
            [TOMBSTONE] => true,
            _ => return None,
        };
        let number = |part: &[u8]| Some(i64::from_be_bytes(part.try_into().ok()?)).filter(|number| *number >= 0);
        let (main, sub) = (number(&revision[..8])?, number(&revision[9..])?);
        (revision[8] == b'_').then_some(Self { main, sub, tombstone })
    }
}

/// A revision as `meta` has it.
pub fn revision(at: Revision) -> Vec<u8> {
    VersionPlace { main: at.get(), sub: 0, tombstone: false }.encode()
}

/// A lease as etcd keeps it.
#[derive(Clone, PartialEq, Message)]
pub struct StoredLease {
    /// Its id.
    #[prost(int64, tag = "1")]
    pub id: i64,
    /// The time to live that it was granted, seconds.
    #[prost(int64, tag = "2")]
    pub ttl_s: i64,
    /// What was left of it at the last checkpoint of leases, seconds; 0 for all.
    #[prost(int64, tag = "3")]
    pub remaining_s: i64,
}

/// A key and a value of a bucket.
pub type Pair = (Vec<u8>, Vec<u8>);

/// A lease in its bucket.
pub fn lease(id: i64, ttl_s: i64) -> Pair {
    let lease = StoredLease { id, ttl_s, remaining_s: 0 };
    (id.to_be_bytes().to_vec(), lease.encode_to_vec())
}

/// An alarm in its bucket.
pub fn alarm(alarm: Alarm) -> Pair {
    let kind = match alarm.kind {
        AlarmKind::NoSpace => AlarmType::Nospace.into(),
        AlarmKind::Corrupt => AlarmType::Corrupt.into(),
        AlarmKind::Unknown(kind) => kind,
    };
    (AlarmMember { member_id: alarm.member.get(), alarm: kind }.encode_to_vec(), vec![])
}

/// Whether users are needed, and how often users and roles were changed.
pub fn auth(users: &Users) -> Vec<Pair> {
    vec![
        (AUTH_ENABLED.to_vec(), vec![u8::from(users.enabled)]),
        (b"authRevision".to_vec(), users.revision.to_be_bytes().to_vec()),
    ]
}

/// A user in its bucket.
pub fn user(name: &str, user: &User) -> Pair {
    let stored = authpb::User {
        name: name.as_bytes().to_vec().into(),
        password: user.password.clone().unwrap_or_default(),
        roles: user.roles.iter().cloned().collect(),
        options: Some(authpb::UserAddOptions { no_password: user.password.is_none() }),
    };
    (name.into(), stored.encode_to_vec())
}

/// Reads a user: its name, the hash of its password, its roles.
pub fn stored_user(value: &[u8]) -> Option<(String, Option<Bytes>, Vec<String>)> {
    let user = authpb::User::decode(Bytes::copy_from_slice(value)).ok()?;
    let no_password = user.options.is_some_and(|options| options.no_password);
    Some((String::from_utf8(user.name.into()).ok()?, (!no_password).then_some(user.password), user.roles))
}

/// A role in its bucket.
pub fn role(name: &str, permissions: &[Permission]) -> Pair {
    let permission = |Permission { range, right }: &Permission| authpb::Permission {
        perm_type: match right {
            Right::Read => Type::Read,
            Right::Write => Type::Write,
            Right::ReadWrite => Type::Readwrite,
        }
        .into(),
        key: range.key.clone(),
        range_end: range.range_end.clone(),
    };
    let key_permission = permissions.iter().map(permission).collect();
    let stored = authpb::Role { name: name.as_bytes().to_vec().into(), key_permission };
    (name.into(), stored.encode_to_vec())
}

/// Reads a role: its name, and what it may do.
pub fn stored_role(value: &[u8]) -> Option<(String, Vec<Permission>)> {
    let role = authpb::Role::decode(Bytes::copy_from_slice(value)).ok()?;
    let permission = |permission: authpb::Permission| {
        let right = match Type::try_from(permission.perm_type).ok()? {
            Type::Read => Right::Read,
            Type::Write => Right::Write,
            Type::Readwrite => Right::ReadWrite,
        };
        Some(Permission { range: PermissionRange { key: permission.key, range_end: permission.range_end }, right })
    };
    let permissions = role.key_permission.into_iter().map(permission).collect::<Option<_>>()?;
    Some((String::from_utf8(role.name.into()).ok()?, permissions))
}

/// A member in its bucket.
pub fn member(member: &Member) -> Pair {
    let mut value = json!({ "id": member.id.get(), "peerURLs": member.peer_urls });
    if member.learner {
        value["isLearner"] = json!(true);
    }
    if !member.name.is_empty() {
        value["name"] = json!(member.name);
    }
    if !member.client_urls.is_empty() {
        value["clientURLs"] = json!(member.client_urls);
    }
    (member.id.to_string().into_bytes(), value.to_string().into_bytes())
}

/// A member that was removed, in its bucket.
pub fn removed(member: &Member) -> Pair {
    (member.id.to_string().into_bytes(), b"removed".to_vec())
}

/// Who votes, as raft keeps it.
pub fn voters<'a>(members: impl Iterator<Item = &'a Member>) -> Vec<u8> {
    let mut state = json!({ "auto_leave": false });
    let (mut voters, mut learners) = (vec![], vec![]);
    for member in members {
        (if member.learner { &mut learners } else { &mut voters }).push(member.id.get());
    }
    state["voters"] = json!(voters);
    if !learners.is_empty() {
        state["learners"] = json!(learners);
    }
    state.to_string().into_bytes()
}

/// A version of a key in its bucket. Of a delete only the key is told.
pub fn version(version: StoredVersion) -> KeyValue {
    let Some(kv) = version.kv else { return KeyValue { key: version.key, ..KeyValue::default() } };
    KeyValue {
        key: kv.key,
        create_revision: kv.create_revision.get(),
        mod_revision: kv.mod_revision.get(),
        version: kv.version,
        value: kv.value,
        lease: kv.lease.map_or(0, LeaseId::get),
    }
}

/// Bytes that a value of that length, above 0, adds to a version: its field's number, its length, and itself.
pub fn value_len(len: usize) -> usize {
    1 + prost::encoding::encoded_len_varint(len as u64) + len
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_come_back_and_stand_in_order_of_revisions() {
        let place = |main, sub, tombstone| VersionPlace { main, sub, tombstone };
        let places = [place(1, 0, false), place(2, 0, true), place(2, 1, false), place(i64::MAX, 300, true)];
        let keys = places.map(VersionPlace::encode);
        assert!(keys.is_sorted());
        for (place, key) in places.iter().zip(&keys) {
            assert_eq!((VersionPlace::decode(key), place.encoded_len()), (Some(*place), key.len()));
        }
        let key = &keys[1];
        for bad in [&b""[..], &key[..16], b"12345678.12345678", b"12345678_12345678x", &[0xff; 17]] {
            assert_eq!(VersionPlace::decode(bad), None);
        }
    }
}
