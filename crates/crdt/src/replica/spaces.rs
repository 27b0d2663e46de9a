//! Revision spaces: leaps to another one of this replica's own, with everything before compacted, and what happens when
//! there is none left.
//!
//! No revision that clients may have seen is used again, also not by the same member after its disk was lost or put
//! back. A replica that was always there moves on by one generation, since it knows how far it came. One that may not know
//! all that it was moves on by a number of generations that its birth decides. Two lives of a member that know the same
//! then hardly ever meet in one space.

use crate::command::notice::Notice;
use crate::command::reply::{Refusal, Reply};
use crate::replica::Replica;
use crate::replica::members::Members;
use crate::replica::turn::Turn;
use crate::store::system;
use crate::store::system::SystemKey;
use crate::words::id::Birth;
use crate::words::revision::{COUNTER_BITS, Revision, SPACES};

/// The spaces that fit into etcd's signed revisions.
pub(crate) const SPACES_MAX: u64 = 1 << (63 - COUNTER_BITS);

/// The replica leaves a space this many revisions before its last one. An entry takes at most two, and one more if it
/// let keys of a living lease run out. A step of several entries takes two for each of its changes, which must fit in front of these.
const RESERVE: u64 = 8;

/// How many generations nobody jumps to: another life of the member may have leapt to them, one by one.
const SKIPPED: u64 = 8;

/// Among how many generations the birth decides where a replica begins from what another member has. That member seldom
/// knows less of it than all. So few are enough, and losing disks uses up few.
const CHOICES_JOINING: u64 = 64;

/// The same where a replica can ask nobody how far it came: it founds its cluster on an empty disk, or doubts its disk.
pub(crate) const CHOICES_ALONE: u64 = 1024;

/// How far a replica moves on, in generations: in spaces that are its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stride {
    /// To the next one: it knows all that it was.
    Next,
    /// It can ask nobody what it was before this birth.
    Alone(Birth),
    /// It was told by another member, which may not know all.
    Joining(Birth),
}

impl Stride {
    /// How many generations that are.
    fn generations(self) -> u64 {
        match self {
            Self::Next => 1,
            Self::Joining(birth) => SKIPPED + 1 + birth.get() % CHOICES_JOINING,
            // Behind all that one that joins comes to.
            Self::Alone(birth) => SKIPPED + 1 + CHOICES_JOINING + birth.get() % CHOICES_ALONE,
        }
    }
}

/// The space in which a founder of a cluster of several begins. A single one begins in the first, and counts as etcd does.
pub(crate) fn first_space(ordinal: u16, birth: Birth, founders: usize) -> u64 {
    let generation = if founders > 1 { Stride::Alone(birth).generations() } else { 0 };
    generation * SPACES + u64::from(ordinal)
}

impl Replica {
    /// Moves to a space of its own above every revision that any member is known to have used. Everything before counts
    /// as compacted.
    pub(crate) fn leap(&mut self, turn: &mut Turn, stride: Stride) -> Result<Reply, Refusal> {
        let first = self.enter_space(stride)?;
        turn.effects.head_changed = true;
        turn.effects.leapt = true;
        self.announce_space(turn);
        Ok(Reply::Leap { revision: first })
    }

    /// The same before there is anyone to tell.
    pub(crate) fn enter_space(&mut self, stride: Stride) -> Result<Revision, Refusal> {
        let next = self.membership.members.next_space(self.identity.ordinal, self.state.revision);
        let space = next.saturating_add((stride.generations() - 1) * SPACES);
        if space >= SPACES_MAX {
            return Err(Refusal::SpacesExhausted);
        }
        let first = Revision::first_in(space);
        self.state.leap(first);
        Ok(first)
    }

    /// Leaps as a replica that must not go on in its present space. If there is no other, the present one counts as
    /// full, so nothing is written any more.
    pub(crate) fn leap_or_stop(&mut self, turn: &mut Turn, stride: Stride) {
        if self.leap(turn, stride).is_err() {
            self.state.leap(Revision::last_in(self.state.revision.space()));
            turn.effects.head_changed = true;
            turn.effects.leapt = true;
            turn.effects.notices.push(Notice::SpacesExhausted);
        }
    }

    /// The space that this replica has come to, unless the others are told already of it or of a higher one. The first of
    /// an ordinal needs no telling.
    pub(crate) fn unannounced_space(&self) -> Option<u64> {
        let (id, space) = (self.identity.replica, self.state.revision.space());
        let members = &self.membership.members;
        let is_known = space < SPACES || members.announced_space(id).is_some_and(|announced| announced >= space);
        (members.get(id).is_some() && !is_known).then_some(space)
    }

    /// Tells the others which space this replica has come to.
    pub(crate) fn announce_space(&mut self, turn: &mut Turn) {
        let Some(space) = self.unannounced_space() else { return };
        let (id, stamp) = (self.identity.replica, self.clock.tick(turn.now));
        self.transact_at(turn, stamp, |transaction| {
            transaction.write_system(SystemKey::Space(id), system::space_value(space))
        });
        self.set_members(Members::read(&self.state.system));
    }

    /// Leaps when the present space is full. What takes a revision must ask this first.
    ///
    /// # Errors
    /// When there is no space to go on in. Then nothing may take a revision any more.
    pub(crate) fn leave_full_space(&mut self, turn: &mut Turn) -> Result<(), Refusal> {
        self.make_room(turn, 0)
    }

    /// The same before so many revisions are taken at once, and a few more.
    ///
    /// # Errors
    /// As [`Self::leave_full_space`].
    pub(crate) fn make_room(&mut self, turn: &mut Turn, revisions: u64) -> Result<(), Refusal> {
        if self.state.revision.counter().saturating_add(revisions).saturating_add(RESERVE) < 1 << COUNTER_BITS {
            return Ok(());
        }
        let left = self.leap(turn, Stride::Next);
        if left.is_err() {
            turn.effects.notices.push(Notice::SpacesExhausted);
        }
        left.map(drop)
    }

    /// Whether the present space is full and there is none to go on in: nothing that takes a revision is done.
    pub fn is_out_of_spaces(&self) -> bool {
        self.state.revision.counter() + RESERVE >= 1 << COUNTER_BITS
            && self.membership.members.next_space(self.identity.ordinal, self.state.revision) >= SPACES_MAX
    }

    /// Moves to the spaces of another ordinal, and shows all keys as written there. The revisions that they showed
    /// before belong to another member now.
    pub(crate) fn take_ordinal(&mut self, turn: &mut Turn, ordinal: u16) {
        self.identity.ordinal = ordinal;
        turn.effects.notices.push(Notice::OrdinalChanged { ordinal });
        self.leap_or_stop(turn, Stride::Next);
        self.state.restamp();
    }
}
