//! All versions of a backup in the order of their revisions, in little memory.
//!
//! The replica holds them by key, and etcd's database wants them by revision. So they are taken in runs: the next ones
//! behind the run before, picked out of a walk over all keys. A walk reads a few versions at a time, so no write waits for it.

use eddy_crdt::{BackupMoved, BackupPoint, Key, PastPlace, PastValues, Replica, Revision};
use prost::Message;

use super::schema::{self, VersionPlace};
use crate::node::NodeError;

/// Versions in a run, unless there are many more than that.
const RUN: usize = 128 << 10;

/// At most this many runs, so that the time does not grow with the square of the keys. Beyond [`RUN`] times this, memory
/// grows with the number of versions, at a few bytes of each hundred that they take in the replica.
const RUNS_MAX: usize = 16;

/// Versions that are looked at under one lock.
const VERSIONS_PER_LOCK: usize = 64;

/// A version that is to be written.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Planned {
    /// Its revision.
    pub revision: Revision,
    /// The position within the revision.
    pub sub: u32,
    /// The position that it has in the replica.
    pub own_sub: u32,
    /// Whether it deletes its key.
    pub tombstone: bool,
    /// Bytes of its value in the database.
    pub bytes: u32,
    /// Its key.
    pub key: Key,
}

impl Planned {
    /// Where it stands in the database.
    pub fn place(&self) -> VersionPlace {
        VersionPlace { main: self.revision.get(), sub: self.sub.into(), tombstone: self.tombstone }
    }
}

/// Reads the replica under a lock that is held for this one call.
pub trait Look {
    /// Calls `look` with the replica.
    fn look<T>(&self, look: impl FnOnce(&Replica) -> T) -> T;

    /// Reads replaced values back. Does not hold the replica.
    ///
    /// # Errors
    /// When the journal cannot be read.
    fn recall(&self, places: Vec<PastPlace>) -> Result<PastValues, NodeError>;
}

/// The runs of one walk after the other.
pub struct Runs<'a, L> {
    replica: &'a L,
    point: BackupPoint,
    /// The run that was taken last. It is used again if it is the only one.
    run: Vec<Planned>,
    most: usize,
    behind: Option<(Revision, u32)>,
    more: bool,
}

impl<'a, L: Look> Runs<'a, L> {
    /// Runs from the first version on.
    pub fn new(replica: &'a L, point: BackupPoint, versions: usize) -> Self {
        Self { replica, point, run: vec![], most: RUN.max(versions / RUNS_MAX), behind: None, more: true }
    }

    /// The same with runs of that many versions.
    #[cfg(test)]
    pub fn of(self, most: usize) -> Self {
        Self { most, ..self }
    }

    /// Begins again with the first one.
    pub fn rewind(&mut self) {
        let is_only = !self.more && self.behind.is_none();
        (self.behind, self.more) = (None, true);
        if !is_only {
            self.run.clear();
        }
    }

    /// The next run, in order; `None` behind the last.
    ///
    /// # Errors
    /// When the backup must begin again.
    pub fn next(&mut self) -> Result<Option<&[Planned]>, BackupMoved> {
        if !self.more {
            return Ok(None);
        }
        if self.behind.is_none() && !self.run.is_empty() {
            // The only run is there already.
            self.more = false;
            return Ok(Some(&self.run));
        }
        self.walk()?;
        if self.more {
            self.behind = self.run.last().map(|last| (last.revision, last.sub));
        }
        Ok(Some(&self.run))
    }

    /// Looks at all keys, and keeps the lowest places behind the last run.
    fn walk(&mut self) -> Result<(), BackupMoved> {
        let (most, behind) = (self.most, self.behind);
        let run = &mut self.run;
        run.clear();
        let (mut after, mut below, mut more) = (None, None, false);
        let mut restamped = 0;
        loop {
            let next = self.replica.look(|replica| {
                replica.backup_slice(&self.point, after.as_ref(), VERSIONS_PER_LOCK, |version| {
                    let (revision, own_sub) = version.place();
                    let mut sub = own_sub;
                    if self.point.is_restamped(revision) {
                        (sub, restamped) = (restamped, restamped + 1);
                    }
                    let place = (revision, sub);
                    if Some(place) <= behind {
                        return;
                    }
                    if below.is_some_and(|below| place >= below) {
                        more = true;
                        return;
                    }
                    let mut past = PastValues::default();
                    let stored = version.stored(&past);
                    let (key, tombstone) = (stored.key.clone(), stored.kv.is_none());
                    let elsewhere: usize =
                        past.missing().iter().map(|place| schema::value_len(place.len as usize)).sum();
                    let bytes = (schema::version(stored).encoded_len() + elsewhere) as u32;
                    run.push(Planned { revision, sub, own_sub, tombstone, bytes, key });
                })
            })?;
            // What lies above the run goes as soon as it would take as much memory as the run itself.
            if run.len() > 2 * most || (next.is_none() && run.len() > most) {
                let (_, first_above, _) = run.select_nth_unstable(most);
                below = Some((first_above.revision, first_above.sub));
                run.truncate(most);
                more = true;
            }
            if next.is_none() {
                break;
            }
            after = next;
        }
        run.sort_unstable();
        self.more = more;
        Ok(())
    }
}
