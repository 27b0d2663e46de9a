//! eddy's replica as a pure state machine.
//!
//! There is no runtime, clock, randomness, disk or network in this crate. Time comes in as an argument ([`Now`]), and
//! what must reach the disk goes out as records ([`Effects`]). The same inputs always give the same outputs. The server
//! drives it; simulations drive thousands of it from a seed.
//!
//! The rooms, each of which knows only those above it:
//! - `words`: names of replicas and entries, time, revisions, keys, version vectors;
//! - `command`: what clients ask and are told, what operators are told;
//! - `entry`: the unit of replication, and the record of it that is journaled, with their codec;
//! - `store`: etcd's multi-version store, what is derived from it, and transactions;
//! - [`merge`]: what concurrent versions mean together;
//! - `replica`: the machine: `handle(now, input) -> effects`;
//! - `boot`: a replica from founders, from its records, from a peer's state;
//! - [`sync`]: what replicas tell each other.

mod boot;
mod command;
mod entry;
pub mod merge;
mod replica;
mod store;
pub mod sync;
mod words;

pub use boot::genesis::{Founder, Genesis};
pub use boot::refound::{RefoundError, Refounder};
pub use boot::restore::{Damage, Loader};
pub use boot::snapshot::{InstallError, Installed, Installer, SettledKey, SnapshotChunk};
pub use command::auth::{AuthCommand, AuthRefusal, Permission, PermissionRange, ROOT, Right};
pub use command::event::{Commit, Event, EventKind};
pub use command::member::Member;
pub use command::notice::{GivenUp, Losses, MergeReport, Notice, Part, Rule, Said, Stands};
pub use command::op::{
    Alarm, AlarmKind, Command, Compare, CompareResult, CompareTarget, DeleteOp, KeyValue, Op, PutLease, PutOp,
    PutValue, RangeOp, ReadAt, RevisionBounds, SortOrder, SortTarget, Txn,
};
pub use command::reply::{DeleteReply, LeaseStatus, OpReply, PutReply, RangeReply, Refusal, Reply, TxnReply};
pub use command::tally::Tally;
pub use entry::{Applied, Change, ChangeKind, CodecError, Entry, EntryHead, Head, Notes, OriginHead, Past, Record};
pub use replica::Replica;
pub use replica::backup::{BackupMoved, BackupPoint, StoredVersion, VersionAt};
pub use replica::log::{Log, Logged};
pub use replica::marks::{Ack, Mark, Marks, Statement, Upto};
pub use replica::prepared::Prepared;
pub use replica::query::BelowFloor;
pub use replica::strays::Strays;

pub use replica::definitions::{CustomKind, WaitsFor};
pub use replica::sweep::Sweep;
pub use replica::turn::{Effects, HOLD_MS, Input};
pub use store::auth::AuthKey;
pub use store::digest::Digest;
pub use store::hash_kv::HashWalk;
pub use store::history::EventsAsked;
pub use store::past::{PastPlace, PastValues, values_of};
pub use store::range::RangeWalk;
pub use store::system::{AnnouncedBirth, SystemKey, lease_ttl, lease_value};
pub use store::users::{User, Users};
pub use store::walk::VersionCursor;
pub use words::chain::{CHAIN_LEN, Chain};
pub use words::clock::{CLOCK_DRAG_MAX_MS, Now, Stamp};
pub use words::fence::{Fence, VectorPart};
pub use words::id::{Birth, ClusterId, Dot, Identity, LeaseId, Origin, ReplicaId};
pub use words::key::{Key, KeyRange, Keyspace, LocalKeys, Place};
pub use words::revision::Revision;
pub use words::value::{Incarnation, Live};
pub use words::vector::VersionVector;
