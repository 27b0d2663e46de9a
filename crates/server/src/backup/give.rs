//! A backup of a running replica: etcd's database, page after page, and its hash behind it.

use bytes::Bytes;
use eddy_crdt::{BackupMoved, BackupPoint, LeaseId, PastPlace, PastValues, Replica, StoredVersion};
use prost::Message;
use ring::digest::{Context, SHA256};

use super::order::{Look, Planned, Runs};
use super::pace::{PAUSE, Paced, SLICE};
use super::page::PAGE_SIZE;
use super::schema::{self, Pair};
use super::write::{Count, Part, Sink, Trees, first_pages};
use crate::node::{Captured, Handle, NodeError};
use crate::version::ETCD_CLUSTER_VERSION;

/// Versions that are read under one lock.
const VERSIONS_PER_LOCK: usize = 64;

/// Bytes of the hash.
pub const HASH_BYTES: usize = 32;

/// Why a backup ends before its end.
#[derive(Debug, thiserror::Error)]
pub enum GiveError {
    /// The revisions of all keys changed.
    #[error(transparent)]
    Moved(#[from] BackupMoved),
    /// Replaced values cannot be read from the journal.
    #[error("the journal cannot be read: {0}")]
    Unread(#[from] NodeError),
    /// Nobody takes it any more.
    #[error("nobody takes the backup any more")]
    Gone,
}

/// Takes the parts of a backup: bytes, and how many follow them until the hash.
pub trait Take {
    /// Takes a part; `false` when no more are wanted.
    fn take(&mut self, part: Bytes, remaining: u64) -> bool;
}

/// A node is looked at under its own lock.
impl Look for Handle {
    fn look<T>(&self, look: impl FnOnce(&Replica) -> T) -> T {
        Handle::look(self, look)
    }

    fn recall(&self, places: Vec<PastPlace>) -> Result<PastValues, NodeError> {
        self.recall_blocking(places)
    }
}

/// Writes the backup of what was captured. Blocks for as long as `take` does.
///
/// # Errors
/// When nobody takes it, or it must begin again.
pub fn give(replica: &impl Look, captured: &Captured, take: &mut impl Take) -> Result<(), GiveError> {
    let paced = Paced::new(replica, SLICE, || std::thread::sleep(PAUSE));
    let versions = paced.look(Replica::versions);
    let runs = Runs::new(&paced, captured.point, usize::try_from(versions).unwrap_or(usize::MAX));
    give_runs(&paced, captured, runs, take)
}

/// The same with runs of a length.
pub(super) fn give_runs(
    replica: &impl Look,
    captured: &Captured,
    mut runs: Runs<'_, impl Look>,
    take: &mut impl Take,
) -> Result<(), GiveError> {
    let (plan, last) = plan(captured, &mut runs)?;
    runs.rewind();
    let mut sink = Hashed::new(take, plan.pages * PAGE_SIZE as u64);
    sink.pass(first_pages(plan.pages, &plan.buckets))?;
    let mut trees = Trees::new(sink);
    for bucket in BUCKETS {
        if bucket == schema::KEY {
            while let Some(run) = runs.next()? {
                for some in run.chunks(VERSIONS_PER_LOCK) {
                    for (place, value) in read(replica, &captured.point, some)? {
                        trees.push(Part::Bytes(&place), Part::Bytes(&value))?;
                    }
                }
            }
        } else {
            for (key, value) in small(captured, last, bucket) {
                trees.push(Part::Bytes(&key), Part::Bytes(&value))?;
            }
        }
        trees.finish()?;
    }
    let (pages, sink) = trees.end();
    debug_assert_eq!(pages, plan.pages);
    sink.end()
}

/// The buckets of etcd 3.7, in order.
const BUCKETS: [&str; 10] = [
    "alarm",
    schema::AUTH,
    schema::ROLES,
    schema::USERS,
    "cluster",
    schema::KEY,
    schema::LEASE,
    "members",
    "members_removed",
    schema::META,
];

/// Where everything will stand.
struct Plan {
    pages: u64,
    buckets: Vec<(&'static str, u64)>,
}

/// Lays the pages out by the lengths of what will be in them. Tells also the newest revision that has a version.
fn plan(captured: &Captured, runs: &mut Runs<'_, impl Look>) -> Result<(Plan, i64), BackupMoved> {
    let (mut trees, mut buckets) = (Trees::new(Count), vec![]);
    let mut last = 1;
    let len = |bytes: &[u8]| Part::Len(bytes.len());
    for bucket in BUCKETS {
        if bucket == schema::KEY {
            while let Some(run) = runs.next()? {
                for planned in run {
                    let Ok(()) =
                        trees.push(Part::Len(planned.place().encoded_len()), Part::Len(planned.bytes as usize));
                }
                last = run.last().map_or(last, |planned| planned.revision.get());
            }
        } else {
            for (key, value) in small(captured, last, bucket) {
                let Ok(()) = trees.push(len(&key), len(&value));
            }
        }
        let Ok(root) = trees.finish();
        buckets.push((bucket, root));
    }
    let (pages, Count) = trees.end();
    Ok((Plan { pages, buckets }, last))
}

/// The pairs of a bucket other than that of the keys, in order. `last` is the newest revision that has a version.
fn small(captured: &Captured, last: i64, bucket: &str) -> Vec<Pair> {
    let present = || captured.members.iter().filter(|member| !member.removed);
    let pair = |key: &[u8], value: Vec<u8>| (key.to_vec(), value);
    let mut pairs = match bucket {
        "alarm" => captured.alarms.iter().copied().map(schema::alarm).collect(),
        schema::AUTH => schema::auth(&captured.users),
        schema::ROLES => captured.users.roles().map(|(name, may)| schema::role(name, may)).collect(),
        schema::USERS => captured.users.users().map(|(name, user)| schema::user(name, user)).collect(),
        "cluster" => vec![
            pair(b"clusterVersion", ETCD_CLUSTER_VERSION.into()),
            pair(b"downgrade", br#"{"target-version":"","enabled":false}"#.to_vec()),
        ],
        schema::LEASE => captured.leases.iter().map(|(id, ttl_s)| schema::lease(LeaseId::get(*id), *ttl_s)).collect(),
        "members" => present().map(schema::member).collect(),
        "members_removed" => captured.members.iter().filter(|member| member.removed).map(schema::removed).collect(),
        schema::META => meta(captured, last),
        _ => vec![],
    };
    pairs.sort_unstable();
    pairs
}

fn meta(captured: &Captured, last: i64) -> Vec<Pair> {
    let pair = |key: &[u8], value: Vec<u8>| (key.to_vec(), value);
    let present = captured.members.iter().filter(|member| !member.removed);
    let mut pairs = vec![
        pair(b"confState", schema::voters(present)),
        // What eddy's Status calls raft's index and term.
        pair(b"consistent_index", captured.index.to_be_bytes().to_vec()),
        pair(b"storageVersion", ETCD_CLUSTER_VERSION.into()),
        pair(b"term", captured.term.to_be_bytes().to_vec()),
    ];
    // etcd takes the newest version's revision for the present one, or the compacted one if that is higher. Where a leap
    // or a founding left a revision without a version, nothing lies between, so it is compacted.
    let point = &captured.point;
    let is_silent = point.revision.get() > last;
    if let Some(at) = point.compacted.max(is_silent.then_some(point.revision)) {
        pairs.push(pair(schema::COMPACTED, schema::revision(at)));
        pairs.push(pair(schema::COMPACTING, schema::revision(at)));
    }
    pairs
}

/// Reads those versions under one lock, again when replaced values had to be read from the journal first, and encodes them
/// behind it.
fn read(replica: &impl Look, point: &BackupPoint, some: &[Planned]) -> Result<Vec<Pair>, GiveError> {
    let mut past = PastValues::default();
    let versions = loop {
        let versions = replica.look(|replica| {
            let at = |planned: &Planned| (planned.revision, planned.own_sub);
            let one = |planned: &Planned| replica.backup_version(point, &planned.key, at(planned), &past);
            some.iter().map(one).collect::<Result<Vec<_>, _>>()
        })?;
        let missing = past.missing();
        if missing.is_empty() {
            break versions;
        }
        past.add(replica.recall(missing)?);
    };
    let encode = |(version, planned): (StoredVersion, &Planned)| {
        let value = schema::version(version).encode_to_vec();
        // Otherwise the pages would not be where the first ones say.
        if value.len() == planned.bytes as usize { Ok((planned.place().encode(), value)) } else { Err(BackupMoved) }
    };
    Ok(versions.into_iter().zip(some).map(encode).collect::<Result<_, BackupMoved>>()?)
}

/// Hands pages on in parts, and hashes them.
struct Hashed<'a, T> {
    take: &'a mut T,
    hash: Context,
    part: Vec<u8>,
    remaining: u64,
}

/// Bytes of a part, as in etcd.
const PART_BYTES: usize = 32 << 10;

impl<'a, T: Take> Hashed<'a, T> {
    fn new(take: &'a mut T, bytes: u64) -> Self {
        Self { take, hash: Context::new(&SHA256), part: Vec::with_capacity(PART_BYTES), remaining: bytes }
    }

    fn pass(&mut self, page: Vec<u8>) -> Result<(), GiveError> {
        self.hash.update(&page);
        let mut rest = &page[..];
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(PART_BYTES - self.part.len()));
            self.part.extend_from_slice(now);
            rest = later;
            if self.part.len() == PART_BYTES {
                self.flush()?;
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), GiveError> {
        let part = std::mem::replace(&mut self.part, Vec::with_capacity(PART_BYTES));
        self.remaining = self.remaining.saturating_sub(part.len() as u64);
        if self.take.take(part.into(), self.remaining) { Ok(()) } else { Err(GiveError::Gone) }
    }

    fn end(mut self) -> Result<(), GiveError> {
        if !self.part.is_empty() {
            self.flush()?;
        }
        let hash = Bytes::copy_from_slice(self.hash.finish().as_ref());
        if self.take.take(hash, 0) { Ok(()) } else { Err(GiveError::Gone) }
    }
}

impl<T: Take> Sink for Hashed<'_, T> {
    type Error = GiveError;

    fn take(&mut self, page: Option<Vec<u8>>) -> Result<(), GiveError> {
        // Pages with all their bytes are never counted only.
        page.map_or(Err(GiveError::Moved(BackupMoved)), |page| self.pass(page))
    }
}
