//! Who is there, and whether the two histories fit together.

use std::sync::Arc;

use crate::entry::Past;
use crate::replica::Replica;
use crate::replica::turn::Input;
use crate::sync::error::SyncError;
use crate::sync::message::{CHAINS_MAX, Hello, Message, PROTOCOL};
use crate::sync::session::{Peer, Session, SessionEvent, Turn};
use crate::sync::status::Stage;
use crate::words::chain::Chain;
use crate::words::clock::Now;
use crate::words::id::{Dot, Origin, ReplicaId};
use crate::words::vector::VersionVector;

/// How many chain hashes are asked for at once while searching.
const SEARCH_WIDTH: u64 = 64;

/// What a replica knows of an id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// A member.
    Member,
    /// A member once.
    Removed,
    /// Not heard of.
    Unknown,
}

impl Standing {
    /// What `replica` knows of that id. One that has no members at all is about to join: it takes whom it finds.
    pub fn of(replica: &Replica, id: ReplicaId) -> Self {
        let mut any = false;
        for member in replica.members() {
            any |= !member.removed;
            if member.id == id {
                return if member.removed { Self::Removed } else { Self::Member };
            }
        }
        if any { Self::Unknown } else { Self::Member }
    }
}

/// A removal counts once it is durable: whoever is told of it stops for good, so it must not be forgotten.
pub(super) fn check_member(replica: &Replica, durable: &VersionVector, id: ReplicaId) -> Result<(), SyncError> {
    let is_durable = || replica.membership.members.removal_of(id).is_none_or(|removal| durable.contains(removal));
    match Standing::of(replica, id) {
        Standing::Member => Ok(()),
        Standing::Removed if !is_durable() => Ok(()),
        Standing::Removed => Err(SyncError::RemovedMember(id)),
        Standing::Unknown => Err(SyncError::UnknownMember(id)),
    }
}

/// What this replica says of itself.
pub(super) fn hello(replica: &Replica, durable: &VersionVector) -> Hello {
    let identity = replica.identity();
    let chains = durable.iter().filter_map(|dot| Some((dot, replica.chain_at(dot)?)));
    Hello {
        protocol: PROTOCOL,
        cluster: identity.cluster,
        replica: identity.replica,
        birth: identity.birth,
        vector: durable.clone(),
        chains: chains.take(CHAINS_MAX).collect(),
        begins: replica.log_base().clone(),
        empty: durable.is_empty(),
        doubtful: replica.membership.past == Past::Doubtful,
        revision: replica.revision(),
        rules: replica.rules().number,
    }
}

/// Those chain hashes that are known of what was asked.
pub(super) fn chains(replica: &Replica, origin: Origin, seqs: &[u64]) -> Message {
    let dots = seqs.iter().map(|seq| Dot { origin, seq: *seq });
    Message::Chains(dots.filter_map(|dot| Some((dot, replica.chain_at(dot)?))).collect())
}

/// Looking for the last entry of our own that the peer knows as we do.
#[derive(Debug)]
pub(super) struct Search {
    /// The highest that is known to be the same.
    agreed: u64,
    /// The lowest that is known to be different, or missing on one side.
    differs: u64,
    /// The highest that the peer has.
    theirs: u64,
}

impl Search {
    /// Learns from the peer's hashes; whether anything was news.
    fn learn(&mut self, replica: &Replica, chains: &[(Dot, Chain)]) -> bool {
        let (before, own) = ((self.agreed, self.differs), replica.identity().origin());
        for (dot, chain) in chains.iter().filter(|(dot, _)| dot.origin == own) {
            match replica.chain_at(*dot) {
                Some(ours) if ours == *chain => self.agreed = self.agreed.max(dot.seq),
                Some(_) => self.differs = self.differs.min(dot.seq),
                None => {}
            }
        }
        before != (self.agreed, self.differs)
    }

    /// What to ask for next; nothing when it is found.
    fn next(&self) -> Option<Vec<u64>> {
        let between = self.differs.checked_sub(self.agreed)?.checked_sub(1).filter(|n| *n > 0)?;
        let step = between.div_ceil(SEARCH_WIDTH);
        Some(
            (1..=SEARCH_WIDTH)
                .map(|n| self.differs.saturating_sub(n * step))
                .filter(|seq| *seq > self.agreed)
                .collect(),
        )
    }
}

/// Whether the peer is in doubt of its disk and this replica is not: then the peer begins anew from what is here, if it takes this
/// one for a member at all. What is here stays as it is.
fn begins_anew_from(replica: &Replica, durable: &VersionVector, hello: &Hello) -> bool {
    hello.doubtful && replica.membership.past != Past::Doubtful && !durable.is_empty()
}

/// Whether this replica lacks something that it once had, by what the peer says. It must begin anew from what the peer has
/// before it tells anyone what it wrote since: that was written without what it lacks, on which others rely.
fn has_lost_a_disk(replica: &Replica, hello: &Hello) -> bool {
    let own = replica.identity().origin();
    let an_older_birth = |dot: Dot| dot.origin.replica == own.replica && dot.origin != own;
    match replica.membership.past {
        Past::Known => false,
        Past::Founded => hello.vector.iter().chain(replica.vector().iter()).any(an_older_birth),
        // One that is in doubt as well knows no better.
        Past::Doubtful => !hello.empty && !hello.doubtful,
    }
}

impl Session {
    pub(super) fn greet(
        &mut self,
        replica: &Replica,
        durable: &VersionVector,
        now: Now,
        hello: Hello,
        turn: &mut Turn,
    ) -> Result<(), SyncError> {
        let identity = replica.identity();
        let member = hello.replica;
        if hello.cluster != identity.cluster {
            return Err(SyncError::Cluster { ours: identity.cluster, theirs: hello.cluster });
        }
        if hello.protocol > PROTOCOL {
            return Err(SyncError::Protocol { theirs: hello.protocol });
        }
        if member == identity.replica {
            return Err(SyncError::OwnId(member));
        }
        if let Some(wanted) = self.wanted.filter(|wanted| *wanted != member) {
            return Err(SyncError::AnotherMember { wanted, theirs: member });
        }
        check_member(replica, durable, member)?;

        let peer = Arc::new(Peer {
            member,
            birth: hello.birth,
            births: replica.births_of(member).chain([hello.birth]).collect(),
            revision: hello.revision,
            begins: hello.begins.clone(),
        });
        turn.events.push(SessionEvent::Met {
            member,
            birth: hello.birth,
            empty: hello.empty,
            revision: hello.revision,
            rules: hello.rules,
        });
        self.peer = Some(Arc::clone(&peer));
        self.outgoing.meet(&hello.vector, durable, now);
        self.incoming.meet(peer.origin(), &hello.vector);

        if has_lost_a_disk(replica, &hello) {
            turn.events.push(SessionEvent::SnapshotNeeded { member });
            self.enter(Stage::LostTail);
            return Ok(());
        }
        let theirs = hello.vector.get(identity.origin());
        let peer_origin = peer.origin();
        let mut peer_lost = hello.vector.get(peer_origin) < replica.vector().get(peer_origin);
        let mut lost = theirs > replica.vector().get(identity.origin());
        for (dot, chain) in &hello.chains {
            if replica.chain_at(*dot).is_none_or(|ours| ours == *chain) {
                continue;
            }
            match dot.origin {
                origin if origin == identity.origin() => lost = true,
                origin if origin == peer_origin => peer_lost = true,
                _ => return Err(SyncError::Fork(*dot)),
            }
        }
        if lost {
            self.begin_search(&peer, replica, theirs, &hello.chains, turn);
        } else if peer_lost {
            turn.events.push(SessionEvent::PeerLostTail(member));
            self.enter(Stage::PeerLostTail);
        } else if begins_anew_from(replica, durable, &hello) {
            turn.events.push(SessionEvent::PeerNeedsSnapshot(member));
            self.enter(Stage::Snapshot);
        } else if !replica.vector().covers(&hello.begins) {
            turn.events.push(SessionEvent::SnapshotNeeded { member });
            self.enter(Stage::Snapshot);
        } else if let Some(had) = replica.acks().get(&peer_origin).filter(|had| !hello.vector.covers(had)) {
            // It had told that it has more than it has: its disk is not what it was. Others may have settled what it lacks.
            turn.messages.push(Message::TooFarBehind { begins: had.clone() });
            turn.events.push(SessionEvent::PeerNeedsSnapshot(member));
            self.enter(Stage::Snapshot);
        } else if !hello.vector.covers(replica.log_base()) {
            turn.events.push(SessionEvent::PeerNeedsSnapshot(member));
            self.enter(Stage::Snapshot);
        } else {
            self.enter(Stage::Open);
            if replica.membership.past == Past::Doubtful {
                turn.inputs.push(Input::Met(member));
            }
            // What it said it has is its first acknowledgement.
            turn.inputs.push(Input::Acks { own: durable.clone(), acks: vec![(peer_origin, hello.vector)] });
        }
        Ok(())
    }

    /// The peer has `theirs` entries of this replica, and not the ones we know: find the last that both know alike.
    pub(super) fn begin_search(
        &mut self,
        peer: &Peer,
        replica: &Replica,
        theirs: u64,
        chains: &[(Dot, Chain)],
        turn: &mut Turn,
    ) {
        let own = replica.identity().origin();
        let ours = replica.vector().get(own);
        let shared = ours.min(theirs);
        // What every member was known to have was the same everywhere: below that nobody has hashes any more.
        let mut search = Search { agreed: replica.floor().get(own).min(shared), differs: shared + 1, theirs };
        search.learn(replica, chains);
        self.search = Some(search);
        self.enter(Stage::Searching);
        self.search_further(peer, replica, turn);
    }

    pub(super) fn search_on(&mut self, peer: &Peer, replica: &Replica, chains: &[(Dot, Chain)], turn: &mut Turn) {
        let Some(search) = &mut self.search else { return };
        if search.learn(replica, chains) {
            self.search_further(peer, replica, turn);
        } else {
            self.end_search(peer, replica, turn);
        }
    }

    fn search_further(&mut self, peer: &Peer, replica: &Replica, turn: &mut Turn) {
        match self.search.as_ref().and_then(Search::next) {
            Some(seqs) => {
                turn.messages.push(Message::ChainsWanted { origin: replica.identity().origin(), seqs });
            }
            None => self.end_search(peer, replica, turn),
        }
    }

    fn end_search(&mut self, peer: &Peer, replica: &Replica, turn: &mut Turn) {
        let Some(search) = self.search.take() else { return };
        let agreed = Dot { origin: replica.identity().origin(), seq: search.agreed };
        turn.events.push(SessionEvent::LostTail { member: peer.member, agreed, theirs: search.theirs });
        self.enter(Stage::LostTail);
    }
}
