//! What a replica answers to what clients ask, and why it refuses.

use crate::command::auth::AuthRefusal;
use crate::command::member::Member;
use crate::command::op::KeyValue;
use crate::words::id::LeaseId;
use crate::words::key::Key;
use crate::words::revision::Revision;

/// The answer to a read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RangeReply {
    /// The replica's revision when it was read (not the revision that was asked for).
    pub revision: Revision,
    /// What was found.
    pub kvs: Vec<KeyValue>,
    /// Whether the limit cut something off.
    pub more: bool,
    /// How many keys lie in the range at that revision, whatever limit and filters.
    pub count: i64,
}

/// The answer to a put.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PutReply {
    /// The revision of the write.
    pub revision: Revision,
    /// What was there before, when asked for.
    pub prev: Option<KeyValue>,
}

/// The answer to a delete.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeleteReply {
    /// The revision of the delete; the present one when nothing was deleted.
    pub revision: Revision,
    /// How many keys were deleted.
    pub deleted: i64,
    /// What they were, when asked for.
    pub prev: Vec<KeyValue>,
}

/// The answer to one step of a transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OpReply {
    /// To a read.
    Range(RangeReply),
    /// To a write.
    Put(PutReply),
    /// To a delete.
    Delete(DeleteReply),
    /// To a nested transaction.
    Txn(TxnReply),
}

/// The answer to a transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TxnReply {
    /// The revision of its writes, or the present one when it wrote nothing. (etcd leaves the header of a nested answer
    /// empty.)
    pub revision: Revision,
    /// Whether all compares held.
    pub succeeded: bool,
    /// Answers of the branch that was run, step by step.
    pub replies: Vec<OpReply>,
}

/// The answer to a [`Command`](crate::command::op::Command).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// To a put.
    Put(PutReply),
    /// To a delete.
    Delete(DeleteReply),
    /// To a transaction.
    Txn(TxnReply),
    /// To a compaction. What it hid is dropped later, step by step.
    Compact {
        /// The present revision.
        revision: Revision,
    },
    /// To a grant.
    LeaseGrant {
        /// The lease.
        id: LeaseId,
        /// The time to live that was granted, seconds.
        ttl: i64,
        /// The present revision: a grant changes no key.
        revision: Revision,
    },
    /// To a revoke.
    LeaseRevoke {
        /// The revision at which the lease's keys were deleted; the present one when it had none.
        revision: Revision,
    },
    /// To a keep-alive: the time to live, seconds.
    LeaseRenew {
        /// Seconds from now until the lease runs out.
        ttl: i64,
    },
    /// To an alarm: whether that changed anything.
    SetAlarm {
        /// False when it was raised (or lowered) already.
        changed: bool,
        /// The present revision.
        revision: Revision,
    },
    /// To a change of the membership: the members now, in order of id.
    Members(Vec<Member>),
    /// To a declaration: the number of the rules that are in use or will be.
    Rules {
        /// It.
        number: u32,
    },
    /// To a change of users or roles.
    Auth {
        /// The present revision: it changes no key.
        revision: Revision,
    },
    /// To a leap.
    Leap {
        /// The first revision of the new space.
        revision: Revision,
    },
}

/// What is known of a lease.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LeaseStatus {
    /// The lease.
    pub id: LeaseId,
    /// Granted time to live, seconds.
    pub granted_ttl: i64,
    /// What is left of it, milliseconds; zero when it has run out and is about to be revoked.
    pub remaining_ms: u64,
    /// The keys that hang on it, sorted.
    pub keys: Vec<Key>,
}

/// Why a replica refuses something. The server turns these into etcd's codes and texts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    /// The revision's history is gone.
    #[error("required revision has been compacted")]
    Compacted,
    /// The revision is not there yet.
    #[error("required revision is a future revision")]
    FutureRevision,
    /// A put with `ignore_value` or `ignore_lease` of a key that is not there.
    #[error("key not found")]
    KeyNotFound,
    /// No such lease.
    #[error("lease not found")]
    LeaseNotFound,
    /// A lease of that id is there already.
    #[error("lease already exists")]
    LeaseExists,
    /// The time to live is longer than etcd allows.
    #[error("lease TTL too large")]
    LeaseTtlTooLarge,
    /// No such member.
    #[error("member not found")]
    MemberNotFound,
    /// That member was removed; its id is never used again.
    #[error("member was removed")]
    MemberRemoved,
    /// There is a member of that id.
    #[error("member ID already exists")]
    MemberExists,
    /// Another member has that peer URL.
    #[error("peer URL already exists")]
    PeerUrlExists,
    /// The member is no learner.
    #[error("can only promote a learner member")]
    MemberNotLearner,
    /// It is the last member.
    #[error("the last member cannot be removed")]
    LastMember,
    /// All ordinals are used.
    #[error("too many members")]
    TooManyMembers,
    /// All revision spaces are used.
    #[error("no revision space is left")]
    SpacesExhausted,
    /// A change of users or roles cannot be made.
    #[error(transparent)]
    Auth(#[from] AuthRefusal),
    /// Rules are declared that not all members have yet.
    #[error("the rules that were declared last are not in use yet")]
    RulesMoving,
}
