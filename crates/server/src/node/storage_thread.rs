//! The one thread that touches the journal. It flushes groups and publishes them; between groups it rewrites records that
//! a compaction left dead.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::answer::{Answer, answer, answer_all};
use super::engine::Engine;
use super::error::NodeError;
use super::past::Reading;
use super::pipe::{Flush, Received, Work};
use crate::storage::{Group, Journal, StorageError};

/// How many bytes of records are trimmed between two groups.
const TRIM_SLICE_BYTES: usize = 128 << 10;

/// How often to look whether the journal has done what it does in the background, where no write comes.
const BUSY_EVERY: Duration = Duration::from_millis(20);

/// How often the bytes on disk are counted at most: that takes a walk through directories.
const COUNT_INTERVAL: Duration = Duration::from_secs(10);

/// How long after a full disk to go on trimming.
const TRIM_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// How often the groups that wait for space are tried again.
const RETRY_EVERY: Duration = Duration::from_secs(1);

/// See the module.
pub(crate) struct StorageThread {
    engine: Arc<Engine>,
    journal: Box<dyn Journal>,
    dead: BTreeSet<u64>,
    /// How many sweeps told these.
    trims: usize,
    /// When what is dead may be trimmed again, after the disk was full.
    trims_after: Option<Instant>,
    /// Whether something was trimmed that no flush has made durable yet.
    unsynced: bool,
    waiting: Vec<Answer>,
    /// Reads of replaced values, a slice of each in turn.
    reads: VecDeque<Reading>,
    /// When the bytes on disk were last counted.
    counted: Option<Instant>,
    /// Groups that are applied but found the disk full. Their clients were told that the outcome is unknown. The groups
    /// are written once there is space, before anything else.
    parked: VecDeque<Flush>,
}

/// Drops the work in the pipe when the thread ends, by a panic too.
struct Farewell(Arc<Engine>);

impl Drop for Farewell {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.stop_writes("the storage thread failed");
        }
        self.0.pipe.abandon();
    }
}

impl StorageThread {
    pub(crate) fn new(engine: Arc<Engine>, journal: Box<dyn Journal>) -> Self {
        let (dead, waiting) = (BTreeSet::new(), Vec::new());
        Self {
            engine,
            journal,
            dead,
            trims: 0,
            trims_after: None,
            unsynced: false,
            waiting,
            reads: VecDeque::new(),
            counted: None,
            parked: VecDeque::new(),
        }
    }

    /// Runs until the pipe is closed and empty.
    pub(crate) fn run(mut self) {
        let _farewell = Farewell(Arc::clone(&self.engine));
        self.note_sizes();
        loop {
            match self.receive() {
                Received::Work(Work::Flush(flush)) => self.flush(*flush),
                Received::Work(Work::Trim { dead, waiting }) => {
                    self.dead.extend(dead);
                    self.waiting.extend(waiting);
                    self.trims += 1;
                }
                Received::Work(Work::Read(reading)) => self.reads.push_back(reading),
                Received::Work(Work::Defragment(reply)) => self.defragment(reply),
                Received::Nothing if !self.parked.is_empty() => self.retry(),
                Received::Nothing if self.trim_pending() || !self.reads.is_empty() => {}
                Received::Nothing => self.note_sizes(),
                Received::Closed => break,
            }
            if let Some(reading) = self.reads.pop_front() {
                self.reads.extend(reading.go_on(&mut *self.journal));
            }
            if self.trim_pending() {
                self.trim();
            }
            self.work();
        }
        self.retry();
        if self.unsynced && self.engine.is_writable() {
            self.sync();
        }
    }

    /// Waits for work, but only while there is nothing else to do.
    fn receive(&self) -> Received {
        let full = !self.parked.is_empty();
        let wait = match () {
            () if self.trim_pending() || !self.reads.is_empty() => Some(Duration::ZERO),
            () if self.engine.is_writable() && self.journal.is_busy() => Some(BUSY_EVERY),
            () if full || self.engine.admission.disk_low.load(Ordering::Relaxed) => Some(RETRY_EVERY),
            () => None,
        };
        self.engine.pipe.receive(wait)
    }

    /// Lets the journal do what is due besides.
    fn work(&mut self) {
        if !self.engine.is_writable() {
            return;
        }
        let was_busy = self.journal.is_busy();
        if let Err(error) = self.journal.work() {
            return self.stop_writes(&error);
        }
        if was_busy && !self.journal.is_busy() {
            self.counted = None;
            self.note_sizes();
        }
    }

    fn flush(&mut self, mut flush: Flush) {
        if !self.engine.is_writable() {
            return self.refuse(flush);
        }
        if !self.parked.is_empty() {
            return self.park(flush);
        }
        match self.append(&mut flush) {
            Ok(()) => self.publish(flush),
            Err(error @ StorageError::NoSpace { .. }) => {
                self.engine.pause_writes(&error);
                self.park(flush);
            }
            Err(error) => {
                self.stop_writes(&error);
                self.refuse(flush);
            }
        }
    }

    fn append(&mut self, flush: &mut Flush) -> Result<(), StorageError> {
        let Some(unwritten) = &mut flush.group else { return Ok(()) };
        let (first, head) = (unwritten.first, unwritten.head.encode());
        let group = Group { first, records: std::mem::take(&mut unwritten.records), head };
        #[cfg(debug_assertions)]
        super::faults::before_append(&group)?;
        self.engine.begin_append();
        let appended = self.journal.append(&group);
        self.engine.end_append();
        // They are written again where the disk is full.
        unwritten.records = group.records;
        self.engine.metrics.flushed(&appended?, flush.since.elapsed());
        self.unsynced = false;
        self.note_sizes();
        Ok(())
    }

    /// Keeps a group until there is space.
    fn park(&mut self, mut flush: Flush) {
        for (reply, _) in flush.replies.drain(..) {
            answer(reply, Err(NodeError::TimedOut));
        }
        self.parked.push_back(flush);
    }

    /// Writes the groups that wait for space, if there is space now.
    fn retry(&mut self) {
        while let Some(mut flush) = self.parked.pop_front() {
            match self.append(&mut flush) {
                Ok(()) => self.publish(flush),
                Err(StorageError::NoSpace { .. }) => return self.parked.push_front(flush),
                Err(error) => {
                    self.parked.clear();
                    return self.stop_writes(&error);
                }
            }
            if self.parked.is_empty() {
                self.engine.resume_writes();
            }
        }
    }

    fn publish(&self, mut flush: Flush) {
        let engine = &self.engine;
        engine.durable.store(flush.revision.get(), Ordering::Release);
        engine.published_groups.store(flush.number, Ordering::Release);
        // A client that is told of a change of the members or of users must find them changed.
        if let Some(durable) = flush.durable.take_if(|durable| engine.peering.changes_members(durable)) {
            engine.peering.publish(durable);
        }
        answer_all(engine, flush.replies);
        engine.hub.publish(flush.commits, flush.revision);
        if flush.leapt {
            engine.hub.leap();
        }
        if let Some(durable) = flush.durable {
            engine.peering.publish(durable);
        }
        engine.durable_number.send_if_modified(|durable| {
            let grew = *durable < flush.next_number;
            *durable = flush.next_number;
            grew
        });
        if flush.poke {
            engine.queue.poke();
        }
    }

    fn refuse(&self, flush: Flush) {
        for (reply, _) in flush.replies {
            answer(reply, Err(self.engine.write_error()));
        }
    }

    fn stop_writes(&mut self, error: &StorageError) {
        self.engine.stop_writes(&error.to_string());
        self.dead.clear();
        for (reply, _) in self.waiting.drain(..) {
            answer(reply, Err(self.engine.write_error()));
        }
    }

    fn trim_pending(&self) -> bool {
        let may_trim = self.trims_after.is_none_or(|after| Instant::now() >= after);
        self.engine.is_writable()
            && self.parked.is_empty()
            && may_trim
            && (!self.dead.is_empty() || !self.waiting.is_empty())
    }

    fn trim(&mut self) {
        if !self.dead.is_empty() {
            let engine = Arc::clone(&self.engine);
            let trimmed = self
                .journal
                .trim(&mut self.dead, TRIM_SLICE_BYTES, &mut |_, record| engine.replica.read().trim(record));
            match trimmed {
                Ok(()) => self.unsynced = true,
                Err(error @ StorageError::NoSpace { .. }) => {
                    // Nothing was changed. Dead records do no harm.
                    tracing::warn!(%error, "what a compaction dropped stays on disk for now");
                    self.trims_after = Some(Instant::now() + TRIM_AGAIN_AFTER);
                    for (reply, result) in self.waiting.drain(..) {
                        answer(reply, result);
                    }
                    return;
                }
                Err(error) => return self.stop_writes(&error),
            }
        }
        self.trims_after = None;
        if self.dead.is_empty() {
            let trims = std::mem::take(&mut self.trims);
            self.engine.trims_waiting.fetch_sub(trims, Ordering::AcqRel);
            if self.unsynced {
                self.sync();
            }
            for (reply, result) in self.waiting.drain(..) {
                answer(reply, result);
            }
            self.note_sizes();
        }
    }

    fn sync(&mut self) {
        match self.journal.sync() {
            Ok(()) => self.unsynced = false,
            Err(error) => self.stop_writes(&error),
        }
    }

    fn defragment(&mut self, reply: oneshot::Sender<Result<(), NodeError>>) {
        let since = Instant::now();
        let result = self.journal.defragment();
        self.engine.metrics.defragmented(since.elapsed());
        if let Err(StorageError::Poisoned) = &result {
            self.stop_writes(&StorageError::Poisoned);
        }
        // What it freed is seen at once.
        self.counted = None;
        self.note_sizes();
        let result = result.map_err(|error| NodeError::Storage(error.to_string()));
        if reply.send(result).is_err() {
            tracing::debug!("the client that asked for a defragmentation has gone");
        }
    }

    fn note_sizes(&mut self) {
        let admission = &self.engine.admission;
        let low = self.journal.is_low_on_space();
        if low != admission.disk_low.swap(low, Ordering::Relaxed) {
            tracing::warn!(low, "free space of the disk");
        }
        admission.size_allocated.store(self.journal.size_allocated(), Ordering::Relaxed);
        admission.size_in_use.store(self.journal.size_in_use(), Ordering::Relaxed);
        if self.counted.is_none_or(|counted| counted.elapsed() >= COUNT_INTERVAL) {
            self.counted = Some(Instant::now());
            admission.size_on_disk.store(self.journal.size_on_disk(), Ordering::Relaxed);
            *admission.free_on_disk.lock() = self.journal.free_on_disk();
        }
    }
}
