//! Leases: who lives how long, counted by the monotonic clock alone.

use std::collections::{BTreeMap, BTreeSet};

use crate::clock::Now;
use crate::id::LeaseId;
use crate::key::Key;
use crate::op::LeaseStatus;

/// The longest time to live that etcd grants, seconds.
pub const MAX_TTL_S: i64 = 9_000_000_000;

/// The shortest, seconds: one and a half of etcd's default election timeout, rounded up.
pub const MIN_TTL_S: i64 = 2;

#[derive(Debug)]
struct Lease {
    ttl_s: i64,
    deadline_ms: u64,
    keys: BTreeSet<Key>,
}

/// All leases of a replica.
#[derive(Debug, Default)]
pub struct Leases {
    leases: BTreeMap<LeaseId, Lease>,
    deadlines: BTreeSet<(u64, LeaseId)>,
}

fn deadline(now: Now, ttl_s: i64) -> u64 {
    now.mono_ms.saturating_add(u64::try_from(ttl_s).unwrap_or(0).saturating_mul(1000))
}

impl Leases {
    /// Whether there is such a lease (it may have run out and wait for its keys to be deleted).
    pub fn contains(&self, id: LeaseId) -> bool {
        self.leases.contains_key(&id)
    }

    /// Adds a lease that lives from now, or counts one that is there anew.
    pub fn grant(&mut self, now: Now, id: LeaseId, ttl_s: i64) {
        let deadline_ms = deadline(now, ttl_s);
        let keys = self.remove(id);
        self.leases.insert(id, Lease { ttl_s, deadline_ms, keys });
        self.deadlines.insert((deadline_ms, id));
    }

    /// Counts a lease anew; tells its time to live in seconds, or `None` when there is none or it has run out.
    pub fn renew(&mut self, now: Now, id: LeaseId) -> Option<i64> {
        let lease = self.leases.get_mut(&id).filter(|lease| lease.deadline_ms > now.mono_ms)?;
        self.deadlines.remove(&(lease.deadline_ms, id));
        lease.deadline_ms = deadline(now, lease.ttl_s);
        self.deadlines.insert((lease.deadline_ms, id));
        Some(lease.ttl_s)
    }

    /// Takes a lease away; tells which keys hung on it.
    pub fn remove(&mut self, id: LeaseId) -> BTreeSet<Key> {
        let Some(lease) = self.leases.remove(&id) else { return BTreeSet::new() };
        self.deadlines.remove(&(lease.deadline_ms, id));
        lease.keys
    }

    /// The keys that hang on a lease, sorted.
    pub fn keys(&self, id: LeaseId) -> Vec<Key> {
        self.leases.get(&id).map(|lease| lease.keys.iter().cloned().collect()).unwrap_or_default()
    }

    /// Moves a key from one lease to another.
    pub fn reattach(&mut self, key: &Key, from: Option<LeaseId>, to: Option<LeaseId>) {
        if from == to {
            return;
        }
        if let Some(lease) = from.and_then(|id| self.leases.get_mut(&id)) {
            lease.keys.remove(key);
        }
        if let Some(lease) = to.and_then(|id| self.leases.get_mut(&id)) {
            lease.keys.insert(key.clone());
        }
    }

    /// Counts every lease anew, as after a restart: nobody could renew while the process was down.
    pub fn restart(&mut self, now: Now) {
        self.deadlines.clear();
        for (id, lease) in &mut self.leases {
            lease.deadline_ms = deadline(now, lease.ttl_s);
            self.deadlines.insert((lease.deadline_ms, *id));
        }
    }

    /// A lease whose time is up.
    pub fn first_expired(&self, now: Now) -> Option<LeaseId> {
        self.deadlines.first().filter(|(deadline_ms, _)| *deadline_ms <= now.mono_ms).map(|(_, id)| *id)
    }

    /// When the next lease runs out, milliseconds of the monotonic clock.
    pub fn next_deadline_ms(&self) -> Option<u64> {
        self.deadlines.first().map(|(deadline_ms, _)| *deadline_ms)
    }

    /// What is known of a lease.
    pub fn status(&self, now: Now, id: LeaseId) -> Option<LeaseStatus> {
        self.leases.get(&id).map(|lease| LeaseStatus {
            id,
            granted_ttl: lease.ttl_s,
            remaining_ms: lease.deadline_ms.saturating_sub(now.mono_ms),
            keys: lease.keys.iter().cloned().collect(),
        })
    }

    /// All leases with the milliseconds that are left of each.
    pub fn iter(&self, now: Now) -> impl Iterator<Item = (LeaseId, u64)> + '_ {
        self.leases.iter().map(move |(id, lease)| (*id, lease.deadline_ms.saturating_sub(now.mono_ms)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(mono_ms: u64) -> Now {
        Now { wall_ms: 0, mono_ms }
    }

    #[test]
    fn a_renewed_lease_lives_for_another_ttl() {
        let (mut leases, id) = (Leases::default(), LeaseId::new(7));
        leases.grant(at(0), id, 5);
        assert_eq!(leases.renew(at(4_000), id), Some(5));
        assert_eq!(leases.first_expired(at(8_999)), None);
        assert_eq!(leases.first_expired(at(9_000)), Some(id));
        assert_eq!(leases.renew(at(9_000), id), None, "what has run out is not revived");
    }

    #[test]
    fn the_wall_clock_does_not_matter() {
        let (mut leases, id) = (Leases::default(), LeaseId::new(7));
        leases.grant(at(0), id, 5);
        assert_eq!(leases.first_expired(Now { wall_ms: u64::MAX, mono_ms: 1 }), None);
    }

    #[test]
    fn huge_ttls_do_not_overflow() {
        let (mut leases, id) = (Leases::default(), LeaseId::new(7));
        leases.grant(at(u64::MAX - 1), id, MAX_TTL_S);
        assert_eq!(leases.next_deadline_ms(), Some(u64::MAX));
    }
}
