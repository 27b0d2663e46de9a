//! A data dir of eddy that follows an etcd.
//!
//! ```text
//! backup of the source ─► what its last compaction left ─► each revision since ─► its watch, until told to stop
//! ```
//!
//! A note in the data dir says that the import has not ended. With it no server starts there, and another import goes on
//! with what is there, or begins again where that is no copy of the source any more.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use eddy_crdt::{Genesis, Identity};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::compare::compare;
use super::copy::Copy;
use super::error::MoveError;
use super::follow;
use super::remote::{Remote, Session, Standing};
use super::steps::Step;
use super::told::{Ended, Tell};
use crate::backup::restore::{Backup, GoesOn, Wanted};
use crate::metrics::Metrics;
use crate::node::{self, Handle, Options};
use crate::storage::{self, DiskJournal, moving, stage};

/// The file of the backup while it is read.
const FILE: &str = "eddy.import.db";

/// Revisions of the backup that wait to be done again.
const READ_AHEAD: usize = 1024;

/// What to import, and into what.
pub struct Import {
    /// Where from.
    pub source: Remote,
    /// The data dir.
    pub data_dir: PathBuf,
    /// The only member of what is founded. Its cluster is made from the backup.
    pub identity: Identity,
    /// The cluster of that member.
    pub genesis: Genesis,
    /// The newest merge engine that counts as known.
    pub engine: u32,
    /// Whether users and roles are dropped.
    pub without_users: bool,
}

impl Import {
    /// Imports until `stop`, and then to the end of the source.
    ///
    /// # Errors
    /// When the source cannot be read, or the copy cannot be written or is no copy.
    pub async fn run(&self, stop: &CancellationToken, tell: Tell<'_>) -> Result<Ended, MoveError> {
        stage::finish(&self.data_dir)?;
        loop {
            let session = self.source.connect().await?;
            let standing = session.standing().await?;
            let found = match self.find(&session, standing, tell).await? {
                Some(copy) => Ok(copy),
                None => tokio::select! {
                    begun = self.begin(&session, standing, tell) => begun,
                    () = stop.cancelled() => {
                        return Err(MoveError::Refused("stopped before there was a copy: begin again".to_owned()));
                    }
                },
            };
            let followed = match found {
                Ok(copy) => {
                    let node = copy.node.clone();
                    let followed = follow::follow(&self.source, &self.data_dir, copy, session, stop, tell).await;
                    shut_down(node).await?;
                    followed
                }
                Err(error) => Err(error),
            };
            match followed {
                Ok(ended) => {
                    moving::end(&self.data_dir)?;
                    return Ok(ended);
                }
                Err(error @ MoveError::Compacted(_)) if !stop.is_cancelled() => {
                    tell(format!("{error}, so the copy is begun again"));
                    moving::begin(&self.data_dir, &note(standing))?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// What an earlier import left, if that is a copy of this source.
    async fn find(&self, session: &Session, standing: Standing, tell: Tell<'_>) -> Result<Option<Copy>, MoveError> {
        let is_noted = match moving::read(&self.data_dir)? {
            Some(noted) if noted == note(standing) => true,
            Some(noted) => {
                return Err(MoveError::Refused(format!(
                    "{} has an import from another cluster ({}): empty it first",
                    self.data_dir.display(),
                    noted.trim()
                )));
            }
            None => false,
        };
        let is_there = stage::is_there(&self.data_dir)?;
        if !is_noted {
            let mut entries = std::fs::read_dir(&self.data_dir).into_iter().flatten();
            if is_there || entries.any(|entry| entry.is_ok_and(|entry| !stage::is_half_made(&entry))) {
                return Err(MoveError::Refused(format!("{} is not empty", self.data_dir.display())));
            }
        }
        if !is_noted || !is_there {
            moving::begin(&self.data_dir, &note(standing))?;
            return Ok(None);
        }
        let copy = Copy::of(self.open()?).await?;
        let at = copy.revision();
        let found = if at > standing.revision {
            Err(MoveError::Apart { expected: standing.revision, found: at })
        } else {
            compare(session, &copy.node, at, 0).await
        };
        match found {
            Ok(found) if found.other_versions == 0 => {
                tell(format!("goes on at revision {at}, where {} keys are equal", found.keys));
                Ok(Some(copy))
            }
            Err(error) if error.passes() => {
                shut_down(copy.node).await?;
                Err(error)
            }
            found => {
                let why = found.err().map_or("versions of keys differ".to_owned(), |error| error.to_string());
                tell(format!("what an earlier import left is of no use ({why}): the copy is begun again"));
                shut_down(copy.node).await?;
                moving::begin(&self.data_dir, &note(standing))?;
                Ok(None)
            }
        }
    }

    /// Makes the copy: a backup, and all that it knows of the past.
    async fn begin(&self, session: &Session, standing: Standing, tell: Tell<'_>) -> Result<Copy, MoveError> {
        let path = self.data_dir.join(FILE);
        let since = Instant::now();
        tell(format!("copies {} at revision {} or later", session.url, standing.revision));
        let bytes = session.save(&path).await?;
        tell(format!("has {bytes} bytes of it after {:.1} s", since.elapsed().as_secs_f32()));
        let backup = Arc::new(Backup::open(&path, false)?);
        let mut identity = self.identity;
        identity.cluster = backup.cluster(identity.cluster);
        let (genesis, without_users) = (self.genesis.clone(), self.without_users);
        let wanted = Wanted { identity, genesis, goes_on: GoesOn::AtItsCompaction, without_users };
        let (data_dir, read) = (self.data_dir.clone(), Arc::clone(&backup));
        let restored = blocking(move || read.restore(&data_dir, storage::Options::default(), &wanted)).await??;
        let mut copy = Copy::of(self.open()?).await?;
        let done = self.history(&mut copy, &backup, restored.of).await;
        if let Err(error) = done {
            shut_down(copy.node).await?;
            return Err(error);
        }
        std::fs::remove_file(&path).map_err(|source| MoveError::File { path: path.display().to_string(), source })?;
        tell(format!(
            "has the history from revision {} to {} after {:.1} s",
            restored.of,
            copy.revision(),
            since.elapsed().as_secs_f32()
        ));
        Ok(copy)
    }

    /// Does again what happened in a backup behind a revision.
    async fn history(&self, copy: &mut Copy, backup: &Arc<Backup>, after: i64) -> Result<(), MoveError> {
        let (send, mut steps) = mpsc::channel(READ_AHEAD);
        let read = Arc::clone(backup);
        let reading = tokio::task::spawn_blocking(move || {
            read.each_after(after, |revision, events| {
                let gone = |_| MoveError::Strange("nobody takes its history".to_owned());
                send.blocking_send(Step { revision, events }).map_err(gone)
            })
        });
        while let Some(step) = steps.recv().await {
            copy.take(step).await?;
        }
        copy.settle().await?;
        reading.await.map_err(|_| MoveError::Strange("the reader of the backup failed".to_owned()))?
    }

    /// Opens what is in the data dir.
    fn open(&self) -> Result<Handle, MoveError> {
        let journal = DiskJournal::open(&self.data_dir, storage::Options::default())?;
        let metrics = Metrics::new(false).map_err(|error| MoveError::Refused(error.to_string()))?;
        let options = Options {
            engine: self.engine,
            quota: None,
            keeps_leases: true,
            ..Options::new(self.identity, self.data_dir.join("eddy"), Arc::new(metrics))
        };
        Ok(node::start(Box::new(journal), options)?)
    }
}

/// What the note in the data dir says.
fn note(standing: Standing) -> String {
    format!("from cluster {:x}\n", standing.cluster)
}

async fn blocking<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> Result<T, MoveError> {
    tokio::task::spawn_blocking(run).await.map_err(|_| MoveError::Strange("a thread failed".to_owned()))
}

async fn shut_down(node: Handle) -> Result<(), MoveError> {
    match blocking(move || node.shutdown()).await? {
        true => Ok(()),
        false => Err(MoveError::Refused("the disk does not answer".to_owned())),
    }
}
