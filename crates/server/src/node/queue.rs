//! The bounded queue in front of the committer. Everything that waits is taken at once, as one group.

use std::time::{Duration, Instant};

use eddy_crdt::op::Command;
use parking_lot::{Condvar, Mutex, MutexGuard};
use tokio::sync::oneshot;

use super::{NodeError, Outcome};

/// Most commands that wait. Beyond it the server is overloaded and says so at once, as etcd does when what is
/// committed runs 5,000 entries ahead of what is applied.
const WAITING_MAX: usize = 16_384;

/// Most bytes of keys and values that wait.
const WAITING_BYTES_MAX: usize = 64 << 20;

/// Commands taken as one group; bounds how long readers wait for the state's lock and how long a reply waits.
const GROUP_MAX: usize = 1024;

/// After a group of so many the next one is given time to grow.
const BUSY_GROUP: usize = 16;

/// How long each time, and how often at most, as long as it does grow: far below the time that requests then take.
const LINGER: Duration = Duration::from_micros(200);
const LINGERS_MAX: usize = 10;

/// Something for the committer to do.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) command: Command,
    /// Answer only when what a compaction hid is gone from the disk.
    pub(crate) physical: bool,
    pub(crate) reply: oneshot::Sender<Outcome>,
}

/// How long to wait for jobs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wait {
    /// Until there are some.
    Forever,
    /// Until then.
    Until(Instant),
    /// Not at all.
    No,
}

#[derive(Debug, Default)]
struct State {
    jobs: Vec<Job>,
    bytes: usize,
    sleeping: bool,
    woken: bool,
    closed: bool,
    /// Jobs of the group that was taken last.
    last_group: usize,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    state: Mutex<State>,
    wake: Condvar,
}

impl Queue {
    /// Adds a job of about so many bytes.
    pub(crate) fn push(&self, job: Job, bytes: usize) -> Result<(), NodeError> {
        let mut state = self.state.lock();
        if state.closed {
            return Err(NodeError::Stopped);
        }
        if state.jobs.len() >= WAITING_MAX || (state.bytes + bytes > WAITING_BYTES_MAX && !state.jobs.is_empty()) {
            return Err(NodeError::TooManyRequests);
        }
        state.bytes += bytes;
        state.jobs.push(job);
        let sleeping = std::mem::take(&mut state.sleeping);
        drop(state);
        if sleeping {
            self.wake.notify_one();
        }
        Ok(())
    }

    /// Takes a group, in order, into `group`, which must be empty. False once the queue is closed and empty.
    pub(crate) fn take(&self, group: &mut Vec<Job>, wait: Wait) -> bool {
        let mut state = self.state.lock();
        while state.jobs.is_empty() && !state.closed && !state.woken {
            match wait {
                Wait::No => break,
                Wait::Forever => {
                    state.sleeping = true;
                    self.wake.wait(&mut state);
                }
                Wait::Until(deadline) => {
                    state.sleeping = true;
                    if self.wake.wait_until(&mut state, deadline).timed_out() {
                        break;
                    }
                }
            }
        }
        state.sleeping = false;
        state.woken = false;
        if matches!(wait, Wait::Forever | Wait::Until(_)) {
            self.linger(&mut state);
        }
        state.last_group = state.jobs.len().min(GROUP_MAX);
        if state.jobs.len() <= GROUP_MAX {
            std::mem::swap(&mut state.jobs, group);
            state.bytes = 0;
        } else {
            // The share of the bytes is an estimate; it is exact again when the queue is empty.
            let before = state.jobs.len();
            group.extend(state.jobs.drain(..GROUP_MAX));
            state.bytes -= state.bytes / before * GROUP_MAX;
        }
        !(group.is_empty() && state.closed)
    }

    /// Under load, lets a group grow while more keeps coming: a wake-up, a flush and a write to each socket then serve
    /// more commands. Whoever has few clients never waits here.
    fn linger(&self, state: &mut MutexGuard<'_, State>) {
        if state.last_group < BUSY_GROUP {
            return;
        }
        for _ in 0..LINGERS_MAX {
            let before = state.jobs.len();
            if state.closed || before == 0 || before >= GROUP_MAX.min(state.last_group * 2) {
                return;
            }
            MutexGuard::unlocked(state, || std::thread::sleep(LINGER));
            if state.jobs.len() == before {
                return;
            }
        }
    }

    /// Wakes the committer although there may be no job.
    pub(crate) fn poke(&self) {
        self.state.lock().woken = true;
        self.wake.notify_one();
    }

    /// Takes no more jobs; what waits is still handed out.
    pub(crate) fn close(&self) {
        self.state.lock().closed = true;
        self.wake.notify_one();
    }

    /// Whether jobs are still taken.
    #[cfg(test)]
    pub(crate) fn is_closed(&self) -> bool {
        self.state.lock().closed
    }

    /// How many jobs wait.
    pub(crate) fn len(&self) -> usize {
        self.state.lock().jobs.len()
    }
}

#[cfg(test)]
mod tests {
    use eddy_crdt::id::LeaseId;

    use super::*;

    fn job() -> Job {
        Job { command: Command::LeaseRenew(LeaseId::new(1)), physical: false, reply: oneshot::channel().0 }
    }

    #[test]
    fn a_full_queue_refuses_at_once_and_takes_again_when_emptied() {
        let queue = Queue::default();
        for _ in 0..WAITING_MAX {
            queue.push(job(), 1).unwrap();
        }
        assert!(matches!(queue.push(job(), 1), Err(NodeError::TooManyRequests)));
        let mut group = Vec::new();
        assert!(queue.take(&mut group, Wait::No));
        assert_eq!(group.len(), GROUP_MAX);
        queue.push(job(), 1).unwrap();
    }

    #[test]
    fn bytes_are_bounded_but_one_large_request_always_fits() {
        let queue = Queue::default();
        queue.push(job(), WAITING_BYTES_MAX * 2).unwrap();
        assert!(matches!(queue.push(job(), 1), Err(NodeError::TooManyRequests)));
    }

    #[test]
    fn a_closed_queue_is_drained_first() {
        let queue = Queue::default();
        queue.push(job(), 1).unwrap();
        queue.close();
        assert!(matches!(queue.push(job(), 1), Err(NodeError::Stopped)));
        let mut group = Vec::new();
        assert!(queue.take(&mut group, Wait::Forever));
        group.clear();
        assert!(!queue.take(&mut group, Wait::Forever));
    }
}
