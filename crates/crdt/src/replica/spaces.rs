//! Revision spaces: leaps to another one of this replica's own, with everything before compacted, and what happens when
//! there is none left.
//!
//! No revision that clients may have seen is used again, also not by the same member after its disk was lost or put
//! back. A replica that was always there moves on by one generation, since it knows how far it came. One that may not know
//! all that it was moves on by a number of generations that its birth decides. Two lives of a member that know the same
//! then hardly ever meet in one space.

use crate::command::notice::Notice;
use crate::command::op::{Refusal, Reply};
use crate::replica::Replica;
use crate::replica::members::Members;
use crate::replica::turn::Turn;
use crate::store::system;
use crate::store::system::SystemKey;
use crate::words::id::Birth;
use crate::words::revision::{COUNTER_BITS, Revision, SPACES};

/// The spaces that fit into etcd's signed revisions.
const SPACES_MAX: u64 = 1 << (63 - COUNTER_BITS);

/// The replica leaves a space this many revisions before its last one. An entry takes at most two, and one more if it
/// let keys of a living lease run out.
const RESERVE: u64 = 8;

/// How many generations nobody jumps to: another life of the member may have leapt to them, one by one.
const SKIPPED: u64 = 8;

/// Among how many generations the birth decides where a replica begins from what another member has. That member seldom
/// knows less of it than all. So few are enough, and losing disks uses up few.
const CHOICES_JOINING: u64 = 64;

/// The same where a replica can ask nobody how far it came: it founds its cluster on an empty disk, or doubts its disk.
const CHOICES_ALONE: u64 = 1024;

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
        let next = self.membership.members.next_space(self.identity.ordinal, self.state.revision);
        let space = next.saturating_add((stride.generations() - 1) * SPACES);
        if space >= SPACES_MAX {
            return Err(Refusal::SpacesExhausted);
        }
        let first = Revision::first_in(space);
        self.state.leap(first);
        turn.effects.head_changed = true;
        turn.effects.leapt = true;
        self.announce_space(turn);
        Ok(Reply::Leap { revision: first })
    }

    /// The same for a replica that must not go on in its present space. If there is no other, the present one counts as
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
        if self.state.revision.counter() + RESERVE < 1 << COUNTER_BITS {
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use bytes::Bytes;

    use super::*;
    use crate::boot::genesis::{Founder, Genesis};
    use crate::command::op::{Command, DeleteOp, PutLease, PutOp, PutValue};
    use crate::replica::turn::{Effects, Input};
    use crate::words::clock::Now;
    use crate::words::id::{ClusterId, Identity, LeaseId, ReplicaId};
    use crate::words::key::{Key, KeyRange};

    const OWN: ReplicaId = ReplicaId::new(1);
    const OTHER: ReplicaId = ReplicaId::new(2);

    fn founder(replica: ReplicaId, birth: u64) -> Replica {
        let founder = |id| Founder { id, name: String::new(), peer_urls: vec![] };
        let genesis = Genesis { founders: vec![founder(OWN), founder(OTHER)], ..Genesis::default() };
        let identity = Identity { cluster: ClusterId::new(1), replica, birth: Birth::new(birth), ordinal: 0 };
        Replica::found(identity, &genesis).0
    }

    fn run(replica: &mut Replica, command: Command) -> Effects {
        replica.handle(Now::default(), Input::Client(command))
    }

    fn put(key: &'static str, lease: Option<i64>) -> Command {
        let (key, value) = (Key::from_static(key.as_bytes()), PutValue::Set(Bytes::from_static(b"v")));
        Command::Put(PutOp { key, value, lease: PutLease::Set(lease.map(LeaseId::new)), prev_kv: false })
    }

    fn delete(key: &'static str) -> Command {
        Command::Delete(DeleteOp { range: KeyRange::Key(Key::from_static(key.as_bytes())), prev_kv: false })
    }

    /// A founder that knows that another member has used the last space of all.
    fn at_the_end() -> Replica {
        let mut replica = founder(OWN, 1);
        let mut turn = Turn::new(Now::default());
        let last = system::space_value(SPACES_MAX - 1);
        replica.transact(&mut turn, |transaction| transaction.write_system(SystemKey::Space(OTHER), last));
        replica.read_members(&mut turn);
        replica
    }

    /// The space of a founder is no more than one generation in 1,024 of those that another life of it took.
    #[test]
    fn founders_that_know_nothing_of_each_other_share_no_space() {
        let spaces: BTreeSet<u64> = (0..CHOICES_ALONE).map(|birth| founder(OTHER, birth).revision().space()).collect();
        assert_eq!(spaces.len() as u64, CHOICES_ALONE);
        assert!(spaces.iter().all(|space| space % SPACES == 1 && *space > SPACES));
    }

    #[test]
    fn what_a_founder_counts_in_is_announced_with_its_first_write() {
        let mut replica = founder(OTHER, 7);
        assert_eq!(replica.membership.members.announced_space(OTHER), None);
        run(&mut replica, put("k", None));
        assert_eq!(replica.membership.members.announced_space(OTHER), Some(replica.revision().space()));
        let entries = replica.vector().get(replica.identity().origin());
        run(&mut replica, put("k", None));
        assert_eq!(replica.vector().get(replica.identity().origin()), entries + 1);
    }

    #[test]
    fn without_another_space_all_that_takes_a_revision_is_refused_when_the_last_is_full() {
        let mut replica = at_the_end();
        assert_eq!(run(&mut replica, Command::Leap).reply, Some(Err(Refusal::SpacesExhausted)));
        run(&mut replica, Command::LeaseGrant { id: LeaseId::new(5), ttl: 1 });
        assert!(run(&mut replica, put("leased", Some(5))).reply.is_some_and(|reply| reply.is_ok()));
        let space = replica.revision().space();
        replica.state.leap(Revision::new(Revision::last_in(space).get() - 20));
        let mut taken = BTreeSet::new();
        let refused = loop {
            assert!(!replica.is_out_of_spaces());
            let effects = run(&mut replica, put("k", None));
            match &effects.reply {
                Some(Ok(Reply::Put(_))) => assert!(taken.insert(replica.revision().get()) && taken.len() < 20),
                _ => break effects,
            }
            assert!(effects.notices.is_empty() || replica.is_out_of_spaces());
            if replica.is_out_of_spaces() {
                break run(&mut replica, put("k", None));
            }
        };
        assert_eq!(
            (refused.reply, refused.notices),
            (Some(Err(Refusal::SpacesExhausted)), vec![Notice::SpacesExhausted])
        );
        assert!(taken.len() > 10 && replica.revision().space() == space);
        let last = replica.revision();
        for command in [delete("k"), put("leased", None), Command::LeaseRevoke(LeaseId::new(5)), Command::Leap] {
            let effects = run(&mut replica, command);
            assert_eq!(effects.reply, Some(Err(Refusal::SpacesExhausted)));
            assert!(effects.records.is_empty() && effects.commits.is_empty());
        }
        // What takes no revision goes on; a lease that ran out waits with its keys.
        assert!(replica.handle(Now { wall_ms: 0, mono_ms: 1 << 40 }, Input::Tick).commits.is_empty());
        assert!(
            run(&mut replica, Command::LeaseGrant { id: LeaseId::new(6), ttl: 1 }).reply.is_some_and(|r| r.is_ok())
        );
        assert!(run(&mut replica, Command::Compact(last.get())).reply.is_some_and(|reply| reply.is_ok()));
        assert_eq!((replica.revision(), replica.live_keys()), (last, 2));
    }

    #[test]
    fn entries_of_others_are_refused_as_well_when_the_last_space_is_full() {
        let (mut replica, mut other) = (at_the_end(), founder(OTHER, 1));
        let space = replica.revision().space();
        replica.state.leap(Revision::last_in(space));
        run(&mut other, put("k", None));
        let entries = other.entries_for(replica.vector(), other.vector(), usize::MAX).expect("a log");
        let entries: Vec<_> = entries.iter().map(|entry| (**entry).clone()).collect();
        let (births, before) = ([other.identity().birth].into(), replica.vector().clone());
        let effects = replica.handle(Now::default(), Input::Entries { from: OTHER, births, entries });
        assert_eq!(effects.notices, [Notice::SpacesExhausted]);
        assert_eq!((replica.vector(), replica.revision().space()), (&before, space));
    }

    /// It dropped the error of the leap, and went on in a space that another life of it, or another member, counts in.
    #[test]
    fn who_must_leave_its_space_and_has_no_other_stops() {
        for doubts in [true, false] {
            let mut replica = at_the_end();
            let mut turn = Turn::new(Now::default());
            match doubts {
                true => replica.doubt(&mut turn, Birth::new(9)),
                false => replica.take_ordinal(&mut turn, 7),
            }
            assert!(turn.effects.notices.contains(&Notice::SpacesExhausted) && replica.is_out_of_spaces());
            let refused = run(&mut replica, put("k", None));
            assert_eq!((refused.reply, refused.records.len()), (Some(Err(Refusal::SpacesExhausted)), 0));
        }
    }
}
