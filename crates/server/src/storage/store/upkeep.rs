//! When a checkpoint is due, and what becomes of it.

use std::sync::Arc;
use std::time::Instant;

use super::super::checkpoint::job::{Done, Job, Pace, Work};
use super::super::checkpoint::source::Source;
use super::super::checkpoint::{self, Build, Built, Clean, Failure, Plan};
use super::super::dir::io;
use super::super::error::StorageError;
use super::super::overlay::Overlay;
use super::Store;

/// Where the disk is low, a log of so much more than half of what is live is worth a checkpoint, bytes.
const LOG_BYTES_LOW: u64 = 1 << 20;

/// So many times what makes a checkpoint due, and a log waits for it.
const HURRY_FACTOR: u64 = 2;

/// What a checkpoint of nothing takes, bytes, and how often it writes what is live.
const CHECKPOINT_BYTES: u64 = 4 << 20;
const CHECKPOINT_FACTOR: u64 = 3;

impl Store {
    fn is_due(&self) -> bool {
        let (log, live) = (self.wal.bytes(), self.meta.live_bytes);
        // On a small disk earlier: when the log takes more than is free.
        let bound = self.setup.log_bytes.min(self.free.max(LOG_BYTES_LOW));
        let outgrown = log > bound.max(live) || self.low && log > LOG_BYTES_LOW + live / 2;
        outgrown && self.not_before.is_none_or(|at| Instant::now() >= at)
    }

    /// Has a checkpoint rest no more where the log grows faster than it: the log goes on to take space until that is whole.
    fn hurry(&self) {
        let far = HURRY_FACTOR * self.setup.log_bytes.max(self.meta.live_bytes);
        if let Some(job) = self.job.as_ref().filter(|_| self.low || self.wal.bytes() > far.min(self.free)) {
            job.hurry();
        }
    }

    /// Whether a checkpoint is on its way, so that `work` should be called again.
    pub fn is_busy(&self) -> bool {
        self.job.is_some()
    }

    /// Begins a checkpoint if one is due, takes over one that has ended. Takes no longer than an append.
    pub fn work(&mut self) -> Result<(), StorageError> {
        self.ready()?;
        if let Some(job) = &mut self.job {
            let Some(outcome) = job.poll() else {
                self.hurry();
                return Ok(());
            };
            self.job = None;
            return self.ended(outcome, self.setup.pace).or_else(|e| self.put_off(e));
        }
        if self.is_due() {
            return self.begin(self.setup.pace).or_else(|e| self.put_off(e));
        }
        Ok(())
    }

    /// Tries again later, unless nothing can be written any more.
    fn put_off(&mut self, error: StorageError) -> Result<(), StorageError> {
        if self.poisoned {
            return Err(error);
        }
        tracing::warn!(%error, "no checkpoint for now; the log goes on growing");
        self.not_before = Some(Instant::now() + self.setup.retry);
        Ok(())
    }

    fn begin(&mut self, pace: Pace) -> Result<(), StorageError> {
        let need = self.meta.live_bytes * CHECKPOINT_FACTOR + CHECKPOINT_BYTES;
        if self.setup.disk.available(&self.setup.root).is_some_and(|free| free < need) {
            return Err(StorageError::NoSpace {
                path: checkpoint::folder(&self.setup.root, self.current.next_checkpoint()),
            });
        }
        self.sync()?;
        let rolled = self.wal.roll();
        let segment = self.note(rolled)?;
        let overlay = Arc::new(std::mem::replace(&mut self.fresh, Overlay::above(self.meta.next)));
        self.frozen = Some(Arc::clone(&overlay));
        let plan = Plan {
            source: Source { tree: self.tree.clone(), overlay, logs: self.wal.logs().clone() },
            meta: self.meta.clone(),
            trees: Arc::clone(&self.setup.trees),
            disk: Arc::clone(&self.setup.disk),
            root: self.setup.root.clone(),
            number: self.current.next_checkpoint(),
            segment,
        };
        match Job::start(Work::Build(Box::new(Build::new(plan))), pace) {
            Ok(job) => self.job = Some(job),
            Err(e) => {
                self.thaw();
                return Err(io("start a thread for", &self.setup.root)(e));
            }
        }
        Ok(())
    }

    /// What should have gone into a checkpoint goes on to lie in the log.
    fn thaw(&mut self) {
        if let Some(frozen) = self.frozen.take() {
            let mut below = Arc::unwrap_or_clone(frozen);
            below.absorb(std::mem::take(&mut self.fresh));
            self.fresh = below;
        }
    }

    fn ended(&mut self, outcome: Result<Done, Failure>, pace: Pace) -> Result<(), StorageError> {
        match outcome {
            Ok(Done::Cleaned) => {
                self.look_at_space();
                Ok(())
            }
            Ok(Done::Built(Built { tree, current })) => {
                let before = std::mem::replace(&mut self.current, current);
                let folder = before.checkpoint.map(|number| checkpoint::folder(&self.setup.root, number));
                self.frozen = None;
                self.page = Vec::new();
                self.not_before = None;
                let tree = self.tree.replace(tree);
                let files = self.wal.forget_before(current.segment);
                let clean = Clean { tree, folder, files, disk: Arc::clone(&self.setup.disk) };
                // Without a thread the next start removes it.
                self.job = Job::start(Work::Clean(clean), pace).ok();
                Ok(())
            }
            Err(Failure { error, fatal }) => {
                self.thaw();
                self.poisoned |= fatal;
                Err(error)
            }
        }
    }

    /// Waits for what is on its way; gives up a checkpoint.
    pub(super) fn stop_job(&mut self) -> Result<(), StorageError> {
        while let Some(job) = self.job.take() {
            match self.ended(job.stop(), self.setup.pace) {
                Err(e) if self.poisoned => return Err(e),
                Err(error) => tracing::debug!(%error, "a checkpoint was given up"),
                Ok(()) => {}
            }
        }
        Ok(())
    }

    /// Makes a checkpoint now, and waits for it.
    pub fn defragment(&mut self) -> Result<(), StorageError> {
        self.ready()?;
        if self.meta.generation == 0 {
            return Ok(());
        }
        self.stop_job()?;
        let mut meta = self.meta.clone();
        let high_water = std::mem::replace(&mut meta.high_water, meta.live_bytes);
        self.write(0, &[], meta)?;
        let pace = if matches!(self.setup.pace, Pace::Steps(_)) { self.setup.pace } else { Pace::Hurry };
        let mut result = self.begin(pace);
        while let Some(job) = self.job.take() {
            result = result.and(self.ended(job.wait(), pace));
        }
        if result.is_err() {
            self.meta.high_water = self.meta.high_water.max(high_water);
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use bytes::Bytes;

    use super::super::super::cuts::{created, load};
    use super::*;

    /// What is live was written over, and the log goes on to grow while that is copied.
    #[test]
    fn a_checkpoint_hurries_when_the_log_grows_faster_than_it() {
        let disk = created(1);
        let (mut store, _) = load(&disk, 1).unwrap();
        let mut first = 0;
        let mut append = |store: &mut Store| {
            let records = vec![Bytes::from(vec![7; 300]); 20];
            store.append(first, &records, Bytes::new()).unwrap();
            store.trim(&mut (0..first).collect::<BTreeSet<_>>(), usize::MAX, &mut |_, _| None).unwrap();
            first += 20;
            store.sync().unwrap();
        };
        append(&mut store);
        store.work().unwrap();
        append(&mut store);
        store.work().unwrap();
        let hurries = |store: &Store| store.job.as_ref().map(Job::hurries);
        assert_eq!(hurries(&store), Some(false), "{} bytes of log", store.wal.bytes());
        append(&mut store);
        append(&mut store);
        store.work().unwrap();
        assert_eq!(hurries(&store), Some(true), "{} bytes of log", store.wal.bytes());
        while store.is_busy() {
            store.work().unwrap();
        }
        assert!(store.wal.bytes() < 20_000, "{} bytes of log", store.wal.bytes());
    }
}
