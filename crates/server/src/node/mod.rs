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
use eddy_crdt::{Damage, Genesis, Identity, Input, Loader, Now, Refusal, Replica, Reply, Revision};
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch as latest;

use self::committer::Committer;
pub use self::handle::{Handle, REQUEST_TIMEOUT};
use self::hashes::Hashes;
use self::hub::Hub;
use self::observe::Observer;
use self::peering::Peering;
use self::pipe::Pipe;
use self::queue::Queue;
use self::quota::Limits;
pub use self::state::{HashKv, NodeState, Status};
use self::storage_thread::StorageThread;
use crate::storage::{Doubt, Group, Journal, StorageError};

pub mod autocompact;
mod backlog;
mod committer;
#[cfg(debug_assertions)]
mod faults;
mod handle;
mod hashes;
pub mod hub;
pub mod identity;
mod matcher;
pub mod observe;
pub mod peering;
mod pipe;
mod queue;
mod quota;
mod state;
mod storage_thread;
#[cfg(test)]
mod tests;
pub mod watch;

/// etcd's quota when none is given, bytes.
pub const QUOTA_DEFAULT: u64 = 2 << 30;

/// How often watchers that want it are told that nothing happened, unless told otherwise.
pub const PROGRESS_INTERVAL_DEFAULT: Duration = Duration::from_secs(600);

/// The shortest such interval, as in etcd.
pub const PROGRESS_INTERVAL_MIN: Duration = Duration::from_millis(100);

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

/// Lets a replica go on under another birth: peers may know more of it than its disk does.
fn doubt(replica: &mut Replica, journal: &mut dyn Journal, reason: Doubt) -> Result<(), StartError> {
    let birth = identity::draw_birth()?;
    tracing::warn!(%birth, %reason, "a new birth, and other revisions: peers may know more of this member than its disk does");
    let first = replica.next_number();
    let effects = replica.handle(Now::default(), Input::Doubt(birth));
    journal.append(&Group { first, records: effects.records.into_vec(), head: replica.head().encode() })?;
    Ok(())
}

/// Loads the journal and starts the node's two threads.
///
/// # Errors
/// When the journal is damaged or unreadable, or threads or randomness can't be had.
pub fn start(mut journal: Box<dyn Journal>, options: Options) -> Result<Handle, StartError> {
    let started = Instant::now();
    let damaged = |damage| StartError::Damaged { place: options.place.clone(), damage };
    let (loader, head) = read(&mut *journal, &options.place)?;
    let new = head.is_none();
    let now = Now { wall_ms: 0, mono_ms: 0 };
    let replica = match &options.genesis {
        Some(genesis) if new => {
            let (replica, effects) = Replica::found(options.identity, genesis);
            let records = effects.records.into_vec();
            journal.append(&Group { first: 1, records, head: replica.head().encode() })?;
            replica
        }
        _ => {
            let mut replica = loader.finish(now, head.as_ref(), options.identity).map_err(damaged)?;
            let own = replica.identity().replica;
            let has_peers = replica.members().any(|member| !member.removed && member.id != own);
            if new {
                journal.head(replica.head().encode())?;
            } else if has_peers && let Some(reason) = journal.doubt() {
                doubt(&mut replica, &mut *journal, reason)?;
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
