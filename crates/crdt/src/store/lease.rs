//! Leases and their deadlines, counted by the monotonic clock alone.
//!
//! A lease is kept alive at one replica, its owner. The others count the time since they last heard of it, and wait a
//! grace beyond its end. So the owner decides, unless it is gone. A key can hang on a lease that is not there, because
//! the lease was revoked elsewhere while the key was put here. Such an **orphan** is no lease to clients, and its keys
//! expire after the grace.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::command::reply::LeaseStatus;
use crate::words::clock::Now;
use crate::words::id::LeaseId;
use crate::words::key::Key;

/// The longest time to live that etcd grants, seconds.
pub const MAX_TTL_S: i64 = 9_000_000_000;

/// The shortest, seconds: one and a half of etcd's default election timeout, rounded up.
pub const MIN_TTL_S: i64 = 2;

/// How long a replica waits at least beyond the end of a lease that is kept alive elsewhere, milliseconds. It is long
/// enough for an expiry or a renewal to travel.
pub const GRACE_MIN_MS: u64 = 5_000;

#[derive(Debug)]
struct Lease {
    ttl_s: i64,
    /// The deadline it is queued under.
    deadline_ms: u64,
    /// The deadline with the renewals that took no turn; see [`Leases::renew_in_passing`].
    renewed_ms: AtomicU64,
    /// How much of the time until the deadline is grace.
    grace_ms: u64,
    /// When a renewal was last written down, by the monotonic clock.
    told_ms: u64,
    mine: bool,
    orphan: bool,
    keys: BTreeSet<Key>,
}

/// What a renewal leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Renewal {
    /// The time to live, seconds.
    pub ttl_s: i64,
    /// Whether other replicas should hear of it. They should when a third of the time to live is over since they last
    /// did, or when another replica was the owner until now.
    pub tell: bool,
}

/// All leases of a replica.
#[derive(Debug, Default)]
pub struct Leases {
    leases: BTreeMap<LeaseId, Lease>,
    deadlines: BTreeSet<(u64, LeaseId)>,
}

fn ttl_ms(ttl_s: i64) -> u64 {
    u64::try_from(ttl_s).unwrap_or(0).saturating_mul(1000)
}

fn deadline(now: Now, ttl_s: i64) -> u64 {
    now.mono_ms.saturating_add(ttl_ms(ttl_s))
}

/// How long nothing may be heard of a lease that is kept alive elsewhere before it runs out here, milliseconds.
pub fn patience_ms(ttl_s: i64) -> u64 {
    ttl_ms(ttl_s).saturating_add(grace_ms(ttl_s))
}

fn grace_ms(ttl_s: i64) -> u64 {
    (ttl_ms(ttl_s) / 2).max(GRACE_MIN_MS)
}

impl Leases {
    /// Whether there is such a lease (it may have run out and wait for its keys to be deleted).
    pub fn contains(&self, id: LeaseId) -> bool {
        self.leases.get(&id).is_some_and(|lease| !lease.orphan)
    }

    /// Adds a lease whose time begins now, or restarts the time of one that is there. `mine`: whether it is kept alive
    /// here.
    pub fn grant(&mut self, now: Now, id: LeaseId, ttl_s: i64, mine: bool) {
        let grace_ms = if mine { 0 } else { grace_ms(ttl_s) };
        let deadline_ms = deadline(now, ttl_s).saturating_add(grace_ms);
        let keys = self.remove(id);
        let (renewed_ms, told_ms) = (AtomicU64::new(deadline_ms), now.mono_ms);
        let lease = Lease { ttl_s, deadline_ms, renewed_ms, grace_ms, told_ms, mine, orphan: false, keys };
        self.insert(id, lease);
    }

    fn insert(&mut self, id: LeaseId, lease: Lease) {
        self.deadlines.insert((lease.deadline_ms, id));
        self.leases.insert(id, lease);
    }

    /// Whether the lease is kept alive here and has not run out.
    pub fn is_kept_here(&self, now: Now, id: LeaseId) -> bool {
        self.leases.get(&id).is_some_and(|lease| lease.mine && lease.is_running(now))
    }

    /// The same, with that time to live.
    pub fn is_kept_for(&self, now: Now, id: LeaseId, ttl_s: i64) -> bool {
        self.is_kept_here(now, id) && self.leases.get(&id).is_some_and(|lease| lease.ttl_s == ttl_s)
    }

    /// Lets a lease whose time is up wait a while before it comes up again. Clients see nothing left of it.
    pub fn look_again(&mut self, now: Now, id: LeaseId, after_ms: u64) {
        let Some(lease) = self.leases.get_mut(&id) else { return };
        lease.grace_ms = lease.grace_ms.saturating_add(after_ms);
        lease.requeue(&mut self.deadlines, id, now.mono_ms.saturating_add(after_ms));
    }

    /// Counts a lease anew; `None` when there is none or it has run out.
    pub fn renew(&mut self, now: Now, id: LeaseId) -> Option<Renewal> {
        let lease = self.leases.get_mut(&id).filter(|lease| lease.is_running(now))?;
        lease.requeue(&mut self.deadlines, id, deadline(now, lease.ttl_s));
        let tell = !lease.mine || now.mono_ms.saturating_sub(lease.told_ms) >= ttl_ms(lease.ttl_s) / 3;
        (lease.mine, lease.grace_ms) = (true, 0);
        if tell {
            lease.told_ms = now.mono_ms;
        }
        Some(Renewal { ttl_s: lease.ttl_s, tell })
    }

    /// Counts a lease anew without a turn of its own, so that keep-alives need not queue behind writes; tells the time to
    /// live, seconds. `None` when it takes a turn: there is none, it has run out, another replica is its owner, or
    /// (`told`) others should hear of it.
    pub fn renew_in_passing(&self, now: Now, id: LeaseId, told: bool) -> Option<i64> {
        let lease = self.leases.get(&id).filter(|lease| lease.is_running(now) && lease.mine)?;
        if told && now.mono_ms.saturating_sub(lease.told_ms) >= ttl_ms(lease.ttl_s) / 3 {
            return None;
        }
        lease.renewed_ms.fetch_max(deadline(now, lease.ttl_s), Ordering::Relaxed);
        Some(lease.ttl_s)
    }

    /// Takes a lease away; tells which keys hung on it.
    pub fn remove(&mut self, id: LeaseId) -> BTreeSet<Key> {
        let Some(lease) = self.leases.remove(&id) else { return BTreeSet::new() };
        self.deadlines.remove(&(lease.deadline_ms, id));
        lease.keys
    }

    /// Takes a lease away that was ended elsewhere. Keys that still hang on it are orphans.
    pub fn ended(&mut self, now: Now, id: LeaseId) {
        if !self.contains(id) {
            return;
        }
        let keys = self.remove(id);
        if !keys.is_empty() {
            self.orphan(now, id, keys);
        }
    }

    fn orphan(&mut self, now: Now, id: LeaseId, keys: BTreeSet<Key>) {
        let deadline_ms = now.mono_ms.saturating_add(GRACE_MIN_MS);
        let told_ms = now.mono_ms;
        let (renewed_ms, mine) = (AtomicU64::new(deadline_ms), false);
        self.insert(id, Lease { ttl_s: 0, deadline_ms, renewed_ms, grace_ms: 0, told_ms, mine, orphan: true, keys });
    }

    /// The keys that hang on a lease, sorted.
    pub fn keys(&self, id: LeaseId) -> Vec<Key> {
        self.leases.get(&id).map(|lease| lease.keys.iter().cloned().collect()).unwrap_or_default()
    }

    /// Moves a key from one lease to another.
    pub fn reattach(&mut self, now: Now, key: &Key, from: Option<LeaseId>, to: Option<LeaseId>) {
        if from == to {
            return;
        }
        if let Some(id) = from
            && let Some(lease) = self.leases.get_mut(&id)
        {
            lease.keys.remove(key);
            if lease.orphan && lease.keys.is_empty() {
                self.remove(id);
            }
        }
        match to {
            None => {}
            Some(id) => match self.leases.get_mut(&id) {
                Some(lease) => {
                    lease.keys.insert(key.clone());
                }
                None => self.orphan(now, id, BTreeSet::from([key.clone()])),
            },
        }
    }

    /// A lease whose time is up.
    pub fn first_expired(&mut self, now: Now) -> Option<LeaseId> {
        while let Some((_, id)) = self.deadlines.first().copied().filter(|(at, _)| *at <= now.mono_ms) {
            let Some(lease) = self.leases.get_mut(&id) else { return Some(id) };
            let deadline_ms = lease.deadline_ms();
            if deadline_ms <= now.mono_ms {
                return Some(id);
            }
            // Renewed in passing: now it is queued where it belongs.
            lease.requeue(&mut self.deadlines, id, deadline_ms);
        }
        None
    }

    /// When a lease may run out, milliseconds of the monotonic clock; none does before.
    pub fn next_deadline_ms(&self) -> Option<u64> {
        self.deadlines.first().map(|(deadline_ms, _)| *deadline_ms)
    }

    /// What is known of a lease.
    pub fn status(&self, now: Now, id: LeaseId) -> Option<LeaseStatus> {
        self.leases.get(&id).filter(|lease| !lease.orphan).map(|lease| LeaseStatus {
            id,
            granted_ttl: lease.ttl_s,
            remaining_ms: lease.remaining_ms(now),
            keys: lease.keys.iter().cloned().collect(),
        })
    }

    /// All leases with the milliseconds that are left of each.
    pub fn iter(&self, now: Now) -> impl Iterator<Item = (LeaseId, u64)> + '_ {
        let leases = self.leases.iter().filter(|(_, lease)| !lease.orphan);
        leases.map(move |(id, lease)| (*id, lease.remaining_ms(now)))
    }

    /// All leases with their times to live, seconds; the shortest for those that are not there but have keys.
    pub fn granted(&self) -> impl Iterator<Item = (LeaseId, i64)> + '_ {
        self.leases.iter().map(|(id, lease)| (*id, lease.ttl_s.max(MIN_TTL_S)))
    }
}

impl Lease {
    /// Gives it another deadline, and its place in the queue.
    fn requeue(&mut self, deadlines: &mut BTreeSet<(u64, LeaseId)>, id: LeaseId, deadline_ms: u64) {
        deadlines.remove(&(self.deadline_ms, id));
        deadlines.insert((deadline_ms, id));
        (self.deadline_ms, self.renewed_ms) = (deadline_ms, AtomicU64::new(deadline_ms));
    }

    fn deadline_ms(&self) -> u64 {
        self.renewed_ms.load(Ordering::Relaxed)
    }

    /// Whether it can be renewed.
    fn is_running(&self, now: Now) -> bool {
        !self.orphan && self.deadline_ms() > now.mono_ms
    }

    fn remaining_ms(&self, now: Now) -> u64 {
        self.deadline_ms().saturating_sub(now.mono_ms).saturating_sub(self.grace_ms)
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
        leases.grant(at(0), id, 5, true);
        assert_eq!(leases.renew(at(4_000), id), Some(Renewal { ttl_s: 5, tell: true }));
        assert_eq!(leases.renew(at(4_000), id), Some(Renewal { ttl_s: 5, tell: false }));
        assert_eq!(leases.first_expired(at(8_999)), None);
        assert_eq!(leases.first_expired(at(9_000)), Some(id));
        assert_eq!(leases.renew(at(9_000), id), None, "what has run out is not revived");
    }

    #[test]
    fn a_lease_renewed_in_passing_lives_as_long_as_one_renewed_in_turn() {
        let (mut leases, id) = (Leases::default(), LeaseId::new(7));
        leases.grant(at(0), id, 6, true);
        assert_eq!(leases.renew_in_passing(at(1_000), id, true), Some(6));
        assert_eq!(leases.renew_in_passing(at(2_000), id, true), None, "others are to hear of it");
        assert_eq!(leases.renew_in_passing(at(2_000), id, false), Some(6));
        assert_eq!(leases.status(at(2_000), id).map(|status| status.remaining_ms), Some(6_000));
        assert_eq!(leases.next_deadline_ms(), Some(6_000));
        assert_eq!(leases.first_expired(at(7_999)), None);
        assert_eq!(leases.next_deadline_ms(), Some(8_000));
        assert_eq!(leases.renew_in_passing(at(8_000), id, false), None, "what has run out is not revived");
        assert_eq!(leases.first_expired(at(8_000)), Some(id));
        leases.grant(at(0), id, 6, false);
        assert_eq!(leases.renew_in_passing(at(1_000), id, false), None, "it is not kept alive here");
    }

    #[test]
    fn the_wall_clock_does_not_matter() {
        let (mut leases, id) = (Leases::default(), LeaseId::new(7));
        leases.grant(at(0), id, 5, true);
        assert_eq!(leases.first_expired(Now { wall_ms: u64::MAX, mono_ms: 1 }), None);
    }

    #[test]
    fn huge_ttls_do_not_overflow() {
        let (mut leases, id) = (Leases::default(), LeaseId::new(7));
        leases.grant(at(u64::MAX - 1), id, MAX_TTL_S, true);
        assert_eq!(leases.next_deadline_ms(), Some(u64::MAX));
    }

    #[test]
    fn who_is_not_the_owner_waits_longer() {
        let (mut leases, id) = (Leases::default(), LeaseId::new(7));
        leases.grant(at(0), id, 60, false);
        assert_eq!(leases.status(at(0), id).unwrap().remaining_ms, 60_000);
        assert_eq!(leases.first_expired(at(89_999)), None);
        assert_eq!(leases.first_expired(at(90_000)), Some(id));
    }

    #[test]
    fn keys_of_a_lease_that_is_not_there_expire_after_the_grace() {
        let (mut leases, id, key) = (Leases::default(), LeaseId::new(7), Key::from_static(b"k"));
        leases.reattach(at(0), &key, None, Some(id));
        assert!(!leases.contains(id) && leases.iter(at(0)).next().is_none());
        assert_eq!(leases.first_expired(at(GRACE_MIN_MS)), Some(id));
        leases.grant(at(1), id, 60, true);
        assert_eq!((leases.keys(id), leases.first_expired(at(GRACE_MIN_MS))), (vec![key], None));
    }
}
