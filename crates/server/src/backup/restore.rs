//! A data dir from a backup: of eddy, or of an etcd 3.4 to 3.7.
//!
//! The file is read twice: first to learn which version of each key is the last one, then to take those over. Nothing is in
//! the data dir before all of it is durable.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use eddy_crdt::{ClusterId, Genesis, Identity, LeaseId, RefoundError, Refounder, Revision};
use eddy_proto::mvccpb;
use prost::Message;
use ring::digest::{Context, SHA256};

use super::give::HASH_BYTES;
use super::read::{BadDatabase, Bucket, Database};
use super::schema::{self, StoredLease, VersionPlace};
use crate::storage::stage::{self, Making};
use crate::storage::{Options, StorageError};

/// The hash makes the length of a file odd in this way, as etcd's tools have it.
const SECTOR: u64 = 512;

/// Bytes of records that are made before they are written.
const BATCH_BYTES: usize = 4 << 20;

/// Why a backup is not restored.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The file can't be read.
    #[error("cannot read it: {0}")]
    Io(#[from] std::io::Error),
    /// There is no hash.
    #[error(
        "it has no hash at its end: it was cut off, or is a copy out of a data dir; for such a copy give --skip-hash-check"
    )]
    NoHash,
    /// The hash is that of other bytes.
    #[error("its bytes were altered: its SHA-256 hash is not the one at its end")]
    Altered,
    /// It is no database, or a damaged one.
    #[error(transparent)]
    Database(#[from] BadDatabase),
    /// It is one of something else than etcd, or a damaged one.
    #[error("bucket {bucket:?} is not as etcd writes it: {what}")]
    Content {
        /// The bucket.
        bucket: &'static str,
        /// What is wrong.
        what: &'static str,
    },
    /// The keys in it make no store.
    #[error(transparent)]
    Keys(#[from] RefoundError),
    /// The revisions would be too high.
    #[error("its revision {0} cannot be raised by so much")]
    Bump(i64),
    /// There is something already.
    #[error("{} is not empty", .0.display())]
    NotEmpty(PathBuf),
    /// The disk refuses.
    #[error(transparent)]
    Storage(#[from] StorageError),
}

/// A backup whose bytes are those that were written.
pub struct Backup {
    file: File,
    /// Bytes of the database, without its hash.
    len: u64,
    hash: [u8; HASH_BYTES],
}

/// What is made of a backup.
pub struct Wanted {
    /// Who is founded; its cluster is [`Backup::cluster`].
    pub identity: Identity,
    /// The cluster.
    pub genesis: Genesis,
    /// Where its revisions go on.
    pub goes_on: GoesOn,
    /// Whether users and roles are dropped: everybody may do everything then.
    pub without_users: bool,
}

/// Where a replica goes on that is made of a backup.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GoesOn {
    /// Above all revisions in it and this many more: clients may have seen others since. They list again.
    Above(u64),
    /// Where its history was last compacted. What comes after that is for the caller to do again, change by change.
    AtItsCompaction,
}

/// What was made of a backup.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Restored {
    /// The revision of the backup.
    pub of: i64,
    /// The revision at which the replica goes on.
    pub goes_on_at: Revision,
    /// How many keys there are.
    pub keys: usize,
    /// How many leases there are.
    pub leases: usize,
    /// How many keys hung on a lease that is not in the backup. They stay, without a lease.
    pub without_lease: usize,
}

/// The last versions of all keys, and how far revisions went.
#[derive(Default)]
struct Newest {
    places: HashMap<Vec<u8>, (i64, i64)>,
    revision: i64,
}

pub(super) type Buckets = HashMap<Vec<u8>, Bucket>;

impl Backup {
    /// Opens a backup and compares its hash.
    ///
    /// # Errors
    /// When it has none or another one. With `skip_hash_check` a file without one passes, and one with a wrong one.
    pub fn open(path: &Path, skip_hash_check: bool) -> Result<Self, RestoreError> {
        let mut file = File::open(path)?;
        let size = file.metadata()?.len();
        let has_hash = size % SECTOR == HASH_BYTES as u64;
        let len = if has_hash { size - HASH_BYTES as u64 } else { size };
        // What is no database at all, or ends too early, is better told so than by its hash.
        Database::open(&file, len)?;
        if !has_hash && !skip_hash_check {
            return Err(RestoreError::NoHash);
        }
        let hash = hash(&mut file, len)?;
        if has_hash && !skip_hash_check {
            let mut written = [0; HASH_BYTES];
            file.read_exact(&mut written)?;
            if written != hash {
                return Err(RestoreError::Altered);
            }
        }
        Ok(Self { file, len, hash })
    }

    /// The id of the cluster that is founded from it, where the list of members alone would give `listed`. Another backup
    /// gives another cluster: members that began with different keys never take each other for one.
    pub fn cluster(&self, listed: ClusterId) -> ClusterId {
        let mut hash = Context::new(&SHA256);
        hash.update(&listed.get().to_be_bytes());
        hash.update(&self.hash);
        let mut id = [0; 8];
        id.copy_from_slice(&hash.finish().as_ref()[..8]);
        ClusterId::new(u64::from_be_bytes(id).max(1))
    }

    /// Makes a data dir of it.
    ///
    /// # Errors
    /// When it is damaged, or the data dir is not empty.
    pub fn restore(&self, data_dir: &Path, options: Options, wanted: &Wanted) -> Result<Restored, RestoreError> {
        if wanted.goes_on != GoesOn::AtItsCompaction && is_taken(data_dir) {
            return Err(RestoreError::NotEmpty(data_dir.to_owned()));
        }
        let mut refounder = Refounder::new(wanted.identity, &wanted.genesis)?;
        let (leases, newest) = self.survey(wanted.goes_on)?;
        let mut making = Making::begin(data_dir, options)?;
        let mut written = Written { making: &mut making, bytes: 0 };
        for (id, ttl_s) in &leases {
            refounder.lease(*id, *ttl_s);
        }
        if !wanted.without_users {
            self.take_users(&mut refounder)?;
        }
        let without_lease = self.take(&mut refounder, &newest, &leases, wanted.goes_on, &mut written)?;
        let goes_on_at = match wanted.goes_on {
            GoesOn::AtItsCompaction => {
                refounder.finish_at(Revision::new(newest.revision))?;
                Revision::new(newest.revision)
            }
            GoesOn::Above(bump) => {
                let above = i64::try_from(bump).ok().and_then(|bump| newest.revision.checked_add(bump));
                refounder.finish(Revision::new(above.ok_or(RestoreError::Bump(newest.revision))?))?
            }
        };
        written.flush(&mut refounder)?;
        making.end()?;
        Ok(Restored { of: newest.revision, goes_on_at, keys: newest.places.len(), leases: leases.len(), without_lease })
    }

    pub(super) fn database(&self) -> Result<(Database<&File>, Buckets), BadDatabase> {
        let mut database = Database::open(&self.file, self.len)?;
        let buckets = database.buckets()?.into_iter().collect();
        Ok((database, buckets))
    }

    /// Reads all but the values.
    fn survey(&self, goes_on: GoesOn) -> Result<(HashMap<LeaseId, i64>, Newest), RestoreError> {
        let (mut database, buckets) = self.database()?;
        let (keys, meta) = (bucket(&buckets, schema::KEY)?, bucket(&buckets, schema::META)?);
        let mut leases = HashMap::new();
        if let Some(bucket) = buckets.get(schema::LEASE.as_bytes()) {
            database.each(bucket, |_, value| {
                let lease = StoredLease::decode(value).map_err(|_| content(schema::LEASE, "a lease is none"))?;
                if let Some(id) = LeaseId::from_wire(lease.id) {
                    leases.insert(id, lease.ttl_s);
                }
                Ok::<(), RestoreError>(())
            })?;
        }
        let mut newest = Newest { revision: 1, ..Newest::default() };
        database.each(meta, |key, value| {
            if key == schema::COMPACTED || key == schema::COMPACTING {
                let at = VersionPlace::decode(value).ok_or(content(schema::META, "a compaction has no revision"))?;
                newest.revision = newest.revision.max(at.main);
            }
            Ok::<(), RestoreError>(())
        })?;
        let until = (goes_on == GoesOn::AtItsCompaction).then_some(newest.revision);
        database.each(keys, |key, value| {
            let (place, kv) = version(key, value)?;
            if until.is_some_and(|until| place.main > until) {
                return Ok(());
            }
            newest.revision = newest.revision.max(place.main);
            if place.tombstone {
                newest.places.remove(&kv.key[..]);
            } else if !kv.key.is_empty() {
                // Without a key it is what etcdutl writes to raise the revision.
                newest.places.insert(kv.key.into(), (place.main, place.sub));
            }
            Ok::<(), RestoreError>(())
        })?;
        Ok((leases, newest))
    }

    /// Takes the users and roles over.
    fn take_users(&self, refounder: &mut Refounder) -> Result<(), RestoreError> {
        let (mut database, buckets) = self.database()?;
        if let Some(bucket) = buckets.get(schema::ROLES.as_bytes()) {
            database.each(bucket, |_, value| {
                let (name, may) = schema::stored_role(value).ok_or(content(schema::ROLES, "a role is none"))?;
                refounder.role(name, may);
                Ok::<(), RestoreError>(())
            })?;
        }
        if let Some(bucket) = buckets.get(schema::USERS.as_bytes()) {
            database.each(bucket, |_, value| {
                let user = schema::stored_user(value).ok_or(content(schema::USERS, "a user is none"))?;
                let (name, password, roles) = user;
                refounder.user(name, password, roles);
                Ok::<(), RestoreError>(())
            })?;
        }
        if let Some(bucket) = buckets.get(schema::AUTH.as_bytes()) {
            database.each(bucket, |key, value| {
                if key == schema::AUTH_ENABLED && value == [1] {
                    refounder.enable_auth();
                }
                Ok::<(), RestoreError>(())
            })?;
        }
        Ok(())
    }

    /// Takes the last version of each key over. Tells how many of them lost their lease.
    fn take(
        &self,
        refounder: &mut Refounder,
        newest: &Newest,
        leases: &HashMap<LeaseId, i64>,
        goes_on: GoesOn,
        written: &mut Written<'_>,
    ) -> Result<usize, RestoreError> {
        let (mut database, buckets) = self.database()?;
        let mut without_lease = 0;
        database.each(bucket(&buckets, schema::KEY)?, |key, value| {
            let (place, kv) = version(key, value)?;
            let sub = u32::try_from(place.sub).map_err(|_| content(schema::KEY, "a revision has too many changes"))?;
            if place.tombstone && place.main == newest.revision && goes_on == GoesOn::AtItsCompaction {
                refounder.deleted(kv.key, Revision::new(place.main), sub)?;
                return written.note(refounder, key.len());
            }
            if place.tombstone || newest.places.get(&kv.key[..]) != Some(&(place.main, place.sub)) {
                return Ok(());
            }
            if kv.mod_revision != place.main {
                return Err(content(schema::KEY, "a key stands at another revision than its own"));
            }
            let lease = LeaseId::from_wire(kv.lease);
            let kept = lease.filter(|id| leases.contains_key(id));
            without_lease += usize::from(lease != kept);
            let kv = eddy_crdt::KeyValue {
                key: kv.key,
                value: kv.value,
                create_revision: Revision::new(kv.create_revision),
                mod_revision: Revision::new(kv.mod_revision),
                version: kv.version,
                lease: kept,
            };
            refounder.key(kv, sub)?;
            written.note(refounder, value.len())
        })?;
        Ok(without_lease)
    }
}

/// Writes records down now and then, so that they are not all in memory.
struct Written<'a> {
    making: &'a mut Making,
    bytes: usize,
}

impl Written<'_> {
    fn note(&mut self, refounder: &mut Refounder, bytes: usize) -> Result<(), RestoreError> {
        self.bytes += bytes;
        if self.bytes < BATCH_BYTES {
            return Ok(());
        }
        self.bytes = 0;
        self.flush(refounder)
    }

    fn flush(&mut self, refounder: &mut Refounder) -> Result<(), RestoreError> {
        let (records, head) = refounder.records();
        Ok(self.making.append(records, &head)?)
    }
}

/// Whether there is anything but what an earlier restore left when it was broken off.
fn is_taken(data_dir: &Path) -> bool {
    let counts = |entry: std::io::Result<std::fs::DirEntry>| entry.is_ok_and(|entry| !stage::is_half_made(&entry));
    std::fs::read_dir(data_dir).is_ok_and(|mut entries| entries.any(counts))
}

pub(super) fn content(bucket: &'static str, what: &'static str) -> RestoreError {
    RestoreError::Content { bucket, what }
}

pub(super) fn bucket<'a>(buckets: &'a Buckets, name: &'static str) -> Result<&'a Bucket, RestoreError> {
    buckets.get(name.as_bytes()).ok_or(BadDatabase::NoBucket(name).into())
}

pub(super) fn version(key: &[u8], value: &[u8]) -> Result<(VersionPlace, mvccpb::KeyValue), RestoreError> {
    let place = VersionPlace::decode(key).ok_or(content(schema::KEY, "a key is no revision"))?;
    // A copy, since what is read is one page.
    let kv = mvccpb::KeyValue::decode(Bytes::copy_from_slice(value))
        .map_err(|_| content(schema::KEY, "a value is no key"))?;
    Ok((place, kv))
}

fn hash(file: &mut File, len: u64) -> std::io::Result<[u8; HASH_BYTES]> {
    let (mut hash, mut left, mut buffer) = (Context::new(&SHA256), len, vec![0; 64 << 10]);
    file.seek(SeekFrom::Start(0))?;
    while left > 0 {
        let part = &mut buffer[..left.min(64 << 10) as usize];
        file.read_exact(part)?;
        hash.update(part);
        left -= part.len() as u64;
    }
    let mut bytes = [0; HASH_BYTES];
    bytes.copy_from_slice(hash.finish().as_ref());
    Ok(bytes)
}
