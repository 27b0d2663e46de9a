//! Records the operations of an experiment: latencies by operation, and a time line.

use std::collections::BTreeMap;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

/// Width of a step of the time line.
pub const STEP: Duration = Duration::from_millis(250);
/// Significant digits of a latency: 0.1 %.
const DIGITS: u8 = 3;
/// Longest latency that is told apart, microseconds: an hour.
const LONGEST_US: u64 = 3_600_000_000;

/// A step of a node's time line.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Step {
    /// Operations that succeeded.
    pub done: u64,
    /// Operations that failed.
    pub failed: u64,
    /// Their latencies together, microseconds.
    pub latency_us_sum: u64,
    /// The longest, microseconds.
    pub latency_us_max: u64,
}

#[derive(Default)]
struct Shard {
    latencies: BTreeMap<&'static str, Histogram<u64>>,
    steps: Vec<Step>,
    completed: u64,
    answered: u64,
    failed: u64,
    refused: u64,
    first_error: Option<String>,
}

/// Takes the outcome of operations from all clients, a shard for each node.
pub struct Recorder {
    made: Instant,
    epoch: OnceLock<Instant>,
    from: Duration,
    until: Duration,
    shards: Vec<Mutex<Shard>>,
}

/// All that was recorded.
#[derive(Default)]
pub struct Recorded {
    /// Latencies by operation, microseconds, of all that were due while it counted and succeeded.
    pub latencies: BTreeMap<&'static str, Histogram<u64>>,
    /// For each node, what happened in each [`STEP`].
    pub steps: Vec<Vec<Step>>,
    /// Operations that succeeded while it counted.
    pub completed: u64,
    /// Operations that succeeded, those before and after the measurement included.
    pub answered: u64,
    /// Operations that were due while it counted and failed.
    pub failed: u64,
    /// Transactions that were answered but changed nothing, because someone else had written.
    pub refused: u64,
    /// What the first failure said.
    pub first_error: Option<String>,
}

/// How an operation ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// As asked.
    Done,
    /// Answered, but another write was first.
    Refused,
    /// Failed, and why.
    Failed(String),
}

impl Recorder {
    /// Counts from `from` to `until`, both since the beginning of the load.
    pub fn new(from: Duration, until: Duration, nodes: usize) -> Self {
        let steps = ((until - from).as_nanos().div_ceil(STEP.as_nanos())) as usize;
        let shard = || Mutex::new(Shard { steps: vec![Step::default(); steps], ..Shard::default() });
        let shards = (0..nodes).map(|_| shard()).collect();
        Self { made: Instant::now(), epoch: OnceLock::new(), from, until, shards }
    }

    /// The load begins now, unless it has already.
    pub fn begin(&self) {
        self.epoch.get_or_init(Instant::now);
    }

    /// When load began; before that, when this recorder was made.
    pub fn epoch(&self) -> Instant {
        self.epoch.get().copied().unwrap_or(self.made)
    }

    /// When load ends.
    pub fn end(&self) -> Instant {
        self.epoch() + self.until
    }

    /// An operation at a node that was due at one moment and ended at another.
    pub fn record(&self, node: usize, operation: &'static str, due: Instant, ended_at: Instant, ended: Ended) {
        let (due, at) = (due.saturating_duration_since(self.epoch()), ended_at.saturating_duration_since(self.epoch()));
        let counts = due >= self.from && due < self.until;
        let within = at >= self.from && at < self.until;
        let failed = matches!(ended, Ended::Failed(_));
        let mut shard = self.shard(node);
        shard.answered += u64::from(!failed);
        if !counts && !within {
            return;
        }
        let micros = u64::try_from((at.saturating_sub(due)).as_micros()).unwrap_or(LONGEST_US);
        let step = within.then(|| ((at - self.from).as_nanos() / STEP.as_nanos()) as usize);
        if let Some(step) = step.and_then(|step| shard.steps.get_mut(step)) {
            step.done += u64::from(!failed);
            step.failed += u64::from(failed);
            step.latency_us_sum += micros;
            step.latency_us_max = step.latency_us_max.max(micros);
        }
        shard.completed += u64::from(within && !failed);
        if counts {
            match ended {
                Ended::Done => shard.add(operation, micros),
                Ended::Refused => {
                    shard.refused += 1;
                    shard.add(operation, micros);
                }
                Ended::Failed(why) => {
                    shard.failed += 1;
                    shard.first_error.get_or_insert(why);
                }
            }
        }
    }

    /// A latency that is no operation of a client: an event's way to a watcher, the lab's own delay. It counts when what
    /// began it was due while it counted.
    pub fn observe(&self, node: usize, what: &'static str, due: Instant, took: Duration) {
        let due = due.saturating_duration_since(self.epoch());
        if due >= self.from && due < self.until {
            let micros = u64::try_from(took.as_micros()).unwrap_or(LONGEST_US);
            self.shard(node).add(what, micros);
        }
    }

    /// Operations that have succeeded so far, for the progress display.
    pub fn so_far(&self) -> u64 {
        (0..self.shards.len()).map(|node| self.shard(node).completed).sum()
    }

    /// All that was recorded.
    pub fn take(&self) -> Recorded {
        let mut all = Recorded::default();
        for node in 0..self.shards.len() {
            let shard = std::mem::take(&mut *self.shard(node));
            for (name, latencies) in shard.latencies {
                match all.latencies.entry(name) {
                    std::collections::btree_map::Entry::Vacant(entry) => drop(entry.insert(latencies)),
                    // Both have the same bounds, so there is nothing that does not fit.
                    std::collections::btree_map::Entry::Occupied(mut entry) => {
                        entry.get_mut().add(latencies).unwrap_or_default();
                    }
                }
            }
            all.steps.push(shard.steps);
            all.completed += shard.completed;
            all.answered += shard.answered;
            all.failed += shard.failed;
            all.refused += shard.refused;
            all.first_error = all.first_error.or(shard.first_error);
        }
        all
    }

    fn shard(&self, node: usize) -> std::sync::MutexGuard<'_, Shard> {
        self.shards[node].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shard {
    fn add(&mut self, what: &'static str, micros: u64) {
        self.latencies.entry(what).or_insert_with(histogram).saturating_record(micros.clamp(1, LONGEST_US));
    }
}

/// An empty histogram of latencies in microseconds.
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST_US, DIGITS).expect("constants that hdrhistogram allows")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn recorder() -> (Instant, Recorder) {
        let recorder = Recorder::new(ms(1000), ms(2000), 2);
        recorder.begin();
        (recorder.epoch(), recorder)
    }

    #[test]
    fn quantiles_are_those_of_the_values() {
        let (epoch, recorder) = recorder();
        for n in 1..=1000 {
            let due = epoch + ms(1000);
            recorder.record(n as usize % 2, "put", due, due + Duration::from_micros(n), Ended::Done);
        }
        let recorded = recorder.take();
        let put = &recorded.latencies["put"];
        assert_eq!(
            (put.len(), put.value_at_quantile(0.5), put.value_at_quantile(0.99), put.max()),
            (1000, 500, 990, 1000)
        );
    }

    #[test]
    fn latency_counts_from_when_it_was_due_and_throughput_from_when_it_ended() {
        let (epoch, recorder) = recorder();
        let at = |n| epoch + ms(n);
        recorder.record(0, "put", at(900), at(1100), Ended::Done); // Due in the warm-up: counts for throughput only.
        recorder.record(0, "put", at(1900), at(2600), Ended::Done); // Ends late: counts for latency only.
        recorder.record(1, "put", at(100), at(200), Ended::Done); // Neither.
        recorder.record(1, "put", at(1000), at(1010), Ended::Failed("no".into()));
        recorder.record(1, "put", at(1000), at(1400), Ended::Refused);
        let recorded = recorder.take();
        assert_eq!((recorded.completed, recorded.failed, recorded.refused), (2, 1, 1));
        assert_eq!(recorded.answered, 4);
        assert_eq!(recorded.first_error.as_deref(), Some("no"));
        assert_eq!((recorded.latencies["put"].len(), recorded.latencies["put"].max() / 1000), (2, 700));
        assert_eq!(recorded.steps[0].iter().map(|s| s.done).collect::<Vec<_>>(), [1, 0, 0, 0]);
        assert_eq!(
            recorded.steps[1].iter().map(|s| (s.done, s.failed)).collect::<Vec<_>>(),
            [(0, 1), (1, 0), (0, 0), (0, 0)]
        );
        assert_eq!(recorded.steps[0][0].latency_us_max, 200_000);
    }
}
