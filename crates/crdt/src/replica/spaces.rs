//! Leaps: to another revision space of this replica's own, with everything before it compacted.

use crate::command::notice::Notice;
use crate::command::op::{Refusal, Reply};
use crate::replica::Replica;
use crate::replica::members::Members;
use crate::replica::turn::Turn;
use crate::store::system;
use crate::store::system::SystemKey;
use crate::words::revision::{COUNTER_BITS, Revision};

/// The spaces that fit into etcd's signed revisions.
const SPACES_MAX: u64 = 1 << (63 - COUNTER_BITS);

/// The replica leaves a space this many revisions before its last one: one entry takes at most two.
const RESERVE: u64 = 4;

impl Replica {
    /// Moves to the next space of its own above every revision that any member is known to have used. Everything before
    /// counts as compacted.
    pub(crate) fn leap(&mut self, turn: &mut Turn) -> Result<Reply, Refusal> {
        let space = self.membership.members.next_space(self.identity.ordinal, self.state.revision);
        if space >= SPACES_MAX {
            return Err(Refusal::SpacesExhausted);
        }
        let first = Revision::first_in(space);
        self.state.leap(first);
        turn.effects.head_changed = true;
        turn.effects.leapt = true;
        let id = self.identity.replica;
        if self.membership.members.get(id).is_some() {
            self.transact(turn, |transaction| {
                transaction.write_system(SystemKey::Space(id), system::space_value(space))
            });
            self.set_members(Members::read(&self.state.system));
        }
        Ok(Reply::Leap { revision: first })
    }

    /// Leaps when the counter of the present space is full.
    pub(crate) fn leave_full_space(&mut self, turn: &mut Turn) {
        if self.state.revision.counter() + RESERVE >= 1 << COUNTER_BITS {
            // When all spaces are used up, revisions count on into a space that no other member can own either.
            drop(self.leap(turn));
        }
    }

    /// Moves to the spaces of another ordinal, and shows all keys as written there. The revisions that they showed
    /// before belong to another member now.
    pub(crate) fn take_ordinal(&mut self, turn: &mut Turn, ordinal: u16) {
        self.identity.ordinal = ordinal;
        turn.effects.notices.push(Notice::OrdinalChanged { ordinal });
        if self.leap(turn).is_ok() {
            self.state.restamp();
        }
    }
}
