//! The two sides of a session, and what they say of themselves.

use std::sync::Arc;

use crate::entry::Past;
use crate::merge::object::schema::custom::Customs;
use crate::merge::rules::Rules;
use crate::replica::Replica;
use crate::sync::error::SyncError;
use crate::sync::message::{CHAINS_MAX, Hello, Message, PROTOCOL};
use crate::words::id::{Birth, Dot, Origin, ReplicaId};
use crate::words::revision::Revision;
use crate::words::vector::VersionVector;

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
    /// What `replica` knows of that id. A replica that has no members at all is about to join: it takes any peer.
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

/// A removal counts once it is durable: a member that is told of it stops for good, so it must not be forgotten.
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
        begins: replica.floor().clone(),
        empty: durable.is_empty(),
        doubtful: replica.membership.past == Past::Doubtful,
        lineage: replica.membership.lineage,
        revision: replica.revision(),
        // What the schemas of custom resources say comes with the entries.
        rules: Rules { custom: Customs::default(), ..replica.rules().newest().clone() },
        founded: replica.rules().first().clone(),
        marks: replica.marks().version(),
    }
}

/// Those chain hashes that are known of what was asked.
pub(super) fn chains(replica: &Replica, origin: Origin, seqs: &[u64]) -> Message {
    let dots = seqs.iter().map(|seq| Dot { origin, seq: *seq });
    Message::Chains(dots.filter_map(|dot| Some((dot, replica.chain_at(dot)?))).collect())
}

/// The peer of a session.
#[derive(Clone, Debug)]
pub(super) struct Peer {
    pub(super) member: ReplicaId,
    pub(super) birth: Birth,
    /// The birth, and those under which entries of it were known when it was greeted.
    pub(super) births: Arc<[Birth]>,
    pub(super) revision: Revision,
    /// What it knew all to have when it was greeted: who lacks that cannot go on from where it is.
    pub(super) begins: VersionVector,
}

impl Peer {
    /// Where the entries come from that it makes now.
    pub(super) fn origin(&self) -> Origin {
        Origin { replica: self.member, birth: self.birth }
    }
}

/// Whether a member wrote something under a newer birth than this one: it runs from an older disk. All that its peers
/// know of the older birth is known to be all there is of it, or soon will be.
pub(super) fn goes_on_under_a_newer_birth(known: &VersionVector, member: Origin) -> bool {
    known.of(member.replica).any(|dot| dot.origin.birth > member.birth)
}

/// Whether a mark was made when a member counted under an earlier birth than it does now.
pub(super) fn is_for_earlier_birth(upto: &VersionVector, member: Origin) -> bool {
    let knows_one = upto.of(member.replica).next().is_some() || upto.fence(member.replica).is_some();
    knows_one && upto.get(member) == 0
}
