//! Changes of the membership, and what follows from changed system keys.

use bytes::Bytes;

use crate::command::notice::Notice;
use crate::command::op::{Refusal, Reply};
use crate::entry::Change;
use crate::merge::rules::Rules;
use crate::replica::members::{self, Members};
use crate::replica::{Effects, Replica};
use crate::store::system::{self, SystemKey};
use crate::words::clock::Now;
use crate::words::id::{Birth, ReplicaId};

/// URLs sorted, as etcd keeps them.
fn sorted(mut urls: Vec<String>) -> Vec<String> {
    urls.sort_unstable();
    urls
}

impl Replica {
    pub(crate) fn member_add(
        &mut self,
        now: Now,
        id: ReplicaId,
        peer_urls: Vec<String>,
        learner: bool,
        effects: &mut Effects,
    ) -> Result<Reply, Refusal> {
        match self.members.get(id) {
            Some(member) if member.removed => return Err(Refusal::MemberRemoved),
            Some(_) => return Err(Refusal::MemberExists),
            None => {}
        }
        self.check_urls(None, &peer_urls)?;
        let ordinal = self.members.free_ordinal().ok_or(Refusal::TooManyMembers)?;
        let value = members::member_value(&sorted(peer_urls), learner);
        // From here on everything is kept for the new member, its own addition first.
        self.open_up();
        self.draft(now, effects, |draft| {
            draft.write_system(SystemKey::Member(id), value);
            draft.write_system(SystemKey::Ordinal(ordinal, id), Bytes::new());
        });
        self.members_changed(now, effects)
    }

    pub(crate) fn member_remove(&mut self, now: Now, id: ReplicaId, effects: &mut Effects) -> Result<Reply, Refusal> {
        match self.members.get(id) {
            None => return Err(Refusal::MemberNotFound),
            Some(member) if member.removed => return Err(Refusal::MemberRemoved),
            Some(_) => {}
        }
        if self.members.iter().filter(|member| !member.removed).count() == 1 {
            return Err(Refusal::LastMember);
        }
        self.draft(now, effects, |draft| draft.write_system(SystemKey::Removed(id), Bytes::new()));
        self.members_changed(now, effects)
    }

    /// Notes under which birth a member goes on: settling waits until all know.
    pub(crate) fn announce(&mut self, now: Now, member: ReplicaId, birth: Birth, effects: &mut Effects) {
        if self.members.is_present(member) && self.members.birth_of(member) != Some(birth) {
            let value = members::birth_value(birth);
            self.draft(now, effects, |draft| draft.write_system(SystemKey::Birth(member), value));
            self.set_members(Members::read(&self.state.system));
        }
    }

    pub(crate) fn member_update(
        &mut self,
        now: Now,
        id: ReplicaId,
        peer_urls: Vec<String>,
        effects: &mut Effects,
    ) -> Result<Reply, Refusal> {
        let learner = self.present(id)?;
        self.check_urls(Some(id), &peer_urls)?;
        let value = members::member_value(&sorted(peer_urls), learner);
        self.draft(now, effects, |draft| draft.write_system(SystemKey::Member(id), value));
        self.members_changed(now, effects)
    }

    pub(crate) fn member_promote(&mut self, now: Now, id: ReplicaId, effects: &mut Effects) -> Result<Reply, Refusal> {
        if !self.present(id)? {
            return Err(Refusal::MemberNotLearner);
        }
        let urls = self.members.get(id).map(|member| member.peer_urls.clone()).unwrap_or_default();
        let value = members::member_value(&urls, false);
        self.draft(now, effects, |draft| draft.write_system(SystemKey::Member(id), value));
        self.members_changed(now, effects)
    }

    pub(crate) fn member_publish(
        &mut self,
        now: Now,
        name: String,
        client_urls: Vec<String>,
        effects: &mut Effects,
    ) -> Result<Reply, Refusal> {
        let id = self.identity.replica;
        self.present(id)?;
        let client_urls = sorted(client_urls);
        let published = self.members.get(id).is_some_and(|m| m.name == name && m.client_urls == client_urls);
        if !published {
            let value = members::attributes_value(&name, &client_urls);
            self.draft(now, effects, |draft| draft.write_system(SystemKey::Attributes(id), value));
        }
        self.members_changed(now, effects)
    }

    /// Whether the member is a learner.
    fn present(&self, id: ReplicaId) -> Result<bool, Refusal> {
        match self.members.get(id) {
            None => Err(Refusal::MemberNotFound),
            Some(member) if member.removed => Err(Refusal::MemberRemoved),
            Some(member) => Ok(member.learner),
        }
    }

    fn check_urls(&self, except: Option<ReplicaId>, peer_urls: &[String]) -> Result<(), Refusal> {
        let others = self.members.iter().filter(|member| !member.removed && Some(member.id) != except);
        let taken = others.flat_map(|member| &member.peer_urls).any(|url| peer_urls.contains(url));
        if taken { Err(Refusal::PeerUrlExists) } else { Ok(()) }
    }

    fn members_changed(&mut self, now: Now, effects: &mut Effects) -> Result<Reply, Refusal> {
        self.read_members(now, effects);
        self.advance(now, effects);
        Ok(Reply::Members(self.members.iter().filter(|member| !member.removed).cloned().collect()))
    }

    pub(crate) fn set_members(&mut self, members: Members) {
        self.state.shared = members.iter().nth(1).is_some();
        self.members = members;
    }

    /// Brings up to date what is derived from these system keys.
    pub(crate) fn follow_system<'a>(
        &mut self,
        now: Now,
        changes: impl Iterator<Item = &'a Change>,
        effects: &mut Effects,
    ) {
        let mut members = false;
        for change in changes {
            let Some(key) = SystemKey::decode(&change.key) else { continue };
            members |= members::concerns(&key);
            let value = self.state.system.get(&change.key).map(|value| &value.value);
            match key {
                SystemKey::Lease(id) => match value.map(|value| (system::lease_ttl(value), system::lease_owner(value)))
                {
                    Some((ttl, owner)) => {
                        let mine = owner == Some(self.identity.replica);
                        self.state.leases.grant(now, id, ttl.unwrap_or_default(), mine);
                    }
                    None => self.state.leases.ended(now, id),
                },
                SystemKey::Alarm(alarm) if value.is_some() => {
                    self.alarms.insert(alarm);
                }
                SystemKey::Alarm(alarm) => {
                    self.alarms.remove(&alarm);
                }
                SystemKey::Rules => {
                    self.state.rules = value.and_then(|value| Rules::decode(value)).unwrap_or_default().into();
                }
                _ => {}
            }
        }
        if members {
            self.read_members(now, effects);
        }
    }

    /// Reads the members anew, and does what their change asks of this one.
    pub(crate) fn read_members(&mut self, now: Now, effects: &mut Effects) {
        let id = self.identity.replica;
        let was_removed = self.members.is_removed(id);
        self.set_members(Members::read(&self.state.system));
        if self.members.is_removed(id) {
            if !was_removed {
                effects.notices.push(Notice::Removed);
            }
            return;
        }
        if self.members.counting(&self.acks) != [id] && !self.members.is_empty() {
            self.open_up();
        }
        if self.joining {
            return;
        }
        if self.members.birth_of(id).is_some_and(|birth| birth != self.identity.birth) {
            // Announced by someone who had not heard of this one.
            self.announce(now, id, self.identity.birth, effects);
        }
        let Some(member) = self.members.get(id) else { return };
        match member.ordinal {
            Some(ordinal) if ordinal == self.identity.ordinal => {}
            Some(ordinal) => self.take_ordinal(now, ordinal, effects),
            None => {
                // Another member with a smaller id has it: revisions of both would be mistaken for each other's.
                let Some(ordinal) = self.members.free_ordinal() else { return };
                self.draft(now, effects, |draft| draft.write_system(SystemKey::Ordinal(ordinal, id), Bytes::new()));
                self.set_members(Members::read(&self.state.system));
                self.take_ordinal(now, ordinal, effects);
            }
        }
    }
}
