//! Leaps: to another revision space of this replica's own, with everything before it compacted.

use crate::command::notice::Notice;
use crate::command::op::{Refusal, Reply};
use crate::replica::members;
use crate::replica::{Effects, Replica};
use crate::store::history::History;
use crate::store::system::SystemKey;
use crate::words::clock::Now;
use crate::words::revision::{COUNTER_BITS, Revision};

/// The spaces that fit into etcd's signed revisions.
const SPACES_MAX: u64 = 1 << (63 - COUNTER_BITS);

/// A space is left so many revisions before its last one: one entry takes at most two.
const RESERVE: u64 = 4;

impl Replica {
    /// Moves to the next space of its own above every revision that any member is known to have used. Everything before
    /// counts as compacted.
    pub(crate) fn leap(&mut self, now: Now, effects: &mut Effects) -> Result<Reply, Refusal> {
        let space = self.members.next_space(self.identity.ordinal, self.revision);
        if space >= SPACES_MAX {
            return Err(Refusal::SpacesExhausted);
        }
        let first = Revision::first_in(space);
        let history = std::mem::replace(&mut self.history, History::starting_at(first.next()));
        self.retired.extend(history.into_keys());
        self.revision = first;
        self.state.compacted = first;
        effects.head_changed = true;
        effects.leapt = true;
        let id = self.identity.replica;
        if self.members.get(id).is_some() {
            self.draft(now, effects, |draft| draft.write_system(SystemKey::Space(id), members::space_value(space)));
            self.set_members(members::Members::read(&self.state.system));
        }
        Ok(Reply::Leap { revision: first })
    }

    /// Leaps when the counter of the present space is full.
    pub(crate) fn leave_full_space(&mut self, now: Now, effects: &mut Effects) {
        if self.revision.counter() + RESERVE >= 1 << COUNTER_BITS {
            // When even the spaces are used up, revisions go on counting: into a space that nobody else can own either.
            drop(self.leap(now, effects));
        }
    }

    /// Moves to the spaces of another ordinal, and shows all keys as written there: what they showed before is the other's
    /// who has the ordinal now.
    pub(crate) fn take_ordinal(&mut self, now: Now, ordinal: u16, effects: &mut Effects) {
        self.identity.ordinal = ordinal;
        effects.notices.push(Notice::OrdinalChanged { ordinal });
        if self.leap(now, effects).is_ok() {
            self.restamp();
        }
    }

    /// Shows every key as created and written at the first revision of the present space.
    pub(crate) fn restamp(&mut self) {
        let first = Revision::first_in(self.revision.space());
        let dead = &mut self.state.dead;
        self.state.index.compact_all(first, |number, tombstone| dead.add(number, tombstone));
        self.state.index.restamp(first);
        self.retired.clear();
        self.restamped = Some(first);
        self.swept = self.state.compacted;
    }
}
