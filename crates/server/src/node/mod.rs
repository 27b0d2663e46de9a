//! The node: one replica, the thread that alone changes it, the thread that alone writes its journal, and the
//! [`Handle`] that everyone else holds.
//!
//! ```text
//! submit -> queue -> committer (applies a group) -> storage thread (one append and flush) -> replies, watchers
//! range  -> the state as of the last durable revision, at once
//! ```
//!
//! Nothing leaves that is not durable. A read needs no place in the queue and never waits: whatever was acknowledged
//! before it began is durable, so the state as of the durable revision is what a linearizable read must show. What
//! is applied but not durable yet has been acknowledged to nobody. For the same reason reads stay right after a
//! failed flush, when no write is taken any more.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use eddy_crdt::clock::Now;
use eddy_crdt::entry::Head;
use eddy_crdt::genesis::Genesis;
use eddy_crdt::id::{Identity, LeaseId};
use eddy_crdt::op::{
    Alarm, AlarmKind, Command, LeaseStatus, RangeOp, RangeReply, ReadAt, Refusal, Reply, Txn, TxnReply,
};
use eddy_crdt::replica::Replica;
use eddy_crdt::restore::{Damage, Loader};
use eddy_crdt::revision::Revision;
use eddy_crdt::tally::Tally;
use parking_lot::{Mutex, RwLock};
use tokio::sync::{oneshot, watch as latest};

use self::committer::Committer;
use self::hashes::Hashes;
use self::hub::Hub;
use self::observe::Observer;
use self::peering::Peering;
use self::pipe::{Pipe, Work};
use self::queue::{Job, Queue};
use self::quota::Limits;
use self::storage_thread::StorageThread;
use crate::storage::{Group, Journal, StorageError};

pub mod autocompact;
mod committer;
#[cfg(debug_assertions)]
mod faults;
mod hashes;
pub mod hub;
pub mod identity;
mod matcher;
pub mod observe;
pub mod peering;
mod pipe;
mod queue;
mod quota;
mod storage_thread;
#[cfg(test)]
mod tests;
pub mod watch;

/// While stopping, how often a thread that has not ended is asked whether the disk still answers.
const ENDED_EVERY: Duration = Duration::from_secs(1);

/// etcd's quota when none is given, bytes.
pub const QUOTA_DEFAULT: u64 = 2 << 30;

/// How often watchers that want it are told that nothing happened, unless told otherwise.
pub const PROGRESS_INTERVAL_DEFAULT: Duration = Duration::from_secs(600);

/// The shortest such interval, as in etcd.
pub const PROGRESS_INTERVAL_MIN: Duration = Duration::from_millis(100);

/// How long a client waits for its answer, etcd's limit: a disk that does not answer must not hold clients for ever.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(7);

/// How long an append may take before health checks say that the disk does not answer. Slow cards pause for a second
/// or two; clients are still waiting.
const STALLED_AFTER: Duration = Duration::from_secs(5);

/// The answer to a submitted command.
pub type Outcome = Result<Reply, NodeError>;

/// Why the node does not do what it was asked.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NodeError {
    /// The replica refuses.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The queue is full.
    #[error("etcdserver: too many requests")]
    TooManyRequests,
    /// The quota is used up, or the alarm that says so is raised.
    #[error("etcdserver: mvcc: database space exceeded")]
    NoSpace,
    /// No answer in time; whether the command is done, or will be, is unknown.
    #[error("etcdserver: request timed out")]
    TimedOut,
    /// The CORRUPT alarm is raised.
    #[error("etcdserver: corrupt cluster")]
    Corrupt,
    /// The node stops.
    #[error("etcdserver: server stopped")]
    Stopped,
    /// A flush failed; no more writes until a restart. Whether this one is on disk is unknown.
    #[error("etcdserver: writes stopped until restart: {0}")]
    WritesStopped(Arc<str>),
    /// Maintenance of the journal failed; the journal is as before.
    #[error("etcdserver: {0}")]
    Storage(String),
}

/// Why a node does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The journal can't be read.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// What the journal holds is no replica.
    #[error("{} is damaged: {damage}; restore the data dir from a backup, or remove it to start empty", place.display())]
    Damaged {
        /// The data dir.
        place: PathBuf,
        /// What is wrong.
        damage: Damage,
    },
    /// No identity could be drawn.
    #[error(transparent)]
    Identity(#[from] identity::IdentityError),
    /// The operating system gives no thread.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
}

/// What a node is started with.
pub struct Options {
    /// Who the replica is if its journal is new; later starts take what the journal says.
    pub identity: Identity,
    /// The cluster that is founded if the journal is new; `None` for a replica that belongs to none.
    pub genesis: Option<Genesis>,
    /// Where the journal is, for messages.
    pub place: PathBuf,
    /// Bytes of data above which puts and grants are refused; `None` for no limit.
    pub quota: Option<u64>,
    /// Interval of progress notifications.
    pub progress_interval: Duration,
    /// Who keeps metrics.
    pub observer: Arc<dyn Observer>,
}

impl Options {
    /// etcd's defaults.
    pub fn new(identity: Identity, place: PathBuf) -> Self {
        Self {
            identity,
            genesis: None,
            place,
            quota: Some(QUOTA_DEFAULT),
            progress_interval: PROGRESS_INTERVAL_DEFAULT,
            observer: Arc::new(observe::Deaf),
        }
    }
}

/// Whether the node takes writes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NodeState {
    /// It does.
    Running,
    /// A flush failed: reads go on, writes need a restart.
    WritesStopped {
        /// What failed.
        reason: Arc<str>,
    },
    /// The disk is full or does not answer: reads go on, writes come back by themselves.
    WritesPaused {
        /// What it waits for.
        reason: Arc<str>,
    },
}

impl NodeState {
    /// Why writes are not taken, if they are not.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Running => None,
            Self::WritesStopped { reason } | Self::WritesPaused { reason } => Some(reason),
        }
    }
}

/// What a store is said to take at least, bytes: about its head. `etcdctl endpoint status` divides by the size.
const SIZE_MIN: u64 = 4096;

/// What Status tells.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Status {
    /// Who the replica is.
    pub identity: Identity,
    /// The durable revision.
    pub revision: Revision,
    /// The revision of the last compaction; -1 for none.
    pub compacted: Revision,
    /// Journal number of the next record: stands for raft's index.
    pub next_number: u64,
    /// Bytes that the data takes, counted as etcd does: freed space counts until a defragmentation.
    pub size_allocated: u64,
    /// Bytes of live data.
    pub size_in_use: u64,
    /// Bytes that the store takes on disk.
    pub size_on_disk: u64,
    /// The quota, if there is one.
    pub quota: Option<u64>,
    /// Keys that have a value.
    pub keys: usize,
    /// Alarms that are raised.
    pub alarms: Vec<Alarm>,
    /// Whether writes are taken.
    pub state: NodeState,
    /// Commands that wait.
    pub waiting: usize,
}

/// What HashKV tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HashKv {
    /// etcd's hash of all keys up to `revision`.
    pub hash: u32,
    /// The revision it was taken at.
    pub revision: Revision,
    /// The revision of the last compaction; -1 for none.
    pub compacted: Revision,
}

/// The node's threads, and a channel that closes when they have ended.
#[derive(Default)]
struct Threads {
    handles: Vec<JoinHandle<()>>,
    ended: Option<mpsc::Receiver<()>>,
}

/// What the threads and all handles share.
pub(crate) struct Shared {
    replica: RwLock<Replica>,
    queue: Queue,
    pipe: Pipe,
    hub: Hub,
    limits: Limits,
    hashes: Mutex<Hashes>,
    peering: Peering,
    /// Whether a client was seen that came from another replica.
    met_foreign: AtomicBool,
    /// The durable revision.
    durable: AtomicI64,
    /// The first journal number that is not durable.
    durable_number: latest::Sender<u64>,
    /// Number of the last group whose effects were published.
    published_groups: AtomicU64,
    writable: AtomicBool,
    stopped_because: Mutex<Option<Arc<str>>>,
    /// The disk is full.
    paused: AtomicBool,
    /// Since when the journal has been appending, milliseconds after `started`, plus one; 0 while it is not.
    appending_since: AtomicU64,
    identity: Identity,
    quota: Option<u64>,
    progress_interval: Duration,
    started: Instant,
    observer: Arc<dyn Observer>,
    threads: Mutex<Threads>,
    /// Where clients wait, if the node was started from within a runtime.
    runtime: Option<tokio::runtime::Handle>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("identity", &self.identity).finish_non_exhaustive()
    }
}

impl Shared {
    fn now(&self) -> Now {
        let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let wall_ms = wall.as_millis() as u64;
        #[cfg(debug_assertions)]
        let wall_ms = wall_ms.saturating_add_signed(faults::clock_off_ms());
        Now { wall_ms, mono_ms: self.started.elapsed().as_millis() as u64 }
    }

    fn durable_revision(&self) -> Revision {
        Revision::new(self.durable.load(Ordering::Acquire))
    }

    fn is_writable(&self) -> bool {
        self.writable.load(Ordering::Acquire)
    }

    /// Takes no more writes; the first reason stands.
    fn stop_writes(&self, reason: &str) {
        let mut because = self.stopped_because.lock();
        if because.is_none() {
            tracing::error!(reason, "no more writes until a restart; reads go on");
            *because = Some(reason.into());
            self.observer.writes_stopped();
        }
        drop(because);
        self.writable.store(false, Ordering::Release);
        // Whoever waits for a flush learns that none will come.
        self.durable_number.send_modify(|_| {});
        self.queue.poke();
    }

    /// A client asked for a revision of another replica: logged once, since its operator should know that it reads two
    /// histories.
    fn met_foreign(&self, at: Revision) {
        if !self.met_foreign.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                revision = at.get(),
                "a client asked for a revision of another replica, and is answered as if it were compacted: each client \
                 should keep to one replica"
            );
        }
    }

    fn is_paused(&self) -> bool {
        self.paused.load(Ordering::Acquire)
    }

    /// Takes no more writes until there is space again.
    fn pause_writes(&self, error: &StorageError) {
        tracing::error!(%error, "writes are refused until there is space; reads go on");
        self.paused.store(true, Ordering::Release);
        self.queue.poke();
    }

    fn resume_writes(&self) {
        if self.paused.swap(false, Ordering::AcqRel) {
            tracing::info!("there is space again: writes are taken");
            self.queue.poke();
        }
    }

    fn appending(&self, on: bool) {
        let since = if on { self.started.elapsed().as_millis() as u64 + 1 } else { 0 };
        self.appending_since.store(since, Ordering::Relaxed);
    }

    /// How long the disk has been silent, if that is too long.
    fn stalled(&self) -> Option<Duration> {
        let since = self.appending_since.load(Ordering::Relaxed).checked_sub(1)?;
        let silent = self.started.elapsed().saturating_sub(Duration::from_millis(since));
        (silent >= STALLED_AFTER).then_some(silent)
    }

    fn write_error(&self) -> NodeError {
        match &*self.stopped_because.lock() {
            Some(reason) => NodeError::WritesStopped(Arc::clone(reason)),
            None => NodeError::Stopped,
        }
    }
}

/// Reads a journal: its records in a loader, and its head.
fn read(journal: &mut dyn Journal, place: &Path) -> Result<(Loader, Option<Bytes>), StartError> {
    let mut loader = Loader::new();
    let mut failed = None;
    let loaded = journal.load(&mut |number, record| {
        loader.record(number, record).map_err(|damage| {
            let what = damage.to_string();
            failed = Some(damage);
            StorageError::Damaged { path: place.to_owned(), what }
        })
    });
    match (loaded, failed) {
        (_, Some(damage)) => Err(StartError::Damaged { place: place.to_owned(), damage }),
        (loaded, None) => Ok((loader, loaded?)),
    }
}

/// The replica of a journal that is not to be served any more. `identity` is whose it is if it was never written to.
///
/// # Errors
/// When the journal is damaged or unreadable.
pub fn load(journal: &mut dyn Journal, place: &Path, identity: Identity) -> Result<Replica, StartError> {
    let (loader, head) = read(journal, place)?;
    let now = Now { wall_ms: 0, mono_ms: 0 };
    loader
        .finish(now, head.as_ref(), identity)
        .map_err(|damage| StartError::Damaged { place: place.to_owned(), damage })
}

/// Loads the journal and starts the node's two threads.
///
/// # Errors
/// When the journal is damaged or unreadable, or threads or randomness can't be had.
pub fn start(mut journal: Box<dyn Journal>, options: Options) -> Result<Handle, StartError> {
    let started = Instant::now();
    let damaged = |damage| StartError::Damaged { place: options.place.clone(), damage };
    let (loader, mut head) = read(&mut *journal, &options.place)?;
    let new = head.is_none();
    if let Some(bytes) = &mut head
        && journal.may_have_lost_tail()
    {
        // Names that were given to lost entries must not be given again.
        let decoded = Head::decode(bytes).map_err(|source| damaged(Damage::Codec { number: 0, source }))?;
        let decoded = decoded.reborn(identity::draw_birth()?);
        tracing::warn!(birth = %decoded.identity.birth, "the last stop was unclean and fsync was off: a new birth");
        *bytes = decoded.encode();
    }
    let now = Now { wall_ms: 0, mono_ms: 0 };
    let replica = match &options.genesis {
        Some(genesis) if new => {
            let (replica, effects) = Replica::found(options.identity, genesis);
            let records = effects.records.into_vec();
            journal.append(&Group { first: 1, records, head: replica.head().encode() })?;
            replica
        }
        _ => {
            let replica = loader.finish(now, head.as_ref(), options.identity).map_err(damaged)?;
            if new || journal.may_have_lost_tail() {
                journal.head(replica.head().encode())?;
            }
            replica
        }
    };

    let limits = Limits::default();
    limits.note_alarms(&replica);
    let shared = Arc::new(Shared {
        queue: Queue::default(),
        pipe: Pipe::default(),
        hub: Hub::new(replica.revision()),
        limits,
        hashes: Mutex::new(Hashes::default()),
        peering: Peering::new(&replica),
        met_foreign: AtomicBool::new(false),
        durable: AtomicI64::new(replica.revision().get()),
        durable_number: latest::Sender::new(replica.next_number()),
        published_groups: AtomicU64::new(0),
        writable: AtomicBool::new(true),
        stopped_because: Mutex::new(None),
        paused: AtomicBool::new(false),
        appending_since: AtomicU64::new(0),
        identity: replica.identity(),
        quota: options.quota,
        progress_interval: options.progress_interval.max(PROGRESS_INTERVAL_MIN),
        started,
        observer: options.observer,
        replica: RwLock::new(replica),
        threads: Mutex::default(),
        runtime: tokio::runtime::Handle::try_current().ok(),
    });
    let storage = StorageThread::new(Arc::clone(&shared), journal);
    let committer = Committer::new(Arc::clone(&shared));
    let spawn = |name: &str, run: Box<dyn FnOnce() + Send>| {
        std::thread::Builder::new().name(name.to_owned()).spawn(run).map_err(StartError::Thread)
    };
    // Nothing is ever sent: the channel closes when both threads have dropped their ends.
    let (alive, ended) = mpsc::sync_channel(0);
    let (one, other) = (alive.clone(), alive);
    let threads = vec![
        spawn("committer", Box::new(move || run_holding(one, || committer.run())))?,
        spawn("storage", Box::new(move || run_holding(other, || storage.run())))?,
    ];
    *shared.threads.lock() = Threads { handles: threads, ended: Some(ended) };
    Ok(Handle { shared })
}

fn run_holding(_alive: mpsc::SyncSender<()>, run: impl FnOnce()) {
    run();
}

/// What everyone holds: commands in, answers and events out. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Handle {
    shared: Arc<Shared>,
}

impl Handle {
    /// Has a command done. The answer comes once it is durable.
    ///
    /// # Errors
    /// When the replica refuses, the queue is full, the quota is used up, or writes have stopped.
    pub async fn submit(&self, command: Command) -> Outcome {
        let cost = quota::cost(&command);
        if !self.shared.limits.allows(cost, self.shared.quota) && self.shared.limits.check(&command).is_ok() {
            self.raise_no_space().await;
            return Err(NodeError::NoSpace);
        }
        self.enqueue(command, false, cost as usize).await
    }

    /// Keeps a lease alive; tells its time to live, seconds. At once where nothing waits for the disk: what the answer
    /// rests on is durable then.
    ///
    /// # Errors
    /// As [`Self::submit`]; `LeaseNotFound` among them.
    pub async fn renew(&self, id: LeaseId) -> Result<i64, NodeError> {
        let shared = &self.shared;
        let renewed = {
            let replica = shared.replica.read();
            let settled = shared.is_writable() && *shared.durable_number.borrow() == replica.next_number();
            settled.then(|| replica.renew_in_passing(shared.now(), id)).flatten()
        };
        if let Some(ttl) = renewed {
            shared.observer.lease_renewed();
            return Ok(ttl);
        }
        match self.submit(Command::LeaseRenew(id)).await? {
            Reply::LeaseRenew { ttl } => Ok(ttl),
            _ => Err(NodeError::Stopped),
        }
    }

    async fn raise_no_space(&self) {
        let alarm = Alarm { member: self.shared.identity.replica, kind: AlarmKind::NoSpace };
        tracing::warn!(quota = self.shared.quota, "the quota is used up: raising the NOSPACE alarm");
        if let Err(error) = self.enqueue(Command::SetAlarm { alarm, raised: true }, false, 0).await {
            tracing::warn!(%error, "could not raise the NOSPACE alarm");
        }
    }

    async fn enqueue(&self, command: Command, physical: bool, bytes: usize) -> Outcome {
        let shared = &self.shared;
        if !shared.is_writable() {
            shared.observer.write_refused();
            return Err(shared.write_error());
        }
        let (reply, answer) = oneshot::channel();
        shared
            .queue
            .push(Job::Client { command, physical, reply }, bytes)
            .inspect_err(|_| shared.observer.write_refused())?;
        // A sender that is dropped unused: the threads are gone.
        let answer = async { answer.await.unwrap_or_else(|_| Err(shared.write_error())) };
        if physical {
            return answer.await;
        }
        tokio::time::timeout(REQUEST_TIMEOUT, answer).await.unwrap_or(Err(NodeError::TimedOut))
    }

    /// Hides history before the revision. Answers once that is durable or, if `physical`, once what it hid is gone
    /// from the disk.
    ///
    /// # Errors
    /// As [`Self::submit`]; `Compacted` and `FutureRevision` among them.
    pub async fn compact(&self, at: i64, physical: bool) -> Result<(), NodeError> {
        self.enqueue(Command::Compact(at), physical, 0).await.map(|_| ())
    }

    /// The durable revision, for headers.
    pub fn revision(&self) -> Revision {
        self.shared.durable_revision()
    }

    /// Who the replica is.
    pub fn identity(&self) -> Identity {
        self.shared.identity
    }

    /// Reads a range: linearizable (see the module), and at once.
    ///
    /// # Errors
    /// When the revision asked for is compacted or yet to come.
    pub fn range(&self, op: &RangeOp) -> Result<RangeReply, NodeError> {
        let since = Instant::now();
        let as_of = self.shared.durable_revision();
        let replica = self.shared.replica.read();
        let reply = replica.range(op, as_of);
        if let (Err(Refusal::Compacted), ReadAt::Revision(at)) = (&reply, op.at)
            && replica.is_foreign(Revision::new(at), as_of)
        {
            self.shared.met_foreign(Revision::new(at));
        }
        drop(replica);
        self.shared.observer.done(&Tally::range());
        self.shared.observer.range(since.elapsed(), reply.is_ok());
        Ok(reply?)
    }

    /// Evaluates a transaction that only reads, as [`Self::range`].
    ///
    /// # Errors
    /// As [`Self::range`].
    pub fn read_txn(&self, txn: &Txn) -> Result<TxnReply, NodeError> {
        let as_of = self.shared.durable_revision();
        let mut tally = Tally::default();
        let reply = self.shared.replica.read().read_txn(txn, as_of, &mut tally);
        self.shared.observer.done(&tally);
        Ok(reply?)
    }

    /// Waits until everything before that journal number is durable.
    async fn durable_up_to(&self, number: u64) -> Result<(), NodeError> {
        let mut durable = self.shared.durable_number.subscribe();
        loop {
            if *durable.borrow_and_update() >= number {
                return Ok(());
            }
            if !self.shared.is_writable() {
                return Err(self.shared.write_error());
            }
            match tokio::time::timeout(REQUEST_TIMEOUT, durable.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return Err(NodeError::Stopped),
                Err(_) => return Err(NodeError::TimedOut),
            }
        }
    }

    /// What is known of a lease.
    ///
    /// # Errors
    /// When what was seen will never be durable, because writes have stopped.
    pub async fn lease(&self, id: LeaseId) -> Result<Option<LeaseStatus>, NodeError> {
        let (status, number) = {
            let replica = self.shared.replica.read();
            (replica.lease(self.shared.now(), id), replica.next_number())
        };
        self.durable_up_to(number).await?;
        Ok(status)
    }

    /// All leases, those with the least time left first, as etcd lists them.
    ///
    /// # Errors
    /// As [`Self::lease`].
    pub async fn leases(&self) -> Result<Vec<LeaseId>, NodeError> {
        let (mut leases, number) = {
            let replica = self.shared.replica.read();
            let leases: Vec<(LeaseId, u64)> = replica.leases(self.shared.now()).collect();
            (leases, replica.next_number())
        };
        self.durable_up_to(number).await?;
        leases.sort_by_key(|(_, left_ms)| *left_ms);
        Ok(leases.into_iter().map(|(id, _)| id).collect())
    }

    /// The hash that etcd's HashKV gives at that revision; zero for now. At a revision that was compacted at since, the
    /// answer is the same as before, while it is remembered.
    ///
    /// # Errors
    /// When the revision is compacted or yet to come, or as [`Self::lease`].
    pub async fn hash_kv(&self, at: i64) -> Result<HashKv, NodeError> {
        if let Some(hash) = self.shared.hashes.lock().get(Revision::new(at)) {
            return Ok(hash);
        }
        let shared = Arc::clone(&self.shared);
        let hashed = tokio::task::spawn_blocking(move || {
            let since = Instant::now();
            let replica = shared.replica.read();
            let (hash, revision) = replica.hash_kv(at)?;
            shared.observer.hashed(since.elapsed());
            let hash = HashKv { hash, revision, compacted: replica.compacted() };
            Ok((hash, replica.next_number()))
        });
        let (hash, number) = hashed.await.unwrap_or(Err(NodeError::Stopped))?;
        self.durable_up_to(number).await?;
        self.shared.hashes.lock().note(hash);
        Ok(hash)
    }

    /// The alarms that are raised.
    pub fn alarms(&self) -> Vec<Alarm> {
        self.shared.replica.read().alarms().collect()
    }

    /// What Status tells.
    pub fn status(&self) -> Status {
        let shared = &self.shared;
        let size = |of: &AtomicU64| of.load(Ordering::Relaxed);
        let replica = shared.replica.read();
        Status {
            identity: shared.identity,
            revision: shared.durable_revision(),
            compacted: replica.compacted(),
            next_number: *shared.durable_number.borrow(),
            size_allocated: size(&shared.limits.size_allocated).max(SIZE_MIN),
            size_in_use: size(&shared.limits.size_in_use).max(SIZE_MIN),
            size_on_disk: size(&shared.limits.size_on_disk),
            quota: shared.quota,
            keys: replica.live_keys(),
            alarms: replica.alarms().collect(),
            state: self.state(),
            waiting: shared.queue.len(),
        }
    }

    /// Whether the node takes writes.
    pub fn state(&self) -> NodeState {
        let shared = &self.shared;
        if let Some(reason) = &*shared.stopped_because.lock() {
            return NodeState::WritesStopped { reason: Arc::clone(reason) };
        }
        if shared.is_paused() || shared.limits.disk_low.load(Ordering::Relaxed) {
            return NodeState::WritesPaused { reason: "no space left on the disk of the data dir".into() };
        }
        match shared.stalled() {
            Some(silent) => {
                let reason = format!("the disk has not answered for {} s", silent.as_secs());
                NodeState::WritesPaused { reason: reason.into() }
            }
            None => NodeState::Running,
        }
    }

    /// Numbers of streams and watchers, for metrics.
    pub fn watch_counts(&self) -> hub::WatchCounts {
        self.shared.hub.counts()
    }

    /// Rewrites the journal so that freed space goes back to the file system. Writes wait meanwhile.
    ///
    /// # Errors
    /// When the copy fails (the journal is as before), or the node has stopped.
    pub async fn defragment(&self) -> Result<(), NodeError> {
        let (reply, answer) = oneshot::channel();
        if !self.shared.pipe.send(Work::Defragment(reply)) {
            return Err(self.shared.write_error());
        }
        answer.await.unwrap_or(Err(NodeError::Stopped))
    }

    /// Ends all watch streams, so that connections can drain.
    pub fn close_watches(&self) {
        self.shared.hub.close();
    }

    /// Refuses new commands, finishes and flushes what is in flight, ends all watch streams and both threads. Blocks.
    /// False when the disk does not answer: then the threads are left behind, with nothing acknowledged in them.
    pub fn shutdown(&self) -> bool {
        self.shared.queue.close();
        let Threads { handles, ended } = std::mem::take(&mut *self.shared.threads.lock());
        while let Some(Err(mpsc::RecvTimeoutError::Timeout)) = ended.as_ref().map(|e| e.recv_timeout(ENDED_EVERY)) {
            if self.shared.stalled().is_some() {
                tracing::error!("the disk does not answer; stopping without it");
                self.shared.hub.close();
                return false;
            }
        }
        for thread in handles {
            if thread.join().is_err() {
                tracing::error!("a thread of the node ended by a panic");
            }
        }
        self.shared.hub.close();
        true
    }
}
