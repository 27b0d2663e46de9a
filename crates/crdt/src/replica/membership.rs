//! Changes of the membership, and what follows from changed system keys.

use bytes::Bytes;

use crate::command::member::Member;
use crate::command::notice::Notice;
use crate::command::reply::{Refusal, Reply};
use crate::entry::Change;
use crate::replica::Replica;
use crate::replica::members::{self, Members};
use crate::replica::turn::Turn;
use crate::store::system::{self, AnnouncedBirth, SystemKey};
use crate::words::id::{Birth, ReplicaId};

/// URLs sorted, as etcd keeps them.
fn sorted(mut urls: Vec<String>) -> Vec<String> {
    urls.sort_unstable();
    urls
}

impl Replica {
    pub(crate) fn member_add(
        &mut self,
        turn: &mut Turn,
        id: ReplicaId,
        peer_urls: Vec<String>,
        learner: bool,
    ) -> Result<Reply, Refusal> {
        match self.membership.members.get(id) {
            Some(member) if member.removed => return Err(Refusal::MemberRemoved),
            Some(_) => return Err(Refusal::MemberExists),
            None => {}
        }
        self.check_urls(None, &peer_urls)?;
        let ordinal = self.membership.members.free_ordinal().ok_or(Refusal::TooManyMembers)?;
        let value = system::member_value(&sorted(peer_urls), learner);
        // From here on everything is kept for the new member, its own addition first.
        self.open_up();
        self.transact(turn, |transaction| {
            transaction.write_system(SystemKey::Member(id), value);
            transaction.write_system(SystemKey::Ordinal(ordinal, id), Bytes::new());
        });
        self.members_changed(turn)
    }

    pub(crate) fn member_remove(&mut self, turn: &mut Turn, id: ReplicaId) -> Result<Reply, Refusal> {
        match self.membership.members.get(id) {
            None => return Err(Refusal::MemberNotFound),
            Some(member) if member.removed => return Err(Refusal::MemberRemoved),
            Some(_) => {}
        }
        if self.membership.members.iter().filter(|member| !member.removed).count() == 1 {
            return Err(Refusal::LastMember);
        }
        self.transact(turn, |transaction| transaction.write_system(SystemKey::Removed(id), Bytes::new()));
        self.members_changed(turn)
    }

    /// A member begins with a snapshot. Notes under which birth it goes on: the one that it drew, numbered behind all
    /// births of it that are known.
    pub(crate) fn announce_next(&mut self, turn: &mut Turn, member: ReplicaId, drawn: Birth) {
        let is_noted = |birth| matches!(birth, AnnouncedBirth::One(birth) if birth.is_drawn_as(drawn));
        if !self.membership.members.birth_of(member).is_some_and(is_noted) {
            let next = self.next_birth(member, drawn);
            self.announce(turn, member, next);
        }
    }

    /// The birth that a member drew, numbered behind all births of it that are known here.
    pub(crate) fn next_birth(&self, member: ReplicaId, drawn: Birth) -> Birth {
        let announced = match self.membership.members.birth_of(member) {
            Some(AnnouncedBirth::One(birth)) => Some(birth),
            Some(AnnouncedBirth::Contested) | None => None,
        };
        let own = (member == self.identity.replica && !self.membership.joining).then_some(self.identity.birth);
        let last = [announced, own, self.newest_birth_of(member)].into_iter().flatten().max();
        last.map_or(drawn, |last| drawn.behind(last))
    }

    /// The newest birth under which entries of a member are known.
    pub(crate) fn newest_birth_of(&self, member: ReplicaId) -> Option<Birth> {
        self.origins.vector.of(member).last().map(|dot| dot.origin.birth)
    }

    /// Notes under which birth a member goes on: settling waits until all know.
    pub(crate) fn announce(&mut self, turn: &mut Turn, member: ReplicaId, birth: Birth) {
        if self.membership.members.is_present(member)
            && self.membership.members.birth_of(member) != Some(AnnouncedBirth::One(birth))
        {
            let value = AnnouncedBirth::One(birth).encode();
            self.transact(turn, |transaction| transaction.write_system(SystemKey::Birth(member), value));
            self.set_members(Members::read(&self.state.system));
        }
    }

    pub(crate) fn member_update(
        &mut self,
        turn: &mut Turn,
        id: ReplicaId,
        peer_urls: Vec<String>,
    ) -> Result<Reply, Refusal> {
        let learner = self.present(id)?;
        self.check_urls(Some(id), &peer_urls)?;
        let value = system::member_value(&sorted(peer_urls), learner);
        self.transact(turn, |transaction| transaction.write_system(SystemKey::Member(id), value));
        self.members_changed(turn)
    }

    pub(crate) fn member_promote(&mut self, turn: &mut Turn, id: ReplicaId) -> Result<Reply, Refusal> {
        if !self.present(id)? {
            return Err(Refusal::MemberNotLearner);
        }
        let urls = self.membership.members.get(id).map(|member| member.peer_urls.clone()).unwrap_or_default();
        let value = system::member_value(&urls, false);
        self.transact(turn, |transaction| transaction.write_system(SystemKey::Member(id), value));
        self.members_changed(turn)
    }

    pub(crate) fn member_publish(
        &mut self,
        turn: &mut Turn,
        name: String,
        client_urls: Vec<String>,
    ) -> Result<Reply, Refusal> {
        let id = self.identity.replica;
        self.present(id)?;
        let client_urls = sorted(client_urls);
        let engine = Some(self.engine);
        let is_so = |m: &Member| m.name == name && m.client_urls == client_urls && m.engine == engine;
        if !self.membership.members.get(id).is_some_and(is_so) {
            let value = system::attributes_value(&name, &client_urls, engine);
            self.transact(turn, |transaction| transaction.write_system(SystemKey::Attributes(id), value));
        }
        self.members_changed(turn)
    }

    /// Whether the member is a learner.
    fn present(&self, id: ReplicaId) -> Result<bool, Refusal> {
        match self.membership.members.get(id) {
            None => Err(Refusal::MemberNotFound),
            Some(member) if member.removed => Err(Refusal::MemberRemoved),
            Some(member) => Ok(member.learner),
        }
    }

    fn check_urls(&self, except: Option<ReplicaId>, peer_urls: &[String]) -> Result<(), Refusal> {
        let others = self.membership.members.iter().filter(|member| !member.removed && Some(member.id) != except);
        let taken = others.flat_map(|member| &member.peer_urls).any(|url| peer_urls.contains(url));
        if taken { Err(Refusal::PeerUrlExists) } else { Ok(()) }
    }

    fn members_changed(&mut self, turn: &mut Turn) -> Result<Reply, Refusal> {
        self.read_members(turn);
        self.advance(turn);
        Ok(Reply::Members(self.membership.members.iter().filter(|member| !member.removed).cloned().collect()))
    }

    pub(crate) fn set_members(&mut self, members: Members) {
        self.state.shared = members.iter().nth(1).is_some();
        self.membership.members = members;
    }

    /// Brings up to date what is derived from these system keys.
    pub(crate) fn follow_system<'a>(&mut self, turn: &mut Turn, changes: impl Iterator<Item = &'a Change>) {
        let (mut members, mut users) = (false, false);
        for change in changes {
            let Some(key) = SystemKey::decode(&change.key) else { continue };
            members |= members::concerns(&key);
            let value = self.state.system.get(&change.key).map(|value| &value.value);
            match key {
                SystemKey::Lease(id) => match value.map(|value| (system::lease_ttl(value), system::lease_owner(value)))
                {
                    Some((ttl, owner)) => {
                        let (mine, ttl) = (owner == Some(self.identity.replica), ttl.unwrap_or_default());
                        // What another replica made of a lease that is kept alive here does not prolong it.
                        if !(mine && self.state.leases.is_kept_for(turn.now, id, ttl)) {
                            self.state.leases.grant(turn.now, id, ttl, mine);
                        }
                    }
                    None => self.state.leases.ended(turn.now, id),
                },
                SystemKey::Alarm(alarm) if value.is_some() => {
                    self.state.alarms.insert(alarm);
                }
                SystemKey::Alarm(alarm) => {
                    self.state.alarms.remove(&alarm);
                }
                SystemKey::Rules(_) | SystemKey::RulesUp(_) => self.follow_rules(&change.key),
                SystemKey::Auth(_) => users = true,
                _ => {}
            }
        }
        if users {
            self.read_users();
        }
        if members {
            self.read_members(turn);
        }
    }

    /// Reads the members anew, and does what their change asks of this one.
    pub(crate) fn read_members(&mut self, turn: &mut Turn) {
        let id = self.identity.replica;
        let was_removed = self.membership.members.is_removed(id);
        self.set_members(Members::read(&self.state.system));
        if self.membership.members.is_removed(id) {
            if !was_removed {
                turn.effects.notices.push(Notice::Removed);
            }
            return;
        }
        if self.membership.counting() != [id] && !self.membership.members.is_empty() {
            self.open_up();
        }
        if self.membership.joining {
            return;
        }
        if self.membership.members.birth_of(id).is_some_and(|birth| birth != AnnouncedBirth::One(self.identity.birth)) {
            // A member announced it that had not heard of this birth.
            self.announce(turn, id, self.identity.birth);
        }
        if self.membership.members.announced_space(id).is_some() {
            // Of two lives of a member, the older one may have announced its space later.
            self.announce_space(turn);
        }
        let Some(member) = self.membership.members.get(id) else { return };
        if member.engine.is_some_and(|engine| engine != self.engine) {
            // Another life of it ran another build.
            let value = system::attributes_value(&member.name, &member.client_urls, Some(self.engine));
            self.transact(turn, |transaction| transaction.write_system(SystemKey::Attributes(id), value));
            self.set_members(Members::read(&self.state.system));
        }
        let Some(member) = self.membership.members.get(id) else { return };
        match member.ordinal {
            Some(ordinal) if ordinal == self.identity.ordinal => {}
            Some(ordinal) => self.take_ordinal(turn, ordinal),
            None => {
                // Another member with a smaller id has it: revisions of both would be mistaken for each other's.
                let Some(ordinal) = self.membership.members.free_ordinal() else { return };
                self.transact(turn, |transaction| {
                    transaction.write_system(SystemKey::Ordinal(ordinal, id), Bytes::new())
                });
                self.set_members(Members::read(&self.state.system));
                self.take_ordinal(turn, ordinal);
            }
        }
    }
}
