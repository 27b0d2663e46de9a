//! The one thread that changes the replica.
//!
//! It takes all waiting jobs as one group. It applies clients' commands, and then as many inputs of peers as a group has
//! time for. It hands the records on to the storage thread, and the next group collects while that thread flushes. It
//! sleeps until there is a job or a lease runs out, so an idle node does not wake. Between groups it sweeps what a
//! compaction hid, in slices.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use eddy_crdt::{Command, Commit, Effects, Head, Input, Notice, Replica, Reply, Revision, Tally};
use parking_lot::RwLockWriteGuard;
use tokio::sync::oneshot;

use super::answer::{Answer, answer, answer_all};
use super::backlog::{self, Handed, Told, WaitingAcks};
use super::engine::Engine;
use super::error::NodeError;
use super::peering::Durable;
use super::pipe::{Flush, Unwritten};
use super::queue::{CommandResult, Job, Wait};
use super::slow;
use super::sweeper::{SweepPace, Sweeper};

/// After this many commands readers get a chance to take the lock.
const COMMANDS_PER_LOCK: usize = 64;

/// How long peers' entries are applied before they do. To hand the lock over costs two switches of threads; where cores are
/// busy, each of these takes longer than hundreds of entries.
const LOCK_PER_READERS: Duration = Duration::from_millis(2);

/// How many replaced values leave memory with a group, or with one hold of the lock at the start. Most groups are smaller, so
/// none stays behind for long.
const RELEASED_PER_GROUP: usize = 8192;

/// So many bytes of them do not wait for the next group either: one command may delete all that there is, and be the last.
const REPLACED_MAX: usize = 1 << 20;

/// How long a group works on inputs of peers before its answers leave. A merge may take milliseconds, and clients wait
/// for no more than this. With less, many busy clients would leave too little time for peers.
const PEERS_PER_GROUP: Duration = Duration::from_millis(20);

/// The same once one of them is late.
const PEERS_WHEN_LATE: Duration = Duration::from_millis(200);

/// See the module.
pub(crate) struct Committer {
    engine: Arc<Engine>,
    /// Acknowledgements that wait for something else to be applied.
    acks: Option<WaitingAcks>,
    /// Other inputs of sessions that no group had time for, in order.
    backlog: VecDeque<Handed>,
    /// Whether replaced values are on disk and still in memory: more than one group lets go.
    releases: bool,
    /// How many groups the storage thread was given: the number of the last one.
    handed_on: u64,
    sweeper: Sweeper,
}

/// Closes the queue and the pipe when the committer ends, by a panic too.
struct Farewell(Arc<Engine>);

impl Drop for Farewell {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.stop_writes("the committer failed");
        }
        // A panic leaves commands in the queue, and their clients would wait in vain.
        for job in self.0.queue.close_and_empty() {
            job.refuse(self.0.write_error());
        }
        self.0.pipe.close();
    }
}

/// A group in the making.
#[derive(Default)]
struct Applied {
    records: Vec<Bytes>,
    commits: Vec<Commit>,
    replies: Vec<Answer>,
    /// Waiters of the sessions' inputs that were applied.
    applied: Vec<Told>,
    notices: Vec<Notice>,
    /// Entries of other replicas that were applied.
    remote_entries: usize,
    head_changed: bool,
    leapt: bool,
    compacted: bool,
    tally: Tally,
}

/// What the replica holds after a group, read under the same lock.
struct After {
    /// What peers may be told once the group is durable; `None` when nothing changed.
    durable: Option<Durable>,
    next_number: u64,
    revision: Revision,
    /// `None` when there is nothing to store.
    head: Option<Head>,
    /// Whether much of what it replaced is to leave memory once it is durable.
    releases: bool,
}

impl Applied {
    /// Room for this many commands.
    fn with_capacity(commands: usize) -> Self {
        Self {
            replies: Vec::with_capacity(commands),
            records: Vec::with_capacity(commands),
            commits: Vec::with_capacity(commands),
            ..Self::default()
        }
    }

    fn take(&mut self, effects: Effects) -> Option<CommandResult> {
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
    pub(crate) fn new(engine: Arc<Engine>, pace: SweepPace) -> Self {
        let sweeper = Sweeper::new(Arc::clone(&engine), pace);
        Self { engine, acks: None, backlog: VecDeque::new(), releases: false, handed_on: 0, sweeper }
    }

    /// Runs until the queue is closed and drained.
    pub(crate) fn run(mut self) {
        let _farewell = Farewell(Arc::clone(&self.engine));
        let mut group = Vec::new();
        let mut deadline = self.engine.next_tick_ms(&self.engine.replica.read());
        loop {
            deadline = deadline.into_iter().chain(self.acks.as_ref().map(WaitingAcks::due_ms)).min();
            let tick = deadline
                .filter(|_| self.engine.is_writable() && !self.engine.is_paused())
                .map(|deadline_ms| self.engine.started + Duration::from_millis(deadline_ms));
            let slice = self.sweeper.next();
            let wait = match tick.into_iter().chain(slice).min() {
                _ if slice.is_some_and(|slice| slice <= Instant::now()) => Wait::No,
                _ if self.releases || !self.backlog.is_empty() => Wait::No,
                Some(wake) => Wait::Until(wake),
                None => Wait::Forever,
            };
            if !self.engine.queue.take(&mut group, wait) {
                break;
            }
            self.releases &= self.engine.is_writable() && !self.engine.is_paused();
            if !self.engine.is_writable() {
                self.acks = None;
                backlog::refuse_all(&mut self.backlog, || self.engine.write_error());
                for job in group.drain(..) {
                    job.refuse(self.engine.write_error());
                }
                self.sweeper.refuse(|| self.engine.write_error());
                continue;
            }
            if self.engine.is_paused() {
                backlog::refuse_all(&mut self.backlog, || NodeError::NoSpace);
                self.refuse_growth(&mut group);
                deadline = self.engine.next_tick_ms(&self.engine.replica.read());
                continue;
            }
            let now_ms = self.engine.now().mono_ms;
            if !group.is_empty() || !self.backlog.is_empty() || deadline.is_some_and(|deadline| deadline <= now_ms) {
                deadline = self.commit(&mut group);
            } else {
                let engine = Arc::clone(&self.engine);
                self.release(&mut engine.replica.write());
            }
            if self.sweeper.next().is_some_and(|slice| slice <= Instant::now()) {
                self.sweeper.go_on();
            }
        }
        backlog::refuse_all(&mut self.backlog, || NodeError::Stopped);
        self.sweeper.refuse(|| NodeError::Stopped);
    }

    /// Lets replaced values that are on disk go from memory, as many as one hold of the lock may.
    fn release(&mut self, replica: &mut Replica) {
        self.releases = !replica.release(self.engine.durable_revision(), RELEASED_PER_GROUP);
    }

    /// While the disk is full: renews leases, which writes nothing, and refuses all other jobs. No lease runs out
    /// meanwhile, since that could not be written either.
    fn refuse_growth(&self, group: &mut Vec<Job>) {
        for job in group.drain(..) {
            match job {
                Job::Client { command: command @ Command::LeaseRenew(_), reply, .. } => {
                    let effects = self.engine.replica.write().handle(self.engine.now(), Input::Client(command));
                    answer(reply, effects.reply.and_then(Result::ok).ok_or(NodeError::NoSpace));
                }
                job => job.refuse(NodeError::NoSpace),
            }
        }
    }

    /// Applies a group and expires leases; returns when the next lease runs out.
    fn commit(&mut self, group: &mut Vec<Job>) -> Option<u64> {
        let mut applied = Applied::with_capacity(group.len());
        let engine = Arc::clone(&self.engine);
        let mut replica = engine.replica.write();
        self.release(&mut replica);
        let now = engine.now();
        let mut more_than_acks = self.apply_clients(&mut replica, group, &mut applied);
        more_than_acks |= self.work_off(&mut replica, &mut applied);
        if let Some(acks) = self.acks.take_if(|acks| more_than_acks || acks.due_ms() <= now.mono_ms || acks.is_full()) {
            applied.take(replica.handle(now, acks.into_input()));
        }
        if engine.next_tick_ms(&replica).is_some_and(|deadline| deadline <= now.mono_ms) {
            let effects = replica.handle(now, Input::Tick);
            engine.metrics.leases_expired(effects.records.len());
            applied.take(effects);
        }
        let deadline = engine.next_tick_ms(&replica);
        let changed = !applied.records.is_empty() || applied.head_changed;
        let head = changed.then(|| {
            let (noted, head) = replica.close_group();
            applied.records.extend(noted);
            head
        });
        let after = After {
            durable: engine.peering.note(&replica, changed),
            next_number: replica.next_number(),
            revision: replica.revision(),
            head,
            releases: replica.replaced_bytes() > REPLACED_MAX,
        };
        engine.admission.note_spaces(&replica);
        if applied.remote_entries > 0 {
            // A peer's entries may raise and lower alarms too.
            engine.admission.note_alarms(&replica);
        }
        drop(replica);
        self.hand_over(applied, after);
        deadline
    }

    /// Applies clients' commands in the order in which they came, since clients wait for the answers. Inputs of peers join
    /// the backlog. Returns whether there was a command.
    fn apply_clients(
        &mut self,
        replica: &mut RwLockWriteGuard<'_, Replica>,
        group: &mut Vec<Job>,
        applied: &mut Applied,
    ) -> bool {
        let mut any = false;
        for (place, job) in group.drain(..).enumerate() {
            if place % COMMANDS_PER_LOCK == COMMANDS_PER_LOCK - 1 {
                RwLockWriteGuard::bump(replica);
            }
            match job {
                Job::Client { command, physical, reply } => {
                    self.apply(replica, command, physical, reply, applied);
                    any = true;
                }
                Job::Peer { input, since, applied: told } => self.backlog.push_back(Handed::new(input, since, told)),
            }
        }
        any
    }

    /// Tells sessions that their input is applied, and gives the group to the storage thread. A group that changed nothing
    /// is answered at once if all before it is durable.
    fn hand_over(&mut self, mut applied: Applied, after: After) {
        let engine = Arc::clone(&self.engine);
        for (told, refused) in applied.applied.drain(..) {
            if told.send(Ok(refused)).is_err() {
                tracing::trace!("a session ended before its input was applied");
            }
        }
        engine.metrics.remote_entries(applied.remote_entries);
        engine.peering.tell(applied.notices);
        engine.metrics.done(&applied.tally);

        let idle = engine.published_groups.load(Ordering::Acquire) == self.handed_on;
        if after.head.is_none() && idle {
            // There is nothing to flush, and all that these answers rest on is durable.
            answer_all(&engine, applied.replies);
            return;
        }
        self.handed_on += 1;
        let bytes = applied.records.iter().map(Bytes::len).sum();
        self.sweeper.note_group(self.handed_on, applied.records.len(), bytes, applied.compacted);
        let first = after.next_number - applied.records.len() as u64;
        engine.pipe.flush(Flush {
            group: after.head.map(|head| Unwritten { first, records: applied.records, head: Box::new(head) }),
            number: self.handed_on,
            next_number: after.next_number,
            revision: after.revision,
            commits: applied.commits,
            replies: applied.replies,
            durable: after.durable,
            leapt: applied.leapt,
            bytes,
            // The sweep waits for this group, and by then no job may wake the committer.
            poke: applied.compacted || after.releases || self.sweeper.is_sweeping(),
            since: Instant::now(),
        });
    }

    /// Applies inputs of peers for as long as a group may take. Returns whether there was more than acknowledgements.
    fn work_off(&mut self, replica: &mut RwLockWriteGuard<'_, Replica>, applied: &mut Applied) -> bool {
        let is_late = self.backlog.front().is_some_and(Handed::is_late);
        let until = Instant::now() + if is_late { PEERS_WHEN_LATE } else { PEERS_PER_GROUP };
        let (mut more_than_acks, mut bumped) = (false, Instant::now());
        while let Some(mut handed) = self.backlog.pop_front() {
            while let Some(input) = handed.slice() {
                let now = self.engine.now();
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
                let now = Instant::now();
                if now >= until {
                    self.backlog.push_front(handed);
                    return true;
                }
                if now >= bumped + LOCK_PER_READERS {
                    // Readers get a chance to take the lock.
                    RwLockWriteGuard::bump(replica);
                    bumped = Instant::now();
                }
            }
            applied.applied.push(handed.told());
        }
        more_than_acks
    }

    fn apply(
        &mut self,
        replica: &mut RwLockWriteGuard<'_, Replica>,
        command: Command,
        physical: bool,
        reply: oneshot::Sender<CommandResult>,
        applied: &mut Applied,
    ) {
        #[cfg(debug_assertions)]
        super::faults::before_command(&command);
        if let Err(error) = self.engine.admission.check(&command) {
            applied.replies.push((reply, Err(error)));
            return;
        }
        let reads = replica.reads_past(&command);
        if !reads.is_empty() {
            // The storage thread may want the replica first. Nobody else changes it meanwhile.
            let recalled = RwLockWriteGuard::unlocked(replica, || self.engine.recall_blocking(reads));
            match recalled {
                Ok(past) => replica.give_past(past),
                Err(error) => return applied.replies.push((reply, Err(error))),
            }
        }
        let (compact, alarm) = match &command {
            Command::Compact(_) => (true, false),
            Command::SetAlarm { .. } => (false, true),
            _ => (false, false),
        };
        let compacted_before = replica.compacted();
        let (kind, since) = (slow::kind(&command), Instant::now());
        let effects = replica.handle(self.engine.now(), Input::Client(command));
        let refusal = effects.reply.as_ref().and_then(|reply| reply.as_ref().err());
        self.engine.note_applied(since, "", || slow::write(kind, &effects.commits), refusal);
        let Some(result) = applied.take(effects) else { return };
        match &result {
            Ok(Reply::LeaseGrant { ttl, .. }) => self.engine.metrics.lease_granted(*ttl),
            Ok(Reply::LeaseRevoke { .. }) => self.engine.metrics.lease_revoked(),
            Ok(Reply::LeaseRenew { .. }) => self.engine.metrics.lease_renewed(),
            _ => {}
        }
        if alarm {
            self.engine.admission.note_alarms(replica);
        }
        if compact && matches!(result, Ok(Reply::Compact { .. })) {
            applied.compacted = true;
            // etcd reads a key to answer.
            applied.tally.add(Tally::range());
            self.engine.hashes.lock().compact(compacted_before, replica.compacted());
            if let Some(at) = replica.compacted() {
                self.engine.metrics.compacted(at);
            }
            if physical {
                self.sweeper.answer_at_the_end((reply, result));
                return;
            }
        }
        applied.replies.push((reply, result));
    }
}
