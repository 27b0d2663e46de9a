//! Who answers: the header of responses.

use eddy_crdt::{Identity, Revision};
use eddy_proto::etcdserverpb::ResponseHeader;

/// The term of every answer: a replica is its own leader for ever, and a new single etcd's first term is 2.
pub const RAFT_TERM: u64 = 2;

/// The header of an answer.
pub fn at(identity: &Identity, revision: Revision) -> ResponseHeader {
    ResponseHeader { revision: revision.get(), ..without_revision(identity) }
}

/// The header of an answer that has nothing to do with keys.
pub fn without_revision(identity: &Identity) -> ResponseHeader {
    ResponseHeader {
        cluster_id: identity.cluster.get(),
        member_id: identity.replica.get(),
        revision: 0,
        raft_term: RAFT_TERM,
    }
}
