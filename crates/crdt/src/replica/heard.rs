//! What members are known to have written, whether it has arrived here or not.

use std::collections::BTreeMap;

use crate::words::clock::Now;
use crate::words::id::{Dot, Origin, ReplicaId};
use crate::words::vector::VersionVector;

/// What is known of a member beyond what was applied.
#[derive(Clone, Copy, Debug)]
struct Claim {
    /// The newest entry that it is known to have made under its newest birth.
    newest: Dot,
    /// When that was heard, milliseconds of the monotonic clock.
    heard_ms: u64,
}

/// The newest entries that other members are known to have made.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    claims: BTreeMap<ReplicaId, Claim>,
}

impl Heard {
    /// Takes note of an acknowledgement: a member has all of its own entries that it names.
    pub(crate) fn note(&mut self, now: Now, member: Origin, vector: &VersionVector) {
        let newest = Dot { origin: member, seq: vector.get(member) };
        let claim = Claim { newest, heard_ms: now.mono_ms };
        let known = self.claims.entry(member.replica).or_insert(claim);
        if known.newest.origin != member || known.newest.seq < newest.seq {
            *known = claim;
        }
    }

    /// Whether entries of that member are known to exist that are not applied, and the last news of it are younger than
    /// `patience_ms`.
    pub(crate) fn is_behind(&self, now: Now, member: ReplicaId, applied: &VersionVector, patience_ms: u64) -> bool {
        self.claims.get(&member).is_some_and(|claim| {
            !applied.contains(claim.newest) && now.mono_ms < claim.heard_ms.saturating_add(patience_ms)
        })
    }
}
