//! A replica whose disk may be less than what its peers know of it: an older copy, or one that lacks its end.
//!
//! Numbers that it gives may be used already. What it has acknowledged may not be here any more, while others rely on
//! its being here. So it takes a new birth and another revision space at once. It begins anew from the first member it
//! meets that has lost nothing, before it tells any peer what it wrote in between.

use std::collections::BTreeSet;

use crate::entry::Past;
use crate::replica::Replica;
use crate::replica::marks::Marks;
use crate::replica::origins::OriginState;
use crate::replica::spaces::Stride;
use crate::replica::turn::Turn;
use crate::words::id::{Birth, ReplicaId};

impl Replica {
    /// Goes on under another birth. What it had is from now on as if another replica had made it.
    pub(crate) fn doubt(&mut self, turn: &mut Turn, drawn: Birth) {
        let birth = self.next_birth(self.identity.replica, drawn);
        let before = std::mem::take(&mut self.origins.own);
        if self.origins.vector.get(self.identity.origin()) > 0 {
            self.origins.others.insert(self.identity.origin(), before);
        }
        self.identity.birth = birth;
        self.origins.own = OriginState::default();
        self.origins.fresh = self.origins.vector.clone();
        self.marks = Marks::after(self.marks.version(), &self.origins.vector);
        self.membership.past = Past::Doubtful;
        self.membership.lineage = Some(self.identity.origin());
        self.membership.met.clear();
        self.announce(turn, self.identity.replica, birth);
        // Revisions behind those that are here may have been seen, also such of spaces behind this one.
        self.leap_or_stop(turn, Stride::Alone(birth));
        turn.effects.head_changed = true;
    }

    /// Notes that a member was met that knows no more of this replica. When no member does, nothing was lost.
    pub(crate) fn meet(&mut self, turn: &mut Turn, member: ReplicaId) {
        self.membership.met.insert(member);
        self.end_doubt(turn);
    }

    /// Ends the doubt if all others that are members now were met, and one at least: an older copy may know of none.
    pub(crate) fn end_doubt(&mut self, turn: &mut Turn) {
        let own = self.identity.replica;
        let mut others = self.membership.members.iter().filter(|member| !member.removed && member.id != own);
        let met = &self.membership.met;
        if self.membership.past == Past::Doubtful && !met.is_empty() && others.all(|member| met.contains(&member.id)) {
            self.membership.past = Past::Known;
            self.membership.met = BTreeSet::new();
            turn.effects.head_changed = true;
        }
    }
}
