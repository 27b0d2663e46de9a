//! What clients ask of a replica, with etcd's wire conventions already decoded.

use bytes::Bytes;

use crate::command::auth::AuthCommand;
use crate::command::counter::{AtomicRule, CounterRule};
use crate::words::id::{LeaseId, ReplicaId};
use crate::words::key::{Key, KeyRange};
use crate::words::revision::Revision;

/// A key with its value and what etcd tells about it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeyValue {
    /// The key.
    pub key: Key,
    /// The value; may be empty, which is not the same as absent.
    pub value: Bytes,
    /// When this incarnation of the key began.
    pub create_revision: Revision,
    /// When it was last written.
    pub mod_revision: Revision,
    /// How often it was written in this incarnation, counted from 1.
    pub version: i64,
    /// The lease it hangs on.
    pub lease: Option<LeaseId>,
}

/// At which revision to read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ReadAt {
    /// At the newest one.
    #[default]
    Latest,
    /// At this one.
    Revision(Revision),
    /// At a negative number, which etcd reads in two ways. A plain range takes it for the newest revision. The check of
    /// a transaction takes it for a revision that may be compacted.
    Negative(i64),
}

/// By what a range is sorted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SortTarget {
    /// By key.
    Key,
    /// By version.
    Version,
    /// By create revision.
    Create,
    /// By mod revision.
    Mod,
    /// By value.
    Value,
}

/// In which direction a range is sorted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SortOrder {
    /// None was given: what the limit let through (it cuts in key order) is sorted smallest first, as etcd does.
    Unspecified,
    /// Smallest first.
    Ascend,
    /// Largest first.
    Descend,
}

/// Bounds on revisions of the keys in a result.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RevisionBounds {
    /// Lowest mod revision.
    pub min_mod: Option<Revision>,
    /// Highest mod revision.
    pub max_mod: Option<Revision>,
    /// Lowest create revision.
    pub min_create: Option<Revision>,
    /// Highest create revision.
    pub max_create: Option<Revision>,
}

impl RevisionBounds {
    /// Whether there is no bound at all.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A read of keys.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RangeOp {
    /// Which keys.
    pub range: KeyRange,
    /// At which revision.
    pub at: ReadAt,
    /// The most keys to answer with; none for all.
    pub limit: Option<usize>,
    /// How to sort; by key and unspecified or ascending costs nothing.
    pub sort: (SortTarget, SortOrder),
    /// Only count.
    pub count_only: bool,
    /// Leave the values out (and, unless sorted by value, the leases: etcd reads them from its index alone).
    pub keys_only: bool,
    /// Filters applied before the limit, but not to the count.
    pub bounds: RevisionBounds,
    /// Whether to count the keys that the limit cut off. etcd's RangeStream does not.
    pub total_count: bool,
}

impl RangeOp {
    /// A plain read of everything in the range, now.
    pub fn all(range: KeyRange) -> Self {
        Self {
            range,
            at: ReadAt::Latest,
            limit: None,
            sort: (SortTarget::Key, SortOrder::Unspecified),
            count_only: false,
            keys_only: false,
            bounds: RevisionBounds::default(),
            total_count: true,
        }
    }
}

/// What a put writes as the value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PutValue {
    /// These bytes.
    Set(Bytes),
    /// What is there (`ignore_value`).
    Keep,
}

/// What a put makes of the key's lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PutLease {
    /// Hang it on this lease, or on none.
    Set(Option<LeaseId>),
    /// Leave it as it is (`ignore_lease`).
    Keep,
}

/// A write of one key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PutOp {
    /// The key.
    pub key: Key,
    /// The value.
    pub value: PutValue,
    /// The lease.
    pub lease: PutLease,
    /// Answer with what was there before.
    pub prev_kv: bool,
}

/// A delete of keys.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeleteOp {
    /// Which keys.
    pub range: KeyRange,
    /// Answer with what was there before.
    pub prev_kv: bool,
}

/// What a compare looks at, and the value to compare with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CompareTarget {
    /// The value. Always fails on an absent key.
    Value(Bytes),
    /// The create revision, zero for an absent key.
    Create(i64),
    /// The mod revision, zero for an absent key.
    Mod(i64),
    /// The version, zero for an absent key.
    Version(i64),
    /// The lease, zero for an absent key or none.
    Lease(i64),
    /// A target this build does not know; compares as equal, as in etcd.
    Unknown,
}

/// How a compare relates the key's side (left) to the given value (right).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CompareResult {
    /// Left equals right.
    Equal,
    /// Left is greater.
    Greater,
    /// Left is less.
    Less,
    /// Left differs.
    NotEqual,
    /// A relation this build does not know; holds always, as in etcd.
    Unknown,
}

/// One condition of a transaction: all keys in the range must fulfil it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Compare {
    /// Which keys. An empty range is compared as one absent key.
    pub range: KeyRange,
    /// Which of their fields is compared, and with which value.
    pub target: CompareTarget,
    /// How.
    pub result: CompareResult,
}

/// One step of a transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Op {
    /// A read.
    Range(RangeOp),
    /// A write.
    Put(PutOp),
    /// A delete.
    Delete(DeleteOp),
    /// A transaction within the transaction; its compares see the state before all writes.
    Txn(Txn),
}

/// If all compares hold, do `success`, else `failure`; one revision for all.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Txn {
    /// The conditions.
    pub compares: Vec<Compare>,
    /// What to do when all hold.
    pub success: Vec<Op>,
    /// What to do otherwise.
    pub failure: Vec<Op>,
}

impl Txn {
    /// Whether it only reads, by etcd's rule: a nested transaction counts as a write.
    pub fn is_read_only(&self) -> bool {
        self.success.iter().chain(&self.failure).all(|op| matches!(op, Op::Range(_)))
    }
}

/// Which alarm.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum AlarmKind {
    /// The quota is used up: no puts, no lease grants.
    NoSpace,
    /// Replicas with the same version vector hold different states, or this one is damaged.
    Corrupt,
    /// A kind that this build does not know; raised and told as in etcd, without effect.
    Unknown(i32),
}

/// An alarm that is raised, and the member it concerns.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Alarm {
    /// The member it concerns.
    pub member: ReplicaId,
    /// What is wrong there.
    pub kind: AlarmKind,
}

/// A change that a client asks for, or the process itself on its own account.
#[derive(Clone, Debug)]
pub enum Command {
    /// Write one key.
    Put(PutOp),
    /// Delete keys.
    Delete(DeleteOp),
    /// Run a transaction.
    Txn(Txn),
    /// Hide history before this revision from clients.
    Compact(i64),
    /// Grant a lease; the id was chosen by the client or by the server.
    LeaseGrant {
        /// Its id.
        id: LeaseId,
        /// Time to live, seconds, as asked for.
        ttl: i64,
    },
    /// Revoke a lease and delete its keys.
    LeaseRevoke(LeaseId),
    /// Keep a lease alive for another time to live.
    LeaseRenew(LeaseId),
    /// Raise or lower an alarm.
    SetAlarm {
        /// Which.
        alarm: Alarm,
        /// Raise (`true`) or lower.
        raised: bool,
    },
    /// Add a member.
    MemberAdd {
        /// Its id, which follows from the cluster's and from its peer URLs.
        id: ReplicaId,
        /// Where other members reach it.
        peer_urls: Vec<String>,
        /// Whether it is to be a learner.
        learner: bool,
    },
    /// Remove a member.
    MemberRemove(ReplicaId),
    /// Change a member's peer URLs.
    MemberUpdate {
        /// Which member.
        id: ReplicaId,
        /// Where other members reach it from now on.
        peer_urls: Vec<String>,
    },
    /// Make a learner a full member.
    MemberPromote(ReplicaId),
    /// Tell the others this replica's name and where clients reach it; writes nothing when they know.
    MemberPublish {
        /// Its name.
        name: String,
        /// Where clients reach it.
        client_urls: Vec<String>,
    },
    /// Merge by rules with these declarations from now on, once all members know them.
    Declare {
        /// Integers that are added up instead of overwritten.
        counters: Vec<CounterRule>,
        /// Fields that merge as one value.
        atomic: Vec<AtomicRule>,
    },
    /// Change users or roles.
    Auth(AuthCommand),
    /// Move to the next revision space of this replica, above every revision that any member is known to have used.
    /// Everything before counts as compacted.
    Leap,
}
