//! The bounded queue in front of the committer. The committer takes all waiting jobs at once, as one group.

use std::time::{Duration, Instant};

use eddy_crdt::{Command, Input, Reply};
use parking_lot::{Condvar, Mutex, MutexGuard};
use tokio::sync::oneshot;

use super::error::NodeError;

/// Most jobs that wait. Beyond it the server is overloaded and says so at once. etcd does so when commits run 5,000
/// entries ahead of what is applied.
const WAITING_MAX: usize = 16_384;

/// Most bytes of keys and values that wait.
const WAITING_BYTES_MAX: usize = 64 << 20;

/// Most jobs of one group. Bounds how long readers wait for the state's lock, and how long a reply waits.
const GROUP_MAX: usize = 1024;

/// The committer lets a group grow in steps of this, as long as each step brings more jobs.
const LINGER_STEP: Duration = Duration::from_micros(500);

/// A group grows for this many times the runtime's lag. A request waits about as often for a worker, between its
/// arrival at a socket and the sending of its answer.
const LINGER_LAGS: u32 = 4;

/// A group never grows for longer than this.
const LINGER_MAX: Duration = Duration::from_millis(10);

/// How long a noted lag counts. When many clients have gone, the next one must not wait for their sake.
const LAG_FRESH: Duration = Duration::from_millis(50);

/// The result of a command, whatever its kind; `calls` takes it apart for the caller.
pub(crate) type CommandResult = Result<Reply, NodeError>;

/// Something for the committer to do.
#[derive(Debug)]
pub(crate) enum Job {
    /// A command of a client, or of the process itself.
    Client {
        command: Command,
        /// Whether to answer only when what a compaction hid is gone from the disk.
        physical: bool,
        /// Answered once the command is durable.
        reply: oneshot::Sender<CommandResult>,
    },
    /// An input of a peer's session.
    Peer {
        input: Input,
        /// When it came.
        since: Instant,
        /// Told when the input is applied, which is before it is durable, and whether something of it was refused.
        applied: oneshot::Sender<Result<bool, NodeError>>,
    },
}

impl Job {
    /// Rejects the job with this error.
    pub(crate) fn refuse(self, error: NodeError) {
        let asker_went = match self {
            Job::Client { reply, .. } => reply.send(Err(error)).is_err(),
            Job::Peer { applied, .. } => applied.send(Err(error)).is_err(),
        };
        if asker_went {
            tracing::trace!("a client went before its answer");
        }
    }
}

/// How long to wait for jobs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wait {
    /// Until there is a job.
    Forever,
    /// Until there is a job, or that moment.
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
    /// How long tasks lately waited for a worker of the runtime, and when that was noted.
    lag: Duration,
    lag_noted: Option<Instant>,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    state: Mutex<State>,
    wake: Condvar,
}

impl Queue {
    /// Adds a job of about `bytes` bytes.
    ///
    /// # Errors
    /// When the queue is closed or full; the job comes back.
    #[expect(clippy::result_large_err, reason = "a job that found no place is given back without an allocation")]
    pub(crate) fn push(&self, job: Job, bytes: usize) -> Result<(), (NodeError, Job)> {
        let mut state = self.state.lock();
        if state.closed {
            return Err((NodeError::Stopped, job));
        }
        if state.jobs.len() >= WAITING_MAX || (state.bytes + bytes > WAITING_BYTES_MAX && !state.jobs.is_empty()) {
            return Err((NodeError::TooManyRequests, job));
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
            self.linger(&mut state, std::thread::sleep);
        }
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

    /// Notes how long a task lately waited for a worker of the runtime.
    pub(crate) fn note_lag(&self, lag: Duration) {
        let mut state = self.state.lock();
        // A mean over the last few, so that one slow moment makes no group wait.
        state.lag = (state.lag * 3 + lag) / 4;
        state.lag_noted = Some(Instant::now());
    }

    /// Lets a group grow while the runtime is behind. The answers would wait for the runtime anyway, and a larger group
    /// takes fewer wake-ups, flushes and socket writes per command. Where the runtime keeps up, no group waits.
    fn linger(&self, state: &mut MutexGuard<'_, State>, pause: impl Fn(Duration)) {
        let fresh = state.lag_noted.is_some_and(|noted| noted.elapsed() < LAG_FRESH);
        let most = if fresh { (state.lag * LINGER_LAGS).min(LINGER_MAX) } else { Duration::ZERO };
        for _ in 0..most.as_micros() / LINGER_STEP.as_micros() {
            let before = state.jobs.len();
            if state.closed || before == 0 || before >= GROUP_MAX {
                return;
            }
            MutexGuard::unlocked(state, || pause(LINGER_STEP));
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

    /// Takes no more jobs. Those that wait are still handed out.
    pub(crate) fn close(&self) {
        self.state.lock().closed = true;
        self.wake.notify_one();
    }

    /// Takes no more jobs, and hands out at once all that wait.
    pub(crate) fn close_and_empty(&self) -> Vec<Job> {
        self.close();
        std::mem::take(&mut self.state.lock().jobs)
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
    use eddy_crdt::LeaseId;

    use super::*;

    fn job() -> Job {
        Job::Client { command: Command::LeaseRenew(LeaseId::new(1)), physical: false, reply: oneshot::channel().0 }
    }

    #[test]
    fn a_full_queue_refuses_at_once_and_takes_again_when_emptied() {
        let queue = Queue::default();
        for _ in 0..WAITING_MAX {
            queue.push(job(), 1).unwrap();
        }
        assert!(matches!(queue.push(job(), 1), Err((NodeError::TooManyRequests, _))));
        let mut group = Vec::new();
        assert!(queue.take(&mut group, Wait::No));
        assert_eq!(group.len(), GROUP_MAX);
        queue.push(job(), 1).unwrap();
    }

    #[test]
    fn bytes_are_bounded_but_one_large_request_always_fits() {
        let queue = Queue::default();
        queue.push(job(), WAITING_BYTES_MAX * 2).unwrap();
        assert!(matches!(queue.push(job(), 1), Err((NodeError::TooManyRequests, _))));
    }

    #[test]
    fn a_group_waits_for_more_only_while_the_runtime_is_behind() {
        let queue = Queue::default();
        // How many jobs there are in the end when one more comes in each of the first `coming` pauses.
        let grown = |coming: usize| {
            queue.state.lock().jobs.clear();
            queue.push(job(), 1).unwrap();
            let pauses = std::cell::Cell::new(0);
            queue.linger(&mut queue.state.lock(), |_| {
                pauses.set(pauses.get() + 1);
                if pauses.get() <= coming {
                    queue.push(job(), 1).unwrap();
                }
            });
            (queue.len(), pauses.get())
        };
        assert_eq!(grown(3), (1, 0), "nothing is known of the runtime");
        queue.state.lock().lag_noted = Instant::now().checked_add(Duration::from_secs(3600));
        queue.state.lock().lag = LINGER_STEP / LINGER_LAGS / 2;
        assert_eq!(grown(3), (1, 0), "the runtime keeps up");
        queue.state.lock().lag = LINGER_MAX;
        assert_eq!(grown(3), (4, 4), "no more came in the fourth pause");
        queue.state.lock().lag_noted = Instant::now().checked_sub(LAG_FRESH * 2);
        assert_eq!(grown(3), (1, 0), "that was long ago");
    }

    #[test]
    fn a_closed_queue_is_drained_first() {
        let queue = Queue::default();
        queue.push(job(), 1).unwrap();
        queue.close();
        assert!(matches!(queue.push(job(), 1), Err((NodeError::Stopped, _))));
        let mut group = Vec::new();
        assert!(queue.take(&mut group, Wait::Forever));
        group.clear();
        assert!(!queue.take(&mut group, Wait::Forever));
    }
}
