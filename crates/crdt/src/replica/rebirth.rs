//! A replica whose disk may be less than what its peers know of it: an older copy, or one that lacks its end.
//!
//! What it numbered may be numbered already, and what it has acknowledged may not be here any more, while others rely on
//! its being here. So it takes a new birth and a revision space of its own at once, and begins anew from the first member
//! it meets that has lost nothing, before anyone is told what it wrote in between.

use std::collections::BTreeSet;

use crate::entry::Past;
use crate::replica::origins::OriginState;
use crate::replica::{Effects, Replica};
use crate::words::clock::Now;
use crate::words::id::{Birth, ReplicaId};

impl Replica {
    /// Goes on under another birth. What it had is from now on as if another replica had made it.
    pub(crate) fn doubt(&mut self, now: Now, birth: Birth, effects: &mut Effects) {
        let before = std::mem::take(&mut self.own);
        if self.vector.get(self.identity.origin()) > 0 {
            self.others.insert(self.identity.origin(), before);
        }
        self.identity.birth = birth;
        self.own = OriginState::default();
        self.fresh = self.vector.clone();
        self.offered = 0;
        self.past = Past::Doubtful;
        self.met.clear();
        self.announce(now, self.identity.replica, birth, effects);
        // Revisions behind those that are here may have been seen.
        drop(self.leap(now, effects));
        effects.head_changed = true;
    }

    /// Notes that a member was met that knows no better. When none of them does, this is all that there is.
    pub(crate) fn meet(&mut self, member: ReplicaId, effects: &mut Effects) {
        self.met.insert(member);
        let own = self.identity.replica;
        let mut others = self.members.iter().filter(|member| !member.removed && member.id != own);
        if self.past == Past::Doubtful && others.all(|member| self.met.contains(&member.id)) {
            self.past = Past::Known;
            self.met = BTreeSet::new();
            effects.head_changed = true;
        }
    }
}
