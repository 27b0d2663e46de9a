//! The system keyspace: leases, alarms and (with several replicas) members, as keys that replicate like all others.

use std::collections::BTreeMap;

use bytes::{BufMut, Bytes, BytesMut};

use crate::id::{LeaseId, ReplicaId};
use crate::index::Incarnation;
use crate::key::Key;
use crate::op::{Alarm, AlarmKind};

/// A system key and what it stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SystemKey {
    /// A lease; the value is its time to live in seconds.
    Lease(LeaseId),
    /// A raised alarm; the value is empty.
    Alarm(Alarm),
}

const LEASE: u8 = b'l';
const ALARM: u8 = b'a';

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
        }
        key.freeze()
    }

    /// Reads a key back; `None` when no build of this version wrote it.
    pub fn decode(key: &[u8]) -> Option<Self> {
        let (tag, rest) = key.split_first()?;
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
            _ => None,
        }
    }
}

/// A lease's value: its time to live, seconds.
pub fn lease_value(ttl_s: i64) -> Bytes {
    Bytes::copy_from_slice(&ttl_s.to_be_bytes())
}

/// Reads a lease's value back.
pub fn lease_ttl(value: &[u8]) -> Option<i64> {
    Some(i64::from_be_bytes(value.try_into().ok()?))
}

/// The present value of a system key. There are no older ones: clients cannot read them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SystemValue {
    /// The value.
    pub value: Bytes,
    /// How often it was written in this life.
    pub version: i64,
    /// This life.
    pub incarnation: Incarnation,
    /// Journal number of the record that holds it.
    pub number: u64,
}

/// All system keys that are not deleted.
pub type System = BTreeMap<Key, SystemValue>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_keys_come_back_as_they_were() {
        let alarm = |kind| SystemKey::Alarm(Alarm { member: ReplicaId::new(u64::MAX), kind });
        for key in [
            SystemKey::Lease(LeaseId::new(-5)),
            alarm(AlarmKind::NoSpace),
            alarm(AlarmKind::Corrupt),
            alarm(AlarmKind::Unknown(-3)),
        ] {
            assert_eq!(SystemKey::decode(&key.encode()), Some(key));
        }
        assert_eq!(SystemKey::decode(b"l123"), None);
        assert_eq!(SystemKey::decode(b""), None);
    }
}
