//! The header of responses.

use eddy_crdt::{Identity, Revision};
use eddy_proto::etcdserverpb::ResponseHeader;

/// The term of every answer. A replica is its own leader for ever, and the first term of a new single etcd is 2.
pub const RAFT_TERM: u64 = 2;

/// The header of an answer at that revision.
pub fn at(identity: &Identity, revision: Revision) -> ResponseHeader {
    ResponseHeader { revision: revision.get(), ..without_revision(identity) }
}

/// The header of an answer that concerns no keys; as in etcd, its revision is 0.
pub fn without_revision(identity: &Identity) -> ResponseHeader {
    ResponseHeader {
        cluster_id: identity.cluster.get(),
        member_id: identity.replica.get(),
        revision: 0,
        raft_term: RAFT_TERM,
    }
}
