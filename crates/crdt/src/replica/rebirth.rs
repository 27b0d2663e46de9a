//! A replica whose disk may be less than what its peers know of it: an older copy, or one that lacks its end.
//!
//! Numbers that it gives may be used already. What it has acknowledged may not be here any more, while others rely on
//! its being here. So it takes a new birth and another revision space at once. It begins anew from the first member it
//! meets that has lost nothing, before it tells any peer what it wrote in between.

use crate::entry::Past;
use crate::replica::Replica;
use crate::replica::marks::Marks;
use crate::replica::origins::OriginState;
use crate::replica::spaces::Stride;
use crate::replica::turn::Turn;
use crate::words::id::Birth;

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
        self.announce(turn, self.identity.replica, birth);
        // Revisions behind those that are here may have been seen, also such of spaces behind this one.
        self.leap_or_stop(turn, Stride::Alone(birth));
        turn.effects.head_changed = true;
    }

    /// Ends the doubt once something can settle again. Then each member has acknowledged, under the lineage of this one, what each
    /// wrote first under it. So there was a moment at which all were of it, and nobody was left who knew more. That each was met
    /// would not do: one may have begun anew from another since, and that one have come back as a copy.
    pub(crate) fn end_doubt(&mut self, turn: &mut Turn) {
        // An older copy may know of no other member.
        let is_over = || self.membership.counting().len() > 1 && !self.membership.floor().is_empty();
        if self.membership.past == Past::Doubtful && is_over() {
            self.membership.past = Past::Known;
            turn.effects.head_changed = true;
        }
    }
}
