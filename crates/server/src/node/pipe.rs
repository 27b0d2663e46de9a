//! The pipe from the committer to the storage thread. A group that waits while another is flushed takes in the groups that
//! follow it. So at most two groups are on the way, and each flush carries all commands there are.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;
use eddy_crdt::{Commit, Head, Revision};
use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;

use super::error::NodeError;
use super::past::Reading;
use super::peering::Durable;
use super::queue::CommandResult;

/// A waiting group with this many commands takes in no more, and the committer waits.
const COMMANDS_MAX: usize = 4096;

/// A waiting group with this many bytes of records takes in no more.
const BYTES_MAX: usize = 8 << 20;

/// Most requests for maintenance that wait.
const WORK_MAX: usize = 64;

/// A [`Group`](crate::storage::Group) whose head is not encoded yet: where groups become one, only the last head is written.
pub(crate) struct Unwritten {
    /// The journal number of the first record.
    pub(crate) first: u64,
    pub(crate) records: Vec<Bytes>,
    pub(crate) head: Box<Head>,
}

/// A group on its way to the disk, and what leaves the process once it is durable.
pub(crate) struct Flush {
    /// What to store; `None` when nothing changed, as by refusals and renewals.
    pub(crate) group: Option<Unwritten>,
    /// The group's own number.
    pub(crate) number: u64,
    /// Journal number after the group.
    pub(crate) next_number: u64,
    /// Newest revision after the group.
    pub(crate) revision: Revision,
    pub(crate) commits: Vec<Commit>,
    pub(crate) replies: Vec<(oneshot::Sender<CommandResult>, CommandResult)>,
    /// What peers may be told once the group is durable; `None` when nothing changed.
    pub(crate) durable: Option<Durable>,
    /// Whether the replica leapt, so that watches are cancelled as compacted.
    pub(crate) leapt: bool,
    /// Bytes of the records.
    pub(crate) bytes: usize,
    /// Whether to wake the committer when the group is published.
    pub(crate) poke: bool,
    /// When the group was made, for metrics.
    pub(crate) since: Instant,
}

impl Flush {
    fn is_full(&self) -> bool {
        self.replies.len() >= COMMANDS_MAX || self.bytes >= BYTES_MAX
    }

    fn absorb(&mut self, later: Flush) {
        match (&mut self.group, later.group) {
            (Some(group), Some(later)) => {
                // Groups of a journal are adjacent; a group without records takes the place of the next.
                if group.records.is_empty() {
                    group.first = later.first;
                }
                group.records.extend(later.records);
                group.head = later.head;
            }
            (none @ None, later) => *none = later,
            (Some(_), None) => {}
        }
        self.number = later.number;
        self.next_number = later.next_number;
        self.revision = later.revision;
        self.commits.extend(later.commits);
        self.replies.extend(later.replies);
        self.durable = later.durable.or(self.durable.take());
        self.leapt |= later.leapt;
        self.bytes += later.bytes;
        self.poke |= later.poke;
    }
}

/// What the storage thread is asked to do, in order.
pub(crate) enum Work {
    /// Make a group durable, then publish it.
    Flush(Box<Flush>),
    /// Trim these records when there is time, and answer the clients once that is on disk.
    Trim {
        /// Journal numbers.
        dead: Vec<u64>,
        /// Clients with their answers.
        waiting: Vec<(oneshot::Sender<CommandResult>, CommandResult)>,
    },
    /// Read replaced values between groups.
    Read(Reading),
    /// Give space back.
    Defragment(oneshot::Sender<Result<(), NodeError>>),
}

/// What comes out of the pipe.
pub(crate) enum Received {
    /// Work.
    Work(Work),
    /// There was no work within the time.
    Nothing,
    /// There is no work, and none will come.
    Closed,
}

#[derive(Default)]
struct State {
    work: VecDeque<Work>,
    closed: bool,
    receiver_sleeps: bool,
    sender_sleeps: bool,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Pipe {
    state: Mutex<State>,
    filled: Condvar,
    emptied: Condvar,
}

impl Pipe {
    /// Adds a group; waits while the group before it is full. A closed pipe drops the group with its answers.
    pub(crate) fn flush(&self, flush: Flush) {
        let mut state = self.state.lock();
        while !state.closed && matches!(state.work.back(), Some(Work::Flush(waiting)) if waiting.is_full()) {
            state.sender_sleeps = true;
            self.emptied.wait(&mut state);
        }
        if state.closed {
            return;
        }
        match state.work.back_mut() {
            Some(Work::Flush(waiting)) => waiting.absorb(flush),
            _ => {
                state.work.push_back(Work::Flush(Box::new(flush)));
                self.wake_receiver(state);
            }
        }
    }

    /// Adds other work. Returns false when the pipe is closed or has too much work.
    pub(crate) fn send(&self, work: Work) -> bool {
        let mut state = self.state.lock();
        if state.closed || (state.work.len() >= WORK_MAX && matches!(work, Work::Defragment(_))) {
            return false;
        }
        state.work.push_back(work);
        self.wake_receiver(state);
        true
    }

    fn wake_receiver(&self, mut state: parking_lot::MutexGuard<'_, State>) {
        let sleeps = std::mem::take(&mut state.receiver_sleeps);
        drop(state);
        if sleeps {
            self.filled.notify_one();
        }
    }

    /// The next work; waits for it at most that long, or for ever.
    pub(crate) fn receive(&self, wait: Option<Duration>) -> Received {
        let deadline = wait.map(|wait| Instant::now() + wait);
        let mut state = self.state.lock();
        loop {
            if let Some(work) = state.work.pop_front() {
                let sleeps = std::mem::take(&mut state.sender_sleeps);
                drop(state);
                if sleeps {
                    self.emptied.notify_one();
                }
                return Received::Work(work);
            }
            if state.closed {
                return Received::Closed;
            }
            state.receiver_sleeps = true;
            match deadline {
                None => self.filled.wait(&mut state),
                Some(deadline) => {
                    if self.filled.wait_until(&mut state, deadline).timed_out() && state.work.is_empty() {
                        state.receiver_sleeps = false;
                        return Received::Nothing;
                    }
                }
            }
        }
    }

    /// Takes no more work. What is in the pipe still comes out.
    pub(crate) fn close(&self) {
        self.state.lock().closed = true;
        self.filled.notify_one();
        self.emptied.notify_one();
    }

    /// Closes the pipe and drops its work with all answers.
    pub(crate) fn abandon(&self) {
        self.close();
        let work = std::mem::take(&mut self.state.lock().work);
        drop(work);
    }
}

#[cfg(test)]
mod tests {
    use eddy_crdt::{Birth, ClusterId, Identity, Replica, ReplicaId};

    use super::*;

    fn flush(number: u64, group: Option<(u64, usize)>) -> Flush {
        let identity =
            Identity { cluster: ClusterId::new(1), replica: ReplicaId::new(1), birth: Birth::new(1), ordinal: 1 };
        let group = group.map(|(first, count)| Unwritten {
            first,
            records: vec![Bytes::from_static(b"r"); count],
            head: Box::new(Head { next_number: number, ..Replica::new(identity).head() }),
        });
        let revision = Revision::new(number as i64);
        let (commits, replies, since) = (vec![], vec![], Instant::now());
        Flush {
            group,
            number,
            next_number: 0,
            revision,
            commits,
            replies,
            durable: None,
            leapt: false,
            bytes: 0,
            poke: false,
            since,
        }
    }

    fn received(pipe: &Pipe) -> Flush {
        match pipe.receive(Some(Duration::ZERO)) {
            Received::Work(Work::Flush(flush)) => *flush,
            _ => panic!("no flush"),
        }
    }

    #[test]
    fn groups_that_wait_become_one_with_the_newest_head() {
        let pipe = Pipe::default();
        pipe.flush(flush(1, None));
        pipe.flush(flush(2, Some((5, 0))));
        pipe.flush(flush(3, Some((5, 2))));
        pipe.flush(flush(4, None));
        let merged = received(&pipe);
        let group = merged.group.unwrap();
        assert_eq!((merged.number, group.first, group.records.len()), (4, 5, 2));
        assert_eq!(group.head.next_number, 3);
    }

    #[test]
    fn other_work_keeps_its_place_between_groups() {
        let pipe = Pipe::default();
        pipe.flush(flush(1, Some((1, 1))));
        assert!(pipe.send(Work::Trim { dead: vec![], waiting: vec![] }));
        pipe.flush(flush(2, Some((2, 1))));
        assert_eq!(received(&pipe).number, 1);
        assert!(matches!(pipe.receive(None), Received::Work(Work::Trim { .. })));
        assert_eq!(received(&pipe).number, 2);
        assert!(matches!(pipe.receive(Some(Duration::ZERO)), Received::Nothing));
    }

    #[test]
    fn a_closed_pipe_is_emptied_first() {
        let pipe = Pipe::default();
        pipe.flush(flush(1, None));
        pipe.close();
        pipe.flush(flush(2, None));
        assert!(!pipe.send(Work::Trim { dead: vec![], waiting: vec![] }));
        assert_eq!(received(&pipe).number, 1);
        assert!(matches!(pipe.receive(None), Received::Closed));
    }
}
