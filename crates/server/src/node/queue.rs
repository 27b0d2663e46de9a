//! The bounded queue in front of the committer. Everything that waits is taken at once, as one group.

use std::time::{Duration, Instant};

use eddy_crdt::op::Command;
use eddy_crdt::replica::Input;
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

/// A group is given time to grow in steps of this, as long as each step brings more,
const LINGER_STEP: Duration = Duration::from_micros(500);

/// for as long as a task waits so many times for a worker: a request does, from its socket to its answer's,
const LINGER_LAGS: u32 = 4;

/// and never for longer.
const LINGER_MAX: Duration = Duration::from_millis(10);

/// What was noted about the runtime counts for so long: when a crowd of clients has gone, the next one must not wait.
const LAG_FRESH: Duration = Duration::from_millis(50);

/// Something for the committer to do.
#[derive(Debug)]
pub(crate) enum Job {
    /// What a client asks for, or the process itself.
    Client {
        command: Command,
        /// Answer only when what a compaction hid is gone from the disk.
        physical: bool,
        /// Answered once it is durable.
        reply: oneshot::Sender<Outcome>,
    },
    /// What a peer's session hands on.
    Peer {
        input: Input,
        /// Told when it is applied, which is before it is durable, and whether something of it was refused.
        applied: oneshot::Sender<Result<bool, NodeError>>,
    },
}

impl Job {
    /// Whether a client waits for it.
    fn is_awaited(&self) -> bool {
        matches!(self, Self::Client { .. })
    }

    /// Answers without doing it.
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
    /// Until there are some.
    Forever,
    /// Until then.
    Until(Instant),
    /// Not at all.
    No,
}

/// For what the committer sleeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Sleep {
    /// It does not.
    #[default]
    No,
    /// For any job.
    ForAny,
    /// For one that a client waits for.
    ForClients,
}

#[derive(Debug, Default)]
struct State {
    jobs: Vec<Job>,
    bytes: usize,
    /// Whether a client waits for one of the jobs.
    awaited: bool,
    /// Since when the first of them waits.
    since: Option<Instant>,
    sleep: Sleep,
    woken: bool,
    closed: bool,
    /// How far the runtime is behind, and when that was noted.
    lag: Duration,
    lag_noted: Option<Instant>,
}

impl State {
    /// Whether nothing is gained by waiting for more.
    fn is_ripe(&self) -> bool {
        self.awaited || self.jobs.len() >= GROUP_MAX || self.bytes >= WAITING_BYTES_MAX / 2
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Queue {
    state: Mutex<State>,
    wake: Condvar,
    /// How long what peers sent waits for more of it, or for a client's command.
    peers_wait: Duration,
}

impl Queue {
    /// An empty queue in which what peers sent waits so long to be done together.
    pub(crate) fn new(peers_wait: Duration) -> Self {
        Self { state: Mutex::default(), wake: Condvar::new(), peers_wait }
    }

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
        state.awaited |= job.is_awaited();
        if state.jobs.is_empty() {
            state.since = Some(Instant::now());
        }
        state.jobs.push(job);
        let wakes = match state.sleep {
            Sleep::No => false,
            Sleep::ForAny => true,
            Sleep::ForClients => state.is_ripe(),
        };
        if wakes {
            state.sleep = Sleep::No;
        }
        drop(state);
        if wakes {
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
                    state.sleep = Sleep::ForAny;
                    self.wake.wait(&mut state);
                }
                Wait::Until(deadline) => {
                    state.sleep = Sleep::ForAny;
                    if self.wake.wait_until(&mut state, deadline).timed_out() {
                        break;
                    }
                }
            }
        }
        if matches!(wait, Wait::Forever | Wait::Until(_)) {
            self.await_client(&mut state);
            self.linger(&mut state, std::thread::sleep);
        }
        state.sleep = Sleep::No;
        state.woken = false;
        if state.jobs.len() <= GROUP_MAX {
            std::mem::swap(&mut state.jobs, group);
            (state.bytes, state.awaited) = (0, false);
        } else {
            // The share of the bytes is an estimate; it is exact again when the queue is empty.
            let before = state.jobs.len();
            group.extend(state.jobs.drain(..GROUP_MAX));
            state.bytes -= state.bytes / before * GROUP_MAX;
            state.awaited = state.jobs.iter().any(Job::is_awaited);
        }
        !(group.is_empty() && state.closed)
    }

    /// Nobody waits for what peers sent, and a flush for each of their messages would cost more than the entries in it: it
    /// is done with the next command of a client, or when it has waited long enough.
    fn await_client(&self, state: &mut MutexGuard<'_, State>) {
        let Some(deadline) = state.since.and_then(|since| since.checked_add(self.peers_wait)) else { return };
        while !state.is_ripe() && !state.jobs.is_empty() && !state.woken && !state.closed {
            state.sleep = Sleep::ForClients;
            if self.wake.wait_until(state, deadline).timed_out() {
                return;
            }
        }
    }

    /// Notes how long a task lately waited for a worker of the runtime, which is how far it is behind with its work.
    pub(crate) fn note_lag(&self, lag: Duration) {
        let mut state = self.state.lock();
        // A mean over the last few, so that one slow moment alone makes nobody wait.
        state.lag = (state.lag * 3 + lag) / 4;
        state.lag_noted = Some(Instant::now());
    }

    /// Lets a group grow while the runtime is behind: the answers would wait for it anyway, and a larger group takes
    /// fewer wake-ups, flushes and writes to sockets per command. Where the runtime keeps up nobody waits here.
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
        Job::Client { command: Command::LeaseRenew(LeaseId::new(1)), physical: false, reply: oneshot::channel().0 }
    }

    #[test]
    fn a_full_queue_refuses_at_once_and_takes_again_when_emptied() {
        let queue = Queue::new(Duration::ZERO);
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
        let queue = Queue::new(Duration::ZERO);
        queue.push(job(), WAITING_BYTES_MAX * 2).unwrap();
        assert!(matches!(queue.push(job(), 1), Err(NodeError::TooManyRequests)));
    }

    #[test]
    fn a_group_waits_for_more_only_while_the_runtime_is_behind() {
        let queue = Queue::new(Duration::ZERO);
        // How many there are in the end when one more comes in each of the first so many pauses.
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
    fn what_peers_sent_is_taken_with_what_a_client_waits_for() {
        let from_peer = || Job::Peer { input: Input::Tick, applied: oneshot::channel().0 };
        let taken = |peers_wait, last: Option<Job>| {
            let queue = Queue::new(peers_wait);
            queue.push(from_peer(), 1).unwrap();
            std::thread::scope(|scope| {
                let taker = scope.spawn(|| {
                    let mut group = Vec::new();
                    assert!(queue.take(&mut group, Wait::Forever));
                    group.len()
                });
                while last.is_some() && queue.state.lock().sleep != Sleep::ForClients {
                    std::thread::yield_now();
                }
                if let Some(last) = last {
                    queue.push(from_peer(), 1).unwrap();
                    assert!(!taker.is_finished(), "nobody waits for it");
                    queue.push(last, 1).unwrap();
                }
                taker.join().unwrap()
            })
        };
        let ever = Duration::from_secs(3600);
        assert_eq!(taken(ever, Some(job())), 3, "with the client's");
        assert_eq!(taken(Duration::from_millis(1), None), 1, "when it has waited long enough");
        assert_eq!(taken(Duration::ZERO, None), 1, "at once");
        let queue = Queue::new(ever);
        (0..GROUP_MAX).for_each(|_| queue.push(from_peer(), 1).unwrap());
        let mut group = Vec::new();
        assert!(queue.take(&mut group, Wait::Forever));
        assert_eq!(group.len(), GROUP_MAX, "a full group waits for nobody");
        queue.push(from_peer(), 1).unwrap();
        queue.close();
        group.clear();
        assert!(queue.take(&mut group, Wait::Forever), "the end waits for nobody");
        assert_eq!(group.len(), 1);
    }

    #[test]
    fn a_closed_queue_is_drained_first() {
        let queue = Queue::new(Duration::ZERO);
        queue.push(job(), 1).unwrap();
        queue.close();
        assert!(matches!(queue.push(job(), 1), Err(NodeError::Stopped)));
        let mut group = Vec::new();
        assert!(queue.take(&mut group, Wait::Forever));
        group.clear();
        assert!(!queue.take(&mut group, Wait::Forever));
    }
}
