//! The members of the cluster, as the system keys say.

use std::collections::{BTreeMap, BTreeSet};

use prost::Message;

use crate::command::member::Member;
use crate::entry::Past;
use crate::replica::acks::Acks;
use crate::replica::heard::Heard;
use crate::store::system::{AnnouncedBirth, AttributesValue, MemberValue, SpaceValue, System, SystemKey};
use crate::words::id::{Dot, Origin, ReplicaId};
use crate::words::revision::{Revision, SPACES};
use crate::words::vector::VersionVector;

/// Whether the members depend on a system key.
pub fn concerns(key: &SystemKey) -> bool {
    !matches!(key, SystemKey::Lease(_) | SystemKey::Alarm(_) | SystemKey::Auth(_))
}

/// The members of the cluster, and what they have on disk.
#[derive(Debug)]
pub(crate) struct Membership {
    /// The members.
    pub(crate) members: Members,
    /// What members have on disk.
    pub(crate) acks: Acks,
    /// Whether a snapshot is being installed: until it is, this member writes nothing.
    pub(crate) joining: bool,
    /// Whether peers may know more of this replica than it does.
    pub(crate) past: Past,
    /// Which copy of a disk its state goes back to, named by the birth under which that was first doubted. What goes back to two of
    /// them does not fit together: what one let go of, the other may never have had. `None`: all goes back to what was never doubted.
    pub(crate) lineage: Option<Origin>,
    /// What members are known to have written.
    pub(crate) heard: Heard,
    /// How many births of each member that are over are known still.
    pub(crate) kept_births: usize,
}

impl Default for Membership {
    fn default() -> Self {
        Self {
            members: Members::default(),
            acks: Acks::default(),
            joining: false,
            past: Past::default(),
            lineage: None,
            heard: Heard::default(),
            kept_births: KEPT_BIRTHS,
        }
    }
}

/// How many births of each member that are over are known still. The newest of them are: a copy of a disk that comes
/// back is most likely one of theirs, and what only it has is told from what all have by the names of its entries.
const KEPT_BIRTHS: usize = 4;

impl Membership {
    /// The members whose acknowledgements settling waits for.
    pub(crate) fn counting(&self) -> Vec<ReplicaId> {
        self.members.counting(&self.acks)
    }

    /// What all of these are known to have.
    pub(crate) fn floor(&self) -> VersionVector {
        self.members.floor(&self.acks)
    }
}

/// The members, read from the system keys.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Members {
    members: BTreeMap<ReplicaId, Member>,
    /// The removed members, each with the entry that removed it.
    removals: BTreeMap<ReplicaId, Dot>,
    /// Every use of an ordinal.
    ordinals: BTreeSet<(u16, ReplicaId)>,
    /// Births that were announced.
    births: BTreeMap<ReplicaId, AnnouncedBirth>,
    /// The spaces that members came to, as they announced.
    spaces: BTreeMap<ReplicaId, u64>,
    highest_space: u64,
}

impl Members {
    /// Reads the system keys.
    pub fn read(system: &System) -> Self {
        let mut read = Self::default();
        for (key, value) in system {
            match SystemKey::decode(key) {
                Some(SystemKey::Member(id)) => {
                    let value = MemberValue::decode(&value.value[..]).unwrap_or_default();
                    let member = read.member(id);
                    (member.peer_urls, member.learner) = (value.peer_urls, value.learner);
                }
                Some(SystemKey::Attributes(id)) => {
                    let value = AttributesValue::decode(&value.value[..]).unwrap_or_default();
                    let member = read.member(id);
                    (member.name, member.client_urls, member.engine) = (value.name, value.client_urls, value.engine);
                }
                Some(SystemKey::Removed(id)) => {
                    read.member(id).removed = true;
                    read.removals.insert(id, value.incarnation.dot);
                }
                Some(SystemKey::Ordinal(ordinal, id)) => {
                    read.ordinals.insert((ordinal, id));
                    read.highest_space = read.highest_space.max(ordinal.into());
                }
                Some(SystemKey::Space(id)) => {
                    let space = SpaceValue::decode(&value.value[..]).unwrap_or_default().space;
                    read.spaces.insert(id, space);
                    read.highest_space = read.highest_space.max(space);
                }
                Some(SystemKey::Birth(id)) => {
                    read.births.insert(id, AnnouncedBirth::decode(&value.value));
                }
                Some(
                    SystemKey::Lease(_)
                    | SystemKey::Alarm(_)
                    | SystemKey::Rules(_)
                    | SystemKey::RulesUp(_)
                    | SystemKey::Auth(_),
                )
                | None => {}
            }
        }
        // Of two that use the same ordinal the one with the smaller id keeps it.
        let mut taken = BTreeSet::new();
        for (ordinal, id) in &read.ordinals {
            if taken.insert(*ordinal)
                && let Some(member) = read.members.get_mut(id)
            {
                member.ordinal.get_or_insert(*ordinal);
            }
        }
        read
    }

    fn member(&mut self, id: ReplicaId) -> &mut Member {
        self.members.entry(id).or_insert_with(|| Member {
            id,
            name: String::new(),
            peer_urls: vec![],
            client_urls: vec![],
            ordinal: None,
            learner: false,
            engine: None,
            removed: false,
        })
    }

    /// All members, also those that were removed, in order of id.
    pub fn iter(&self) -> impl Iterator<Item = &Member> {
        self.members.values()
    }

    /// A member, or one that was.
    pub fn get(&self, id: ReplicaId) -> Option<&Member> {
        self.members.get(&id)
    }

    /// Whether that one is a member now.
    pub fn is_present(&self, id: ReplicaId) -> bool {
        self.get(id).is_some_and(|member| !member.removed)
    }

    /// Whether that one was removed.
    pub fn is_removed(&self, id: ReplicaId) -> bool {
        self.removals.contains_key(&id)
    }

    /// The newest merge engine that all present members have; `None` while one of them has not said.
    pub fn engine_of_all(&self) -> Option<u32> {
        let present = self.members.values().filter(|member| !member.removed);
        present.map(|member| member.engine).min().flatten()
    }

    /// The entry that removed that one.
    pub fn removal_of(&self, id: ReplicaId) -> Option<Dot> {
        self.removals.get(&id).copied()
    }

    /// Whether no members are known: a replica that has joined none yet.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// The lowest ordinal that nobody uses or ever used.
    pub fn free_ordinal(&self) -> Option<u16> {
        let used: BTreeSet<u16> = self.ordinals.iter().map(|(ordinal, _)| *ordinal).collect();
        (0..SPACES as u16).find(|ordinal| !used.contains(ordinal))
    }

    /// The lowest space of that ordinal above every one that any member is known to have used, and above `than`.
    pub fn next_space(&self, ordinal: u16, than: Revision) -> u64 {
        let above = self.highest_space.max(than.space());
        let ordinal = u64::from(ordinal);
        if ordinal > above {
            return ordinal;
        }
        // A space that another member made up may be any number: then this is one that is refused, never a low one.
        ((above - ordinal) / SPACES + 1).saturating_mul(SPACES).saturating_add(ordinal)
    }

    /// The space that a member came to, if it was announced. The first of its ordinal never is.
    pub fn announced_space(&self, id: ReplicaId) -> Option<u64> {
        self.spaces.get(&id).copied()
    }

    /// The members whose acknowledgements settling waits for. All present members count. A removed member counts until
    /// every present one has acknowledged its removal: the others may still take its entries. As long as such a one
    /// counts, so does a removed member whose removal it has not acknowledged: it may have taken that one's entries.
    pub fn counting(&self, acks: &Acks) -> Vec<ReplicaId> {
        let knows =
            |id: ReplicaId, removal: Dot| acks.of(id, self.birth_of(id)).is_some_and(|ack| ack.contains(removal));
        let mut counting: Vec<ReplicaId> =
            self.members.values().filter(|member| !member.removed).map(|member| member.id).collect();
        for _ in 0..2 {
            let is_known = |removal: Dot| counting.iter().all(|id| knows(*id, removal));
            let waiting = self.removals.iter().filter(|(id, removal)| !counting.contains(id) && !is_known(**removal));
            let waiting: Vec<ReplicaId> = waiting.map(|(id, _)| *id).collect();
            counting.extend(waiting);
        }
        counting
    }

    /// What every member is known to have on disk, of those whose acknowledgements settling waits for. It is nothing
    /// while a member has a new birth that not all are known to have heard of. Under the old birth that member may have
    /// told somebody what it has lost since. What it told then is not above what it acknowledges now.
    pub fn floor(&self, acks: &Acks) -> VersionVector {
        let counting = self.counting(acks);
        let heard_of = |(id, birth): (&ReplicaId, &AnnouncedBirth)| {
            let AnnouncedBirth::One(birth) = *birth else { return false };
            let origin = Origin { replica: *id, birth };
            counting.iter().all(|id| acks.of(*id, self.birth_of(*id)).is_some_and(|ack| ack.get(origin) > 0))
        };
        if !self.births.iter().filter(|(id, _)| self.is_present(**id)).all(heard_of) {
            return VersionVector::default();
        }
        acks.floor(counting.into_iter().map(|id| (id, self.birth_of(id))))
    }

    /// The birth under which a member goes on, if it was announced: a first one need not be.
    pub fn birth_of(&self, id: ReplicaId) -> Option<AnnouncedBirth> {
        self.births.get(&id).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_space_that_a_member_made_up_leads_to_no_lower_one() {
        let members = |highest_space| Members { highest_space, ..Members::default() };
        assert_eq!(members(3).next_space(3, Revision::FIRST), SPACES + 3);
        assert_eq!(members(2).next_space(3, Revision::FIRST), 3);
        for made_up in [u64::MAX, u64::MAX - SPACES, 1 << 63] {
            assert!(members(made_up).next_space(3, Revision::FIRST) >= made_up - SPACES, "{made_up}");
        }
    }
}
