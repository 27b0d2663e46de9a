//! Leases between replicas: when one that is kept alive elsewhere runs out here. What becomes of the keys of a living lease
//! that another replica has let run out.

use crate::entry::{Change, ChangeKind};
use crate::merge::outcome::MergeOutcome;
use crate::replica::Replica;
use crate::replica::turn::Turn;
use crate::store::lease;
use crate::store::system::{self, SystemKey};
use crate::store::txn::Again;
use crate::words::clock::Now;
use crate::words::id::LeaseId;
use crate::words::key::{Key, Keyspace};
use crate::words::value::Live;

/// How long a lease waits that must not run out yet before it is looked at again, milliseconds.
const LOOK_AGAIN_MS: u64 = 1_000;

impl Replica {
    /// Ends leases whose time is up, at most `limit` of them. A lease that another replica keeps alive stays while entries
    /// of that replica are known to be on their way. To lag is not to be dead.
    pub(crate) fn expire_leases(&mut self, turn: &mut Turn, limit: usize) {
        for _ in 0..limit {
            let Some(id) = self.state.leases.first_expired(turn.now) else { break };
            if self.may_be_renewed(turn.now, id) || self.leave_full_space(turn).is_err() {
                self.state.leases.look_again(turn.now, id, LOOK_AGAIN_MS);
            } else {
                self.transact(turn, |transaction| transaction.end_lease(id, ChangeKind::Expire));
            }
        }
    }

    /// Whether a renewal of the lease may be among entries that exist and have not arrived.
    fn may_be_renewed(&self, now: Now, id: LeaseId) -> bool {
        let Some(value) = self.state.system.get(&SystemKey::Lease(id).encode()) else { return false };
        let Some(owner) = system::lease_owner(&value.value).filter(|owner| *owner != self.identity.replica) else {
            return false;
        };
        let patience_ms = lease::patience_ms(system::lease_ttl(&value.value).unwrap_or_default());
        self.membership.heard.is_behind(now, owner, &self.origins.vector, patience_ms)
    }

    /// Whether a change lets a key run out that hangs on a lease which is kept alive here, or that lease itself. Then the
    /// key stays as it is, and is written again in the same turn ([`Self::write_revived`]). Nobody here sees it go.
    pub(crate) fn revives(
        &self,
        turn: &mut Turn,
        change: &Change,
        before: Option<&Live>,
        outcome: &MergeOutcome,
    ) -> bool {
        let Some(before) = before.filter(|_| outcome.live.is_none() && change.kind == ChangeKind::Expire) else {
            return false;
        };
        let lease = match change.keyspace {
            Keyspace::Client => before.lease,
            Keyspace::System => match SystemKey::decode(&change.key) {
                Some(SystemKey::Lease(id)) => Some(id),
                _ => None,
            },
        };
        // A replica that is being made of a snapshot writes nothing of its own.
        let revives = !self.membership.joining && lease.is_some_and(|id| self.state.leases.is_kept_here(turn.now, id));
        if revives {
            turn.revived.push((change.keyspace, change.key.clone(), before.clone()));
        }
        revives
    }

    /// Writes again what an entry has let run out although its lease is alive, as one transaction.
    pub(crate) fn write_revived(&mut self, turn: &mut Turn) {
        let revived: Vec<(Keyspace, Key, Live)> = std::mem::take(&mut turn.revived);
        if revived.is_empty() {
            return;
        }
        self.transact(turn, |transaction| {
            for (keyspace, key, live) in revived {
                transaction.again(keyspace, &key, Again::Put { live, begins_anew: false });
            }
        });
    }
}
