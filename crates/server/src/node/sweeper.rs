//! When the committer sweeps what a compaction hid, and what else is dead: in slices, between groups.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::answer::{Answer, answer};
use super::engine::Engine;
use super::error::NodeError;
use super::pipe::Work;

/// After this many records, or bytes of them, the committer sweeps even without a compaction: ended leases, alarms and what left
/// the log leave dead records.
const RECORDS_PER_SWEEP: usize = 4096;
const BYTES_PER_SWEEP: usize = 8 << 20;

/// How fast a sweep drops what a compaction hid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SweepPace {
    /// About how many changes one slice drops.
    pub batch: usize,
    /// Pause between two slices.
    pub pause: Duration,
}

impl Default for SweepPace {
    /// etcd's.
    fn default() -> Self {
        Self { batch: 1000, pause: Duration::from_millis(10) }
    }
}

/// Whether there is something to sweep, and when.
pub(super) struct Sweeper {
    engine: Arc<Engine>,
    pace: SweepPace,
    /// Whether something may be left to sweep.
    sweeping: bool,
    /// The group with the last compaction. Sweeping waits until it is durable.
    after: u64,
    /// When the next slice may begin.
    next_slice: Instant,
    /// What was journalled since a sweep began last.
    records: usize,
    bytes: usize,
    /// Physical compactions, answered when the sweep is done and on disk.
    physical: Vec<Answer>,
}

impl Sweeper {
    pub(super) fn new(engine: Arc<Engine>, pace: SweepPace) -> Self {
        Self {
            engine,
            pace,
            // Records that died before the last stop may still be on disk.
            sweeping: true,
            after: 0,
            next_slice: Instant::now(),
            records: 0,
            bytes: 0,
            physical: Vec::new(),
        }
    }

    /// A group was handed on under that number, with so many records and bytes. `compacted`: with a compaction.
    pub(super) fn note_group(&mut self, number: u64, records: usize, bytes: usize, compacted: bool) {
        self.records += records;
        self.bytes += bytes;
        if compacted || self.records >= RECORDS_PER_SWEEP || self.bytes >= BYTES_PER_SWEEP {
            (self.records, self.bytes) = (0, 0);
            self.sweeping = true;
        }
        if compacted {
            self.after = number;
        }
    }

    /// Whether something may be left to sweep.
    pub(super) fn is_sweeping(&self) -> bool {
        self.sweeping
    }

    /// A physical compaction waits for the end of the sweep.
    pub(super) fn answer_at_the_end(&mut self, answer: Answer) {
        self.physical.push(answer);
    }

    /// Refuses what waits for the end of the sweep.
    pub(super) fn refuse(&mut self, error: impl Fn() -> NodeError) {
        for (reply, _) in self.physical.drain(..) {
            answer(reply, Err(error()));
        }
    }

    /// When the next slice may begin, if there is one. The compaction that hid what it drops is durable then: before that, a
    /// crash could leave a journal without the records and a head without the compaction.
    pub(super) fn next(&self) -> Option<Instant> {
        let engine = &self.engine;
        let may = self.sweeping
            && engine.is_writable()
            && !engine.is_paused()
            && engine.published_groups.load(Ordering::Acquire) >= self.after
            && engine.holds.allow(engine.replica.read().compacted());
        may.then_some(self.next_slice)
    }

    /// Sweeps a slice.
    pub(super) fn go_on(&mut self) {
        let engine = &self.engine;
        let is_trimmed = engine.trims_waiting.load(Ordering::Acquire) == 0;
        let sweep = engine.replica.write().sweep(self.pace.batch, is_trimmed);
        self.sweeping = !sweep.done;
        self.next_slice = Instant::now() + self.pace.pause;
        let waiting = if sweep.done { std::mem::take(&mut self.physical) } else { Vec::new() };
        if sweep.dead.is_empty() && waiting.is_empty() {
            return;
        }
        engine.metrics.swept(sweep.dead.len());
        engine.trims_waiting.fetch_add(1, Ordering::AcqRel);
        engine.pipe.send(Work::Trim { dead: sweep.dead, waiting });
    }
}
