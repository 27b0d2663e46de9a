//! The greeting: whether the two histories fit together.

use std::sync::Arc;

use crate::entry::Past;
use crate::replica::Replica;
use crate::replica::turn::Input;
use crate::sync::error::SyncError;
use crate::sync::message::{Hello, Message, PROTOCOL};
use crate::sync::session::Session;
use crate::sync::session::effects::{Round, SessionEvent};
use crate::sync::session::peer::{Peer, check_member, goes_on_under_a_newer_birth};
use crate::sync::session::search::Search;
use crate::sync::status::Stage;
use crate::words::chain::Chain;
use crate::words::id::Dot;
use crate::words::vector::VersionVector;

/// Whether the peer is in doubt of its disk and this replica is not, or less so. Then the peer begins anew from what is here, if it
/// takes this replica for a member at all. What is here stays as it is.
fn begins_anew_from(replica: &Replica, durable: &VersionVector, hello: &Hello) -> bool {
    let (ours, theirs) = (replica.membership.lineage, hello.lineage);
    let yields = match replica.membership.past {
        Past::Doubtful => theirs.is_some() && theirs < ours,
        Past::Known | Past::Founded => theirs.is_none() || theirs != ours,
    };
    hello.doubtful && yields && !durable.is_empty()
}

/// Whether this replica lacks something that it once had, by what the peer says. It must begin anew from what the peer
/// has before it tells anyone what it wrote since. That was written without what this replica lacks, and others rely on
/// what it lacks.
fn has_lost_a_disk(replica: &Replica, hello: &Hello) -> bool {
    let own = replica.identity().origin();
    let an_older_birth = |dot: Dot| dot.origin.replica == own.replica && dot.origin != own;
    match replica.membership.past {
        Past::Known => {
            goes_on_under_a_newer_birth(&hello.vector, own) && !hello.doubtful && !replica.vector().is_empty()
        }
        Past::Founded => hello.vector.iter().chain(replica.vector().iter()).any(an_older_birth),
        // One that is in doubt as well knows no better, but what goes back to two copies does not fit together: one of both lineages
        // goes on. Two of one lineage have told each other nothing but what stands.
        Past::Doubtful => {
            let (ours, theirs) = (replica.membership.lineage, hello.lineage);
            !hello.empty && if hello.doubtful { theirs > ours } else { theirs != ours }
        }
    }
}

/// How two histories differ, by the chain hashes that the peer named.
struct Difference {
    /// The peer has entries of this replica that are not the ones here.
    lost: bool,
    /// This replica has entries of the peer that are not the ones there.
    peer_lost: bool,
}

/// Compares what both sides know of each other's entries.
///
/// # Errors
/// When they differ in a third member's.
fn compare_histories(replica: &Replica, peer: &Peer, hello: &Hello) -> Result<Difference, SyncError> {
    let (own, theirs) = (replica.identity().origin(), peer.origin());
    let mut difference = Difference {
        lost: hello.vector.get(own) > replica.vector().get(own),
        peer_lost: hello.vector.get(theirs) < replica.vector().get(theirs),
    };
    for (dot, chain) in &hello.chains {
        if replica.chain_at(*dot).is_none_or(|ours| ours == *chain) {
            continue;
        }
        match dot.origin {
            origin if origin == own => difference.lost = true,
            origin if origin == theirs => difference.peer_lost = true,
            _ => return Err(SyncError::Fork(*dot)),
        }
    }
    Ok(difference)
}

impl Session {
    /// Whether the greeting comes from a member that this replica can talk to.
    fn check_greeting(&self, round: &Round<'_>, hello: &Hello) -> Result<(), SyncError> {
        let identity = round.replica.identity();
        let member = hello.replica;
        if hello.cluster != identity.cluster {
            return Err(SyncError::Cluster { ours: identity.cluster, theirs: hello.cluster });
        }
        if hello.protocol > PROTOCOL {
            return Err(SyncError::Protocol { theirs: hello.protocol });
        }
        hello.rules.check(round.replica.engine())?;
        // One that has nothing has not heard of any rules yet.
        if !hello.empty && !round.durable.is_empty() && !hello.founded.is_declared_like(round.replica.rules().first()) {
            let (ours, theirs) = (round.replica.rules().first().to_string(), hello.founded.to_string());
            return Err(SyncError::FoundedApart { ours, theirs });
        }
        if member == identity.replica {
            return Err(SyncError::OwnId(member));
        }
        if let Some(wanted) = self.wanted.filter(|wanted| *wanted != member) {
            return Err(SyncError::AnotherMember { wanted, theirs: member });
        }
        check_member(round.replica, round.durable, member)
    }

    pub(super) fn greet(&mut self, round: &mut Round<'_>, hello: Hello) -> Result<(), SyncError> {
        self.check_greeting(round, &hello)?;
        let (replica, durable, now) = (round.replica, round.durable, round.now);
        let member = hello.replica;
        let peer = Arc::new(Peer {
            member,
            birth: hello.birth,
            births: replica.births_of(member).chain([hello.birth]).collect(),
            revision: hello.revision,
            begins: hello.begins.clone(),
        });
        round.effects.events.push(SessionEvent::Met {
            member,
            birth: hello.birth,
            empty: hello.empty,
            revision: hello.revision,
            rules: hello.rules.number,
        });
        self.peer = Some(Arc::clone(&peer));
        self.outgoing.meet(&hello.vector, durable, now);
        self.incoming.meet(peer.origin(), &hello.vector, hello.marks);

        if has_lost_a_disk(replica, &hello) {
            round.effects.events.push(SessionEvent::SnapshotNeeded { member });
            self.enter(Stage::LostTail);
            return Ok(());
        }
        if goes_on_under_a_newer_birth(replica.vector(), peer.origin())
            && replica.membership.past != Past::Doubtful
            && !hello.empty
        {
            round.effects.events.push(SessionEvent::PeerNeedsSnapshot(member));
            self.enter(Stage::PeerLostTail);
            return Ok(());
        }
        let difference = compare_histories(replica, &peer, &hello)?;
        if difference.lost {
            let theirs = hello.vector.get(replica.identity().origin());
            self.begin_search(round, &peer, theirs, &hello.chains);
        } else if difference.peer_lost {
            round.effects.events.push(SessionEvent::PeerLostTail(member));
            self.enter(Stage::PeerLostTail);
        } else {
            self.open_or_snapshot(round, &peer, hello);
        }
        Ok(())
    }

    /// The two histories do not contradict each other: entries flow, or one side begins with a snapshot of the other.
    fn open_or_snapshot(&mut self, round: &mut Round<'_>, peer: &Peer, hello: Hello) {
        let (replica, durable) = (round.replica, round.durable);
        let (member, peer_origin) = (peer.member, peer.origin());
        if begins_anew_from(replica, durable, &hello) {
            round.effects.events.push(SessionEvent::PeerNeedsSnapshot(member));
            self.enter(Stage::Snapshot);
        } else if !replica.vector().covers(&hello.begins) {
            round.effects.events.push(SessionEvent::SnapshotNeeded { member });
            self.enter(Stage::Snapshot);
        } else if let Some(had) = replica.acks().get(&peer_origin).filter(|had| !hello.vector.covers(had)) {
            // It had told that it has more than it has: its disk is not what it was. Others may have settled what it lacks.
            round.effects.messages.push(Message::TooFarBehind { begins: had.clone() });
            round.effects.events.push(SessionEvent::PeerNeedsSnapshot(member));
            self.enter(Stage::Snapshot);
        } else if !hello.vector.covers(replica.floor()) {
            round.effects.events.push(SessionEvent::PeerNeedsSnapshot(member));
            self.enter(Stage::Snapshot);
        } else {
            self.enter(Stage::Open);
            // What it said it has is its first acknowledgement.
            let acks = vec![self.incoming.whole_ack_of(peer_origin)];
            round.effects.inputs.push(Input::Acks { own: durable.clone(), acks });
        }
    }

    /// The peer has `theirs` entries of this replica, and not the ones we know: find the last that both know alike.
    pub(super) fn begin_search(&mut self, round: &mut Round<'_>, peer: &Peer, theirs: u64, chains: &[(Dot, Chain)]) {
        let replica = round.replica;
        let own = replica.identity().origin();
        let ours = replica.vector().get(own);
        let shared = ours.min(theirs);
        // What every member was known to have was the same everywhere: below that nobody has hashes any more.
        let mut search = Search { agreed: replica.floor().get(own).min(shared), differs: shared + 1, theirs };
        search.learn(replica, chains);
        self.search = Some(search);
        self.enter(Stage::Searching);
        self.search_further(round, peer);
    }

    pub(super) fn search_on(&mut self, round: &mut Round<'_>, peer: &Peer, chains: &[(Dot, Chain)]) {
        let replica = round.replica;
        let Some(search) = &mut self.search else { return };
        if search.learn(replica, chains) {
            self.search_further(round, peer);
        } else {
            self.end_search(round, peer);
        }
    }

    fn search_further(&mut self, round: &mut Round<'_>, peer: &Peer) {
        let replica = round.replica;
        match self.search.as_ref().and_then(Search::next) {
            Some(seqs) => {
                round.effects.messages.push(Message::ChainsWanted { origin: replica.identity().origin(), seqs });
            }
            None => self.end_search(round, peer),
        }
    }

    fn end_search(&mut self, round: &mut Round<'_>, peer: &Peer) {
        let replica = round.replica;
        let Some(search) = self.search.take() else { return };
        let origin = replica.identity().origin();
        let agreed = (search.agreed > 0).then_some(Dot { origin, seq: search.agreed });
        round.effects.events.push(SessionEvent::LostTail { member: peer.member, agreed, theirs: search.theirs });
        self.enter(Stage::LostTail);
    }
}
