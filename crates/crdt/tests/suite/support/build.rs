//! Who a cluster consists of, and what its clients ask.

use bytes::Bytes;
use eddy_crdt::{
    Birth, ClusterId, Command, DeleteOp, Founder, Genesis, Identity, Key, KeyRange, LeaseId, PutLease, PutOp, PutValue,
    Replica, ReplicaId,
};

use super::disk::Image;

/// What the wall clocks show when a story begins, milliseconds.
pub const WALL_MS: u64 = 1_800_000_000_000;

/// The replica at a place; places count from 0.
pub const fn id(place: usize) -> ReplicaId {
    ReplicaId::new(place as u64 + 1)
}

pub const fn identity(place: usize, birth: u64) -> Identity {
    Identity { cluster: ClusterId::new(0xc1), replica: id(place), birth: Birth::new(birth), ordinal: 0 }
}

pub fn peer_urls(place: usize) -> Vec<String> {
    vec![format!("http://n{place}:2380")]
}

/// A cluster that so many found.
pub fn genesis(count: usize) -> Genesis {
    let founder = |n| Founder { id: id(n), name: format!("n{n}"), peer_urls: peer_urls(n) };
    Genesis { founders: (0..count).map(founder).collect(), ..Genesis::default() }
}

/// A founder, and what is on its disk.
pub fn found(identity: Identity, genesis: &Genesis) -> (Replica, Image) {
    let (replica, effects) = Replica::found(identity, genesis);
    let image = Image { records: (1..).zip(effects.records).collect(), head: Some(replica.head().encode()) };
    (replica, image)
}

/// Adds the replica at a place.
pub fn add(place: usize) -> Command {
    Command::MemberAdd { id: id(place), peer_urls: peer_urls(place), learner: false }
}

pub fn put_op(key: &str, value: impl AsRef<[u8]>, lease: Option<i64>) -> PutOp {
    PutOp {
        key: Key::copy_from_slice(key.as_bytes()),
        value: PutValue::Set(Bytes::copy_from_slice(value.as_ref())),
        lease: PutLease::Set(lease.map(LeaseId::new)),
        prev_kv: false,
    }
}

pub fn delete_op(key: &str) -> DeleteOp {
    DeleteOp { range: KeyRange::Key(Key::copy_from_slice(key.as_bytes())), prev_kv: false }
}

pub fn put(key: &str, value: impl AsRef<[u8]>) -> Command {
    Command::Put(put_op(key, value, None))
}

pub fn put_leased(key: &str, value: impl AsRef<[u8]>, lease: Option<i64>) -> Command {
    Command::Put(put_op(key, value, lease))
}

pub fn delete(key: &str) -> Command {
    Command::Delete(delete_op(key))
}
