//! The system keyspace: leases, alarms, members, rules, users and roles, as keys that replicate like all others.
//!
//! What members conflict about is spread over keys that are only ever set. A removal is a key of its own that nobody
//! deletes, and so is the use of an ordinal. Concurrent changes then need no rule of their own. Only births of a member
//! do: none counts when several were announced apart.

use std::collections::BTreeMap;

use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;

use crate::command::op::{Alarm, AlarmKind};
use crate::store::auth::AuthKey;
use crate::words::id::{Birth, LeaseId, ReplicaId};
use crate::words::key::Key;
use crate::words::value::Incarnation;

/// A system key and what it stands for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SystemKey {
    /// A lease; the value is its time to live and its owner.
    Lease(LeaseId),
    /// A raised alarm; the value is empty.
    Alarm(Alarm),
    /// A member: peer URLs, and whether it is a learner. Stays when the member is removed.
    Member(ReplicaId),
    /// What a member says of itself: name, client URLs, and the newest merge engine of its build.
    Attributes(ReplicaId),
    /// A member was removed; the value is empty.
    Removed(ReplicaId),
    /// A member has (or had) the revision spaces of an ordinal; the value is empty.
    Ordinal(u16, ReplicaId),
    /// The highest revision space that a member has used; the value is its number.
    Space(ReplicaId),
    /// The birth under which a member goes on. The member that gave it a snapshot sets it.
    Birth(ReplicaId),
    /// The rules of merging of that number.
    Rules(u32),
    /// The rules of that number are in use; the value is empty.
    RulesUp(u32),
    /// Something of the users and roles.
    Auth(AuthKey),
}

const LEASE: u8 = b'l';
const ALARM: u8 = b'a';
const MEMBER: u8 = b'm';
const ATTRIBUTES: u8 = b'n';
const REMOVED: u8 = b'r';
const ORDINAL: u8 = b'o';
const SPACE: u8 = b's';
const BIRTH: u8 = b'b';
const RULES: u8 = b'R';
const RULES_UP: u8 = b'U';
const AUTH: u8 = b'A';

impl SystemKey {
    /// The key's bytes.
    pub fn encode(&self) -> Key {
        let mut key = BytesMut::with_capacity(13);
        match self {
            Self::Lease(id) => {
                key.put_u8(LEASE);
                key.put_i64(id.get());
            }
            Self::Alarm(alarm) => {
                key.put_u8(ALARM);
                key.put_u64(alarm.member.get());
                key.put_i32(match alarm.kind {
                    AlarmKind::NoSpace => 1,
                    AlarmKind::Corrupt => 2,
                    AlarmKind::Unknown(kind) => kind,
                });
            }
            Self::Member(id) => of_member(&mut key, MEMBER, *id),
            Self::Attributes(id) => of_member(&mut key, ATTRIBUTES, *id),
            Self::Removed(id) => of_member(&mut key, REMOVED, *id),
            Self::Ordinal(ordinal, id) => {
                key.put_u8(ORDINAL);
                key.put_u16(*ordinal);
                key.put_u64(id.get());
            }
            Self::Space(id) => of_member(&mut key, SPACE, *id),
            Self::Birth(id) => of_member(&mut key, BIRTH, *id),
            Self::Rules(number) => {
                key.put_u8(RULES);
                key.put_u32(*number);
            }
            Self::RulesUp(number) => {
                key.put_u8(RULES_UP);
                key.put_u32(*number);
            }
            Self::Auth(auth) => {
                key.put_u8(AUTH);
                auth.encode(&mut key);
            }
        }
        key.freeze()
    }

    /// Reads a key back; `None` when no build of this version wrote it.
    pub fn decode(key: &[u8]) -> Option<Self> {
        let (tag, rest) = key.split_first()?;
        let member = || Some(ReplicaId::new(u64::from_be_bytes(rest.try_into().ok()?)));
        match (*tag, rest.len()) {
            (LEASE, 8) => Some(Self::Lease(LeaseId::new(i64::from_be_bytes(rest.try_into().ok()?)))),
            (ALARM, 12) => {
                let (member, kind) = rest.split_at(8);
                let member = ReplicaId::new(u64::from_be_bytes(member.try_into().ok()?));
                let kind = match i32::from_be_bytes(kind.try_into().ok()?) {
                    1 => AlarmKind::NoSpace,
                    2 => AlarmKind::Corrupt,
                    kind => AlarmKind::Unknown(kind),
                };
                Some(Self::Alarm(Alarm { member, kind }))
            }
            (MEMBER, 8) => member().map(Self::Member),
            (ATTRIBUTES, 8) => member().map(Self::Attributes),
            (REMOVED, 8) => member().map(Self::Removed),
            (SPACE, 8) => member().map(Self::Space),
            (BIRTH, 8) => member().map(Self::Birth),
            (ORDINAL, 10) => {
                let (ordinal, member) = rest.split_at(2);
                let member = ReplicaId::new(u64::from_be_bytes(member.try_into().ok()?));
                Some(Self::Ordinal(u16::from_be_bytes(ordinal.try_into().ok()?), member))
            }
            (RULES, 4) => Some(Self::Rules(u32::from_be_bytes(rest.try_into().ok()?))),
            (RULES_UP, 4) => Some(Self::RulesUp(u32::from_be_bytes(rest.try_into().ok()?))),
            (AUTH, _) => AuthKey::decode(rest).map(Self::Auth),
            _ => None,
        }
    }
}

fn of_member(key: &mut BytesMut, tag: u8, id: ReplicaId) {
    key.put_u8(tag);
    key.put_u64(id.get());
}

#[derive(Clone, PartialEq, Message)]
struct LeaseValue {
    #[prost(int64, tag = "1")]
    ttl_s: i64,
    #[prost(fixed64, tag = "2")]
    owner: u64,
}

/// A lease's value: its time to live in seconds, and the replica at which it is kept alive.
pub fn lease_value(ttl_s: i64, owner: ReplicaId) -> Bytes {
    LeaseValue { ttl_s, owner: owner.get() }.encode_to_vec().into()
}

/// A lease's time to live, seconds, out of its value.
pub fn lease_ttl(value: &[u8]) -> Option<i64> {
    Some(LeaseValue::decode(value).ok()?.ttl_s)
}

/// The replica at which a lease is kept alive, out of the lease's value.
pub fn lease_owner(value: &[u8]) -> Option<ReplicaId> {
    Some(ReplicaId::new(LeaseValue::decode(value).ok()?.owner))
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct MemberValue {
    #[prost(string, repeated, tag = "1")]
    pub(crate) peer_urls: Vec<String>,
    #[prost(bool, tag = "2")]
    pub(crate) learner: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct AttributesValue {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, repeated, tag = "2")]
    pub(crate) client_urls: Vec<String>,
    #[prost(uint32, optional, tag = "3")]
    pub(crate) engine: Option<u32>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct SpaceValue {
    #[prost(uint64, tag = "1")]
    pub(crate) space: u64,
}

#[derive(Clone, PartialEq, Message)]
struct BirthValue {
    #[prost(fixed64, optional, tag = "1")]
    birth: Option<u64>,
}

/// The birth under which a member goes on, as it was announced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AnnouncedBirth {
    /// This one.
    One(Birth),
    /// Several were announced, by members that did not know of each other's word. Nothing that the member acknowledges
    /// counts, so nothing settles until it announces itself.
    Contested,
}

impl AnnouncedBirth {
    /// The value of [`SystemKey::Birth`].
    pub fn encode(self) -> Bytes {
        let birth = match self {
            Self::One(birth) => Some(birth.get()),
            Self::Contested => None,
        };
        BirthValue { birth }.encode_to_vec().into()
    }

    /// Reads the value back; one that cannot be read says nothing, like a contested one.
    pub(crate) fn decode(value: &[u8]) -> Self {
        let birth = BirthValue::decode(value).ok().and_then(|value| value.birth);
        birth.map_or(Self::Contested, |birth| Self::One(Birth::new(birth)))
    }
}

/// The value of [`SystemKey::Member`].
pub fn member_value(peer_urls: &[String], learner: bool) -> Bytes {
    MemberValue { peer_urls: peer_urls.to_vec(), learner }.encode_to_vec().into()
}

/// The value of [`SystemKey::Attributes`].
pub fn attributes_value(name: &str, client_urls: &[String], engine: Option<u32>) -> Bytes {
    AttributesValue { name: name.to_owned(), client_urls: client_urls.to_vec(), engine }.encode_to_vec().into()
}

/// The value of [`SystemKey::Space`].
pub fn space_value(space: u64) -> Bytes {
    SpaceValue { space }.encode_to_vec().into()
}

/// The present value of a system key. There are no older ones: clients cannot read them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SystemValue {
    /// The value.
    pub value: Bytes,
    /// How often it was written in this incarnation.
    pub version: i64,
    /// This incarnation.
    pub incarnation: Incarnation,
    /// Journal number of the record that holds it.
    pub number: u64,
}

/// All system keys that are not deleted.
pub type System = BTreeMap<Key, SystemValue>;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::auth::PermissionRange;

    #[test]
    fn system_keys_come_back_as_they_were() {
        let member = ReplicaId::new(u64::MAX);
        let alarm = |kind| SystemKey::Alarm(Alarm { member, kind });
        for key in [
            SystemKey::Lease(LeaseId::new(-5)),
            alarm(AlarmKind::NoSpace),
            alarm(AlarmKind::Corrupt),
            alarm(AlarmKind::Unknown(-3)),
            SystemKey::Member(member),
            SystemKey::Attributes(member),
            SystemKey::Removed(member),
            SystemKey::Ordinal(4095, member),
            SystemKey::Space(member),
            SystemKey::Birth(member),
            SystemKey::Rules(1),
            SystemKey::RulesUp(u32::MAX),
        ] {
            assert_eq!(SystemKey::decode(&key.encode()), Some(key.clone()));
        }
        assert_eq!(SystemKey::decode(b"l123"), None);
        assert_eq!(SystemKey::decode(b""), None);
    }

    #[test]
    fn keys_of_users_and_roles_come_back_as_they_were() {
        let range = PermissionRange { key: "a".into(), range_end: "\0".into() };
        for key in [
            AuthKey::Enabled,
            AuthKey::User("root".into()),
            AuthKey::Role(String::new()),
            AuthKey::Grant { user: "a/b".into(), role: "c".into() },
            AuthKey::Permission { role: "r".into(), range },
        ] {
            let key = SystemKey::Auth(key);
            let bytes = key.encode();
            assert_eq!(SystemKey::decode(&bytes), Some(key));
            for length in 0..bytes.len() {
                assert_eq!(SystemKey::decode(&bytes[..length]), None, "cut off after {length}");
            }
            assert_eq!(SystemKey::decode(&[&bytes[..], b"x"].concat()), None);
        }
    }

    #[test]
    fn a_lease_says_how_long_it_lives_and_where() {
        let value = lease_value(60, ReplicaId::new(7));
        assert_eq!((lease_ttl(&value), lease_owner(&value)), (Some(60), Some(ReplicaId::new(7))));
    }
}
