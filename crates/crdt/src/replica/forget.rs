//! Forgetting births that are over.
//!
//! Each lost disk ends a birth of its member, and begins another. What is known of an ended birth need not be kept for
//! good. It is forgotten when every member is known to have all of its entries, and nothing more can come of it:
//!
//! - All are known to have heard of the birth under which the member goes on. Whatever anyone has of an earlier birth is
//!   then known here, because an acknowledgement counts only once all that it names is known here.
//! - All are known to have all of that.
//! - No entry of it is kept any more, so that no window depends on its name.
//!
//! A [`crate::words::fence::Fence`] takes its place in all vectors. Each member forgets by itself. Those that have not
//! yet, and one that comes back after a long time, find by the fence's hash that they have the same entries. One that was
//! set back to before finds that it has not, and begins anew.
//!
//! A member's newest ended births are kept all the same (`Membership::kept_births`).

use crate::replica::Replica;
use crate::replica::replication::Replication;
use crate::replica::turn::Turn;
use crate::store::system::AnnouncedBirth;
use crate::words::id::{Birth, Dot, Origin, ReplicaId};
use crate::words::vector::VersionVector;

impl Replica {
    /// How many ended births of each member are kept from now on. Only tests need another number than the usual one.
    pub fn keep_births(&mut self, kept: usize) {
        self.membership.kept_births = kept;
    }

    /// The same in a cluster of one, which has nobody to wait for.
    pub(crate) fn forget_births_alone(&mut self, turn: &mut Turn) {
        let reached = self.origins.vector.clone();
        self.forget_births(turn, &reached);
    }

    /// Forgets the births that are over, where all are known to have `reached`.
    pub(crate) fn forget_births(&mut self, turn: &mut Turn, reached: &VersionVector) {
        let (membership, alone) = (&mut self.membership, self.replication.is_none());
        let counting = membership.counting();
        let members = &membership.members;
        let may_count = |origin: Origin| match members.birth_of(origin.replica) {
            _ if members.get(origin.replica).is_none() => true,
            _ if !counting.contains(&origin.replica) => false,
            Some(AnnouncedBirth::One(birth)) => birth == origin.birth,
            Some(AnnouncedBirth::Contested) | None => true,
        };
        let is_over = |origin: Origin| {
            let is_gone = members.get(origin.replica).is_some() && !counting.contains(&origin.replica);
            is_gone || self.origins.vector.has_forgotten(origin)
        };
        membership.acks.retain(may_count, |origin| !is_over(origin));

        let mut members: Vec<ReplicaId> = self.origins.vector.iter().map(|dot| dot.origin.replica).collect();
        members.dedup();
        let fences: Vec<(ReplicaId, Birth)> = members
            .into_iter()
            .filter(|member| self.origins.vector.of(*member).nth(1).is_some())
            .filter_map(|member| {
                let before = match self.membership.members.birth_of(member) {
                    _ if alone && member == self.identity.replica => self.identity.birth,
                    // Nothing is taken from it any more.
                    _ if !counting.contains(&member) => self.origins.vector.of(member).last()?.origin.birth,
                    Some(AnnouncedBirth::One(birth)) => birth,
                    Some(AnnouncedBirth::Contested) | None => return None,
                };
                Some((member, self.fence_for(member, before, reached)?))
            })
            .collect();
        for (member, before) in fences {
            self.forget_before(member, before);
            turn.effects.head_changed = true;
        }
    }

    /// Before which birth all of a member's can be forgotten, where all before `living` are over.
    fn fence_for(&self, member: ReplicaId, living: Birth, reached: &VersionVector) -> Option<Birth> {
        let ended: Vec<Dot> = self.origins.vector.of(member).take_while(|dot| dot.origin.birth < living).collect();
        let surplus = ended.len().checked_sub(self.membership.kept_births)?;
        let is_kept =
            |dot: &Dot| !reached.contains(*dot) || self.log().is_some_and(|log| log.of(dot.origin, 0).next().is_some());
        let done = ended.iter().take(surplus).take_while(|dot| !is_kept(dot)).count();
        (done > 0).then(|| ended.get(done).map_or(living, |dot| dot.origin.birth))
    }

    fn forget_before(&mut self, member: ReplicaId, before: Birth) {
        let Some(fence) = self.origins.vector.forget(member, before) else { return };
        self.origins.fresh.raise(fence);
        self.origins.others.retain(|origin, _| origin.replica != member || origin.birth >= before);
        self.membership.acks.raise(fence);
        if let Some(replication) = &mut self.replication {
            let Replication { base, floor, looked_upto, settled_upto, .. } = replication;
            [base, floor, looked_upto, settled_upto].into_iter().for_each(|vector| vector.raise(fence));
            replication.begins.retain(|origin, _| origin.replica != member || origin.birth >= before);
        }
    }
}
