//! What a backup reads: all versions of client keys up to one revision, slice by slice.
//!
//! A backup is of one moment ([`BackupPoint`]). Versions are only ever added behind it, and who makes the backup keeps
//! sweeps from dropping any meanwhile. So each slice may be read under a lock of its own.

use crate::command::op::KeyValue;
use crate::replica::Replica;
use crate::store::index::{Index, KeyVersion};
use crate::store::past::PastValues;
use crate::store::walk::{self, VersionCursor};
use crate::words::id::LeaseId;
use crate::words::key::Key;
use crate::words::revision::Revision;

/// The moment that a backup is of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BackupPoint {
    /// The newest revision in it.
    pub revision: Revision,
    /// The revision of the last compaction before it.
    pub compacted: Option<Revision>,
    /// Keys that were last written before this revision show it; another value means that all revisions have changed.
    restamped: Option<Revision>,
}

impl BackupPoint {
    /// Whether the versions of that revision were stamped anew. Their positions within it are not their own then: several
    /// have the same.
    pub fn is_restamped(&self, revision: Revision) -> bool {
        self.restamped == Some(revision)
    }
}

/// A version of a key on which a backup comes.
#[derive(Clone, Copy, Debug)]
pub struct VersionAt<'a> {
    key: &'a Key,
    version: &'a KeyVersion,
    index: &'a Index,
}

impl VersionAt<'_> {
    /// The revision that made it, and its position within that revision.
    pub fn place(&self) -> (Revision, u32) {
        (self.version.revision, self.version.sub)
    }

    /// What it says. The value is empty where `past` lacks it.
    pub fn stored(&self, past: &PastValues) -> StoredVersion {
        StoredVersion { key: self.key.clone(), kv: self.version.to_key_value(self.key, self.index.past(past)) }
    }
}

/// A version of a key as a backup holds it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoredVersion {
    /// The key.
    pub key: Key,
    /// What the key held; `None` where it was deleted.
    pub kv: Option<KeyValue>,
}

/// The keys were stamped anew since the backup began, so its revisions are not those of this replica any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the revisions of all keys changed while the backup was made")]
pub struct BackupMoved;

impl Replica {
    /// The present moment.
    pub fn backup_point(&self) -> BackupPoint {
        let state = &self.state;
        BackupPoint { revision: state.revision, compacted: state.compacted, restamped: state.restamped }
    }

    /// Shows the next versions that belong to the backup, behind a place or from the first key on. Looks at about `max` of
    /// them. Tells where to go on, or `None` when there are no more.
    ///
    /// # Errors
    /// When the backup must begin again.
    pub fn backup_slice(
        &self,
        point: &BackupPoint,
        cursor: Option<&VersionCursor>,
        max: usize,
        mut visit: impl FnMut(VersionAt<'_>),
    ) -> Result<Option<VersionCursor>, BackupMoved> {
        self.check_point(point)?;
        let span = (point.revision, point.compacted);
        let index = &self.state.index;
        Ok(walk::slice(index, span, cursor, max, |key, version, _| {
            // As in etcd, a tombstone at the compacted revision itself stays: a watch may start there.
            if version.is_live() || Some(version.revision) >= point.compacted {
                visit(VersionAt { key, version, index });
            }
        }))
    }

    /// The version of a key at that place in history. Its value is empty where `past` lacks it.
    ///
    /// # Errors
    /// When the backup must begin again.
    pub fn backup_version(
        &self,
        point: &BackupPoint,
        key: &Key,
        (revision, sub): (Revision, u32),
        past: &PastValues,
    ) -> Result<StoredVersion, BackupMoved> {
        self.check_point(point)?;
        let (_, version) = self.state.index.at(key, revision, sub).ok_or(BackupMoved)?;
        Ok(VersionAt { key, version, index: &self.state.index }.stored(past))
    }

    fn check_point(&self, point: &BackupPoint) -> Result<(), BackupMoved> {
        (self.state.restamped == point.restamped).then_some(()).ok_or(BackupMoved)
    }

    /// All leases with the time to live that they were granted, in order of id. Keys may hang on a lease that is not there
    /// and run out soon; such a lease is told with the shortest time.
    pub fn backup_leases(&self) -> impl Iterator<Item = (LeaseId, i64)> + '_ {
        self.state.leases.granted()
    }
}
