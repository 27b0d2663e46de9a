//! Checkpoints: all live records up to some place of the log, in a tree of their own.
//!
//! A checkpoint is built aside from the one before and the log, while the log goes on. Once it is whole and durable it is named
//! the current one; then the one before and the log's old segments go. Building takes steps, rests between them, and can
//! be given up at any time. Whatever goes wrong before the naming, the old one stays and nothing is lost.

pub(super) mod job;
pub(super) mod sled;
pub(super) mod source;
pub(super) mod tree;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use self::source::Source;
use self::tree::{Draft, Pacing, Tree, Trees};
use super::current::Current;
use super::dir::{damaged, io};
use super::disk::Disk;
use super::error::StorageError;
use super::page::{self, META_KEY, Meta, Packer};

/// The folder of a checkpoint.
pub(super) fn folder(root: &Path, number: u64) -> PathBuf {
    root.join(format!("checkpoint.{number}"))
}

/// Whether that is the name of such a folder.
pub(super) fn is_folder(name: &str) -> bool {
    name.strip_prefix("checkpoint.")
        .is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
}

/// What is needed to build one.
#[derive(Debug)]
pub(super) struct Plan {
    /// What is live: it does not change any more.
    pub source: Source,
    /// The state then.
    pub meta: Meta,
    pub trees: Arc<dyn Trees>,
    pub disk: Arc<dyn Disk>,
    pub root: PathBuf,
    /// Its number.
    pub number: u64,
    /// The log's first segment that is not in it.
    pub segment: u64,
}

impl Plan {
    /// What the naming will say.
    fn current(&self) -> Current {
        Current { checkpoint: Some(self.number), segment: self.segment, end: None }
    }
}

/// A checkpoint that has its name.
#[derive(Debug)]
pub(super) struct Built {
    pub tree: Arc<dyn Tree>,
    pub current: Current,
}

/// Why there is none.
#[derive(Debug)]
pub(super) struct Failure {
    pub error: StorageError,
    /// Nobody knows which of the two is named now.
    pub fatal: bool,
}

impl From<StorageError> for Failure {
    fn from(error: StorageError) -> Self {
        Self { error, fatal: false }
    }
}

/// A checkpoint on its way.
pub(super) struct Build {
    plan: Plan,
    stage: Stage,
    /// The last record that was copied.
    reached: Option<u64>,
    /// What was copied, counted.
    seen: Meta,
}

enum Stage {
    Begin,
    Copy(Box<dyn Draft>),
    Finish(Box<dyn Draft>),
    Open,
    Name(Arc<dyn Tree>),
    Ended,
}

impl Build {
    pub fn new(plan: Plan) -> Self {
        Self { plan, stage: Stage::Begin, reached: None, seen: Meta::default() }
    }

    /// Goes on by about so many bytes. `None`: there is more to do.
    pub fn step(&mut self, bytes: usize, pacing: &dyn Pacing) -> Result<Option<Built>, Failure> {
        let naming = matches!(self.stage, Stage::Name(_));
        let stepped = if pacing.stopped() { Err(StorageError::Abandoned) } else { self.try_step(bytes, pacing) };
        stepped.map_err(|error| {
            self.stage = Stage::Ended;
            let fatal = naming && !matches!(error, StorageError::NoSpace { .. } | StorageError::Abandoned);
            if !fatal {
                self.discard();
            }
            Failure { error, fatal }
        })
    }

    fn path(&self) -> PathBuf {
        folder(&self.plan.root, self.plan.number)
    }

    /// Removes what there is of it; what cannot be removed now goes at the next start.
    fn discard(&self) {
        let path = self.path();
        if let Err(error) = self.plan.disk.remove_tree(&path) {
            tracing::warn!(%error, path = %path.display(), "could not remove what there is of a checkpoint");
        }
    }

    fn try_step(&mut self, bytes: usize, pacing: &dyn Pacing) -> Result<Option<Built>, StorageError> {
        let path = self.path();
        self.stage = match std::mem::replace(&mut self.stage, Stage::Ended) {
            Stage::Begin => {
                self.plan.disk.remove_tree(&path).map_err(io("remove", &path))?;
                Stage::Copy(self.plan.trees.create(&path)?)
            }
            Stage::Copy(draft) => self.copy(draft, bytes, pacing)?,
            Stage::Finish(draft) => {
                draft.finish(pacing)?;
                Stage::Open
            }
            Stage::Open => Stage::Name(self.plan.trees.open(&path)?),
            Stage::Name(tree) => {
                self.plan.current().write(&*self.plan.disk, &self.plan.root)?;
                return Ok(Some(Built { tree, current: self.plan.current() }));
            }
            Stage::Ended => return Err(StorageError::Abandoned),
        };
        Ok(None)
    }

    fn copy(&mut self, mut draft: Box<dyn Draft>, bytes: usize, pacing: &dyn Pacing) -> Result<Stage, StorageError> {
        let mut packer = Packer::new();
        let mut reader = self.plan.source.read_after(self.reached)?;
        while packer.bytes() < bytes {
            let Some((number, record)) = reader.next()? else {
                draft.insert(packer.finish(None), pacing)?;
                self.check()?;
                let meta = page::encode_meta(&self.plan.meta);
                draft.insert(vec![(META_KEY, meta)], pacing)?;
                return Ok(Stage::Finish(draft));
            };
            self.seen.add(number, &record);
            packer.push(number, &record);
            self.reached = Some(number);
        }
        draft.insert(packer.finish(None), pacing)?;
        Ok(Stage::Copy(draft))
    }

    /// What was copied must be what is live.
    fn check(&self) -> Result<(), StorageError> {
        let Meta { live, live_bytes, sum, .. } = self.plan.meta;
        if (live, live_bytes, sum) == (self.seen.live, self.seen.live_bytes, self.seen.sum) {
            return Ok(());
        }
        let what =
            format!("{live} records should go into a checkpoint, {} were found, or some were altered", self.seen.live);
        Err(damaged(&self.plan.root, what))
    }
}

/// What goes when another checkpoint is current.
#[derive(Debug)]
pub(super) struct Clean {
    /// The old checkpoint, closed first.
    pub tree: Option<Arc<dyn Tree>>,
    pub folder: Option<PathBuf>,
    /// Segments of the log.
    pub files: Vec<PathBuf>,
    pub disk: Arc<dyn Disk>,
}

impl Clean {
    /// Removes it; what cannot be removed now goes at the next start.
    pub fn run(self) {
        drop(self.tree);
        let trees = self.folder.iter().map(|path| (path, self.disk.remove_tree(path)));
        let files = self.files.iter().map(|path| (path, self.disk.remove(path)));
        for (path, result) in trees.chain(files) {
            if let Err(error) = result {
                tracing::warn!(%error, path = %path.display(), "could not remove what an older checkpoint needed");
            }
        }
    }
}
