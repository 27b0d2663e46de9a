//! The one thread that changes the replica.
//!
//! It takes what waits in the queue as one group, applies clients' commands and then as much of what peers sent as a
//! group has time for, and hands the records on to the storage thread; while that one flushes, the next group collects.
//! It sleeps until there is a job or a lease runs out: an idle node does not wake. Between groups it sweeps what a
//! compaction hid, in slices.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use eddy_crdt::{Command, Commit, Effects, Input, Notice, Replica, Reply, Tally};
use parking_lot::RwLockWriteGuard;
use tokio::sync::oneshot;

use super::backlog::{self, Handed, Told, WaitingAcks};
use super::pipe::{Flush, Work};
use super::queue::{Job, Wait};
use super::{NodeError, Outcome, Shared};
use crate::storage::Group;

/// After so many commands readers get a chance.
const COMMANDS_PER_LOCK: usize = 64;

/// Changes that one slice of a sweep drops.
const SWEEP_SLICE: usize = 512;

/// After so many records the replica is asked for records that died without a compaction (ended leases, alarms).
const RECORDS_PER_SWEEP: usize = 4096;

/// How long a group works on what peers sent, before its answers go on their way. Merges may take milliseconds each: however
/// far behind its peers a replica is, its clients wait for no more of that. Less, and many busy clients would leave too little
/// time for it.
const PEERS_PER_GROUP: Duration = Duration::from_millis(20);

/// See the module.
pub(crate) struct Committer {
    shared: Arc<Shared>,
    /// Acknowledgements that wait.
    acks: Option<WaitingAcks>,
    /// What else sessions have handed on and no group had time for, in order.
    backlog: VecDeque<Handed>,
    /// Groups handed on so far; the number of the last one.
    handed_on: u64,
    /// Sweeping must wait until this group is durable: it holds the compaction.
    sweep_after: u64,
    sweeping: bool,
    records_since_sweep: usize,
    /// Compactions that are answered when the sweep is done and on disk.
    physical: Vec<Answer>,
}

/// Tells everyone when the committer ends, be it by a panic.
struct Farewell(Arc<Shared>);

impl Drop for Farewell {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.stop_writes("the committer failed");
        }
        self.0.queue.close();
        self.0.pipe.close();
    }
}

/// A group in the making.
#[derive(Default)]
struct Applied {
    records: Vec<bytes::Bytes>,
    commits: Vec<Commit>,
    replies: Vec<Answer>,
    /// Sessions whose input is applied.
    applied: Vec<Told>,
    notices: Vec<Notice>,
    /// Entries of other replicas that were applied.
    remote_entries: usize,
    head_changed: bool,
    leapt: bool,
    compacted: bool,
    tally: Tally,
}

impl Applied {
    fn take(&mut self, effects: Effects) -> Option<Outcome> {
        self.records.extend(effects.records);
        self.commits.extend(effects.commits);
        self.notices.extend(effects.notices);
        self.head_changed |= effects.head_changed;
        self.leapt |= effects.leapt;
        self.tally.add(effects.tally);
        effects.reply.map(|reply| reply.map_err(NodeError::Refused))
    }
}

impl Committer {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            acks: None,
            backlog: VecDeque::new(),
            handed_on: 0,
            sweep_after: 0,
            // What died before the last stop may still be on disk.
            sweeping: true,
            records_since_sweep: 0,
            physical: Vec::new(),
        }
    }

    /// Runs until the queue is closed and drained.
    pub(crate) fn run(mut self) {
        let _farewell = Farewell(Arc::clone(&self.shared));
        let mut group = Vec::new();
        let mut deadline = self.shared.replica.read().next_tick_ms();
        loop {
            deadline = deadline.into_iter().chain(self.acks.as_ref().map(WaitingAcks::due_ms)).min();
            let wait = match deadline {
                _ if self.may_sweep() || !self.backlog.is_empty() => Wait::No,
                Some(deadline_ms) if self.shared.is_writable() && !self.shared.is_paused() => {
                    Wait::Until(self.shared.started + Duration::from_millis(deadline_ms))
                }
                _ => Wait::Forever,
            };
            if !self.shared.queue.take(&mut group, wait) {
                break;
            }
            if !self.shared.is_writable() {
                self.acks = None;
                backlog::refuse_all(&mut self.backlog, || self.shared.write_error());
                for job in group.drain(..) {
                    job.refuse(self.shared.write_error());
                }
                for (reply, _) in self.physical.drain(..) {
                    answer(reply, Err(self.shared.write_error()));
                }
                continue;
            }
            if self.shared.is_paused() {
                backlog::refuse_all(&mut self.backlog, || NodeError::NoSpace);
                self.refuse_growth(&mut group);
                deadline = self.shared.replica.read().next_tick_ms();
                continue;
            }
            let now_ms = self.shared.now().mono_ms;
            if !group.is_empty() || !self.backlog.is_empty() || deadline.is_some_and(|deadline| deadline <= now_ms) {
                deadline = self.commit(&mut group);
            }
            if self.may_sweep() {
                self.sweep();
            }
        }
        backlog::refuse_all(&mut self.backlog, || NodeError::Stopped);
        for (reply, _) in self.physical.drain(..) {
            answer(reply, Err(NodeError::Stopped));
        }
    }

    /// While the disk is full: keeps leases alive, which writes nothing, and refuses the rest. No lease runs out
    /// meanwhile, since that could not be written either.
    fn refuse_growth(&self, group: &mut Vec<Job>) {
        for job in group.drain(..) {
            match job {
                Job::Client { command: command @ Command::LeaseRenew(_), reply, .. } => {
                    let effects = self.shared.replica.write().handle(self.shared.now(), Input::Client(command));
                    answer(reply, effects.reply.and_then(Result::ok).ok_or(NodeError::NoSpace));
                }
                job => job.refuse(NodeError::NoSpace),
            }
        }
    }

    /// Applies a group and expires leases; tells when the next lease runs out.
    fn commit(&mut self, group: &mut Vec<Job>) -> Option<u64> {
        let mut applied = Applied::default();
        applied.replies.reserve(group.len());
        applied.records.reserve(group.len());
        applied.commits.reserve(group.len());
        let shared = Arc::clone(&self.shared);
        let mut replica = shared.replica.write();
        let now = shared.now();
        let mut more_than_acks = false;
        // Clients first, whoever came first: somebody waits for them.
        for (place, job) in group.drain(..).enumerate() {
            if place % COMMANDS_PER_LOCK == COMMANDS_PER_LOCK - 1 {
                RwLockWriteGuard::bump(&mut replica);
            }
            match job {
                Job::Client { command, physical, reply } => {
                    self.apply(&mut replica, command, physical, reply, &mut applied);
                    more_than_acks = true;
                }
                Job::Peer { input, applied: told } => self.backlog.push_back(Handed::new(input, told)),
            }
        }
        more_than_acks |= self.work_off(&mut replica, &mut applied);
        if let Some(acks) = self.acks.take_if(|acks| more_than_acks || acks.due_ms() <= now.mono_ms || acks.is_full()) {
            applied.take(replica.handle(now, acks.into_input()));
        }
        if replica.next_tick_ms().is_some_and(|deadline| deadline <= now.mono_ms) {
            let effects = replica.handle(now, Input::Tick);
            shared.observer.leases_expired(effects.records.len());
            applied.take(effects);
        }
        let deadline = replica.next_tick_ms();
        if !applied.records.is_empty() && shared.peering.is_offering() {
            // What is on disk may then be sent at once: the mark costs no flush of its own.
            let upto = replica.vector().clone();
            applied.take(replica.handle(now, Input::Offer { upto }));
        }
        let state = shared.peering.note(&replica, !applied.records.is_empty() || applied.head_changed);
        let (next_number, revision) = (replica.next_number(), replica.revision());
        let head = (!applied.records.is_empty() || applied.head_changed).then(|| replica.head().encode());
        if applied.remote_entries > 0 {
            // A peer's entries may raise and lower alarms too.
            shared.limits.note_alarms(&replica);
        }
        drop(replica);
        for (told, refused) in applied.applied.drain(..) {
            if told.send(Ok(refused)).is_err() {
                tracing::trace!("a session ended before its input was applied");
            }
        }
        shared.observer.remote_entries(applied.remote_entries);
        shared.peering.tell(applied.notices);
        shared.observer.done(&applied.tally);

        let idle = shared.published_groups.load(Ordering::Acquire) == self.handed_on;
        if head.is_none() && idle {
            // Nothing to flush, and everything that these answers rest on is durable.
            answer_all(&shared, applied.replies);
            return deadline;
        }
        self.handed_on += 1;
        self.records_since_sweep += applied.records.len();
        if applied.compacted || self.records_since_sweep >= RECORDS_PER_SWEEP {
            self.records_since_sweep = 0;
            self.sweeping = true;
        }
        if applied.compacted {
            self.sweep_after = self.handed_on;
        }
        let first = next_number - applied.records.len() as u64;
        let bytes = applied.records.iter().map(bytes::Bytes::len).sum();
        let flush = Flush {
            group: head.map(|head| Group { first, records: applied.records, head }),
            number: self.handed_on,
            next_number,
            revision,
            commits: applied.commits,
            replies: applied.replies,
            state,
            leapt: applied.leapt,
            bytes,
            // Sweeping waits for it, and the queue may be empty by then.
            poke: applied.compacted || self.sweeping,
            since: Instant::now(),
        };
        shared.pipe.flush(flush);
        deadline
    }

    /// Applies what peers sent, as long as a group may take; says whether there was more than acknowledgements.
    fn work_off(&mut self, replica: &mut RwLockWriteGuard<'_, Replica>, applied: &mut Applied) -> bool {
        let until = Instant::now() + PEERS_PER_GROUP;
        let mut more_than_acks = false;
        while let Some(mut handed) = self.backlog.pop_front() {
            while let Some(input) = handed.slice() {
                let now = self.shared.now();
                if let Input::Acks { own, acks } = input {
                    self.acks.get_or_insert_with(|| WaitingAcks::since(now.mono_ms)).add(&own, acks);
                    continue;
                }
                let (records, notices) = (applied.records.len(), applied.notices.len());
                let is_entries = matches!(input, Input::Entries { .. });
                applied.take(replica.handle(now, input));
                if is_entries {
                    applied.remote_entries += applied.records.len() - records;
                }
                if applied.notices[notices..].iter().any(Notice::is_refusal) {
                    handed.note_refusal();
                }
                more_than_acks = true;
                if Instant::now() >= until {
                    self.backlog.push_front(handed);
                    return true;
                }
                // Readers get a chance.
                RwLockWriteGuard::bump(replica);
            }
            applied.applied.push(handed.told());
        }
        more_than_acks
    }

    fn apply(
        &mut self,
        replica: &mut Replica,
        command: Command,
        physical: bool,
        reply: oneshot::Sender<Outcome>,
        applied: &mut Applied,
    ) {
        if let Err(error) = self.shared.limits.check(&command) {
            applied.replies.push((reply, Err(error)));
            return;
        }
        let (compact, alarm) = match &command {
            Command::Compact(_) => (true, false),
            Command::SetAlarm { .. } => (false, true),
            _ => (false, false),
        };
        let compacted_before = replica.compacted();
        let effects = replica.handle(self.shared.now(), Input::Client(command));
        let Some(outcome) = applied.take(effects) else { return };
        match &outcome {
            Ok(Reply::LeaseGrant { ttl, .. }) => self.shared.observer.lease_granted(*ttl),
            Ok(Reply::LeaseRevoke) => self.shared.observer.lease_revoked(),
            Ok(Reply::LeaseRenew { .. }) => self.shared.observer.lease_renewed(),
            _ => {}
        }
        if alarm {
            self.shared.limits.note_alarms(replica);
        }
        if compact && matches!(outcome, Ok(Reply::Compact)) {
            applied.compacted = true;
            // etcd reads a key to answer.
            applied.tally.add(Tally::range());
            self.shared.hashes.lock().compact(compacted_before, replica.compacted());
            self.shared.observer.compacted(replica.compacted());
            if physical {
                self.physical.push((reply, outcome));
                return;
            }
        }
        applied.replies.push((reply, outcome));
    }

    /// Whether there is something to sweep and the compaction that hid it is durable: otherwise a crash could leave
    /// a journal without the records, and a head that does not know why.
    fn may_sweep(&self) -> bool {
        self.sweeping
            && self.shared.is_writable()
            && !self.shared.is_paused()
            && self.shared.published_groups.load(Ordering::Acquire) >= self.sweep_after
    }

    fn sweep(&mut self) {
        let sweep = self.shared.replica.write().sweep(SWEEP_SLICE);
        self.sweeping = !sweep.done;
        let waiting = if sweep.done { std::mem::take(&mut self.physical) } else { Vec::new() };
        if sweep.dead.is_empty() && waiting.is_empty() {
            return;
        }
        self.shared.observer.swept(sweep.dead.len());
        self.shared.pipe.send(Work::Trim { dead: sweep.dead, waiting });
    }
}

/// An outcome, and who waits for it.
pub(crate) type Answer = (oneshot::Sender<Outcome>, Outcome);

/// More answers than this are given from within the runtime.
const ANSWERS_FROM_OUTSIDE: usize = 4;

/// Answers a group. Each answer wakes a task; from outside the runtime each of these takes the lock of its common
/// queue and may have to wake a worker, so a crowd of them is handed in as one task that wakes them from inside. How
/// long that task waited tells the queue how far the runtime is behind.
pub(crate) fn answer_all(shared: &Arc<Shared>, answers: Vec<Answer>) {
    let give = |answers| {
        for (reply, outcome) in answers {
            answer(reply, outcome);
        }
    };
    match &shared.runtime {
        Some(runtime) if answers.len() > ANSWERS_FROM_OUTSIDE => {
            let (shared, since) = (Arc::clone(shared), Instant::now());
            drop(runtime.spawn(async move {
                shared.queue.note_lag(since.elapsed());
                give(answers);
            }));
        }
        _ => give(answers),
    }
}

/// Answers a client that may have gone.
pub(crate) fn answer(reply: oneshot::Sender<Outcome>, outcome: Outcome) {
    if reply.send(outcome).is_err() {
        tracing::trace!("a client went before its answer");
    }
}
