//! From a journal to a running node: reads the journal, makes the replica, starts the two threads.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use eddy_crdt::merge::ENGINE;
use eddy_crdt::{Damage, Genesis, Identity, Input, Loader, Now, Replica};
use parking_lot::{Mutex, RwLock};
use tokio::sync::{Semaphore, watch as latest};

use super::admission::Admission;
use super::backup::BACKUPS_MAX;
use super::committer::Committer;
use super::engine::{AppendingSince, Engine, Threads};
use super::error::StartError;
use super::handle::Handle;
use super::hashes::Hashes;
use super::holds::Holds;
use super::hub::Hub;
use super::identity;
use super::peering::Peering;
use super::pipe::Pipe;
use super::queue::Queue;
use super::storage_thread::StorageThread;
use super::sweeper::SweepPace;
use crate::metrics::Metrics;
use crate::storage::{Doubt, Group, Journal, StorageError, keeping_error};

/// etcd's quota when none is given, bytes.
pub const QUOTA_DEFAULT: u64 = 2 << 30;

/// Interval of progress notifications when none is given.
pub const PROGRESS_INTERVAL_DEFAULT: Duration = Duration::from_secs(600);

/// The shortest interval of progress notifications, as in etcd.
pub const PROGRESS_INTERVAL_MIN: Duration = Duration::from_millis(100);

/// Applying a request for longer than this is logged, when no other duration is given.
const SLOW_APPLY_DEFAULT: Duration = Duration::from_millis(100);

/// The stack of the thread that loads a store, bytes: that of a program's first thread.
const LOADER_STACK: usize = 8 << 20;

/// What a node is started with.
pub struct Options {
    /// The replica's identity if its journal is new; later starts take the journal's.
    pub identity: Identity,
    /// The cluster that is founded if the journal is new; `None` for a replica that belongs to none.
    pub genesis: Option<Genesis>,
    /// The newest merge engine that counts as known: that of the build, or an older one.
    pub engine: u32,
    /// Why the journal may be less than what was acknowledged, where it cannot know itself.
    pub doubt: Option<Doubt>,
    /// Path of the journal, for messages.
    pub place: PathBuf,
    /// Bytes of data above which puts and grants are refused; `None` for no limit.
    pub quota: Option<u64>,
    /// How often watchers that ask for it are told that nothing happened.
    pub progress_interval: Duration,
    /// Applying a request for longer than this is logged.
    pub slow_apply: Duration,
    /// Whether no lease runs out here: the keys are a copy, and those that keep leases alive are elsewhere.
    pub keeps_leases: bool,
    /// How fast a sweep drops what a compaction hid.
    pub sweep: SweepPace,
    /// Where the node counts what it does.
    pub metrics: Arc<Metrics>,
}

impl Options {
    /// etcd's defaults.
    pub fn new(identity: Identity, place: PathBuf, metrics: Arc<Metrics>) -> Self {
        Self {
            identity,
            genesis: None,
            engine: ENGINE,
            doubt: None,
            place,
            quota: Some(QUOTA_DEFAULT),
            progress_interval: PROGRESS_INTERVAL_DEFAULT,
            slow_apply: SLOW_APPLY_DEFAULT,
            keeps_leases: false,
            sweep: SweepPace::default(),
            metrics,
        }
    }
}

/// Reads the replica of a journal without starting a node, with all its past in memory. `identity` is the replica's if the
/// journal is empty, `engine` the newest merge engine that counts as known.
///
/// # Errors
/// When the journal is damaged or unreadable.
pub fn load(journal: &mut dyn Journal, place: &Path, identity: Identity, engine: u32) -> Result<Replica, StartError> {
    let loader = Loader::of_engine(engine, journal.last_head().as_ref()).map(Loader::keep_past);
    read(journal, place, identity, loader)
}

/// Reads the replica of a journal by such a loader, which was given the journal's head.
fn read(
    journal: &mut dyn Journal,
    place: &Path,
    identity: Identity,
    loader: Result<Loader, Damage>,
) -> Result<Replica, StartError> {
    let damaged = |damage| StartError::Damaged { place: place.to_owned(), damage };
    let mut loader = loader.map_err(damaged)?;
    let mut failed = None;
    let loaded = journal.load(&mut |number, record| {
        loader.record(number, record).map_err(|damage| {
            let what = damage.to_string();
            failed = Some(damage);
            StorageError::Damaged { path: place.to_owned(), what }
        })
    });
    if let Some(damage) = failed {
        return Err(damaged(damage));
    }
    loaded?;
    let mut unread = None;
    let mut again = keeping_error(|number| journal.read(number), &mut unread);
    let replica = loader.finish(Now::default(), identity, &mut again);
    drop(again);
    match (replica, unread) {
        (Err(_), Some(error)) => Err(error.into()),
        (replica, _) => replica.map_err(damaged),
    }
}

/// Gives the replica a new birth, since peers may know more of it than its disk does.
fn doubt(replica: &mut Replica, journal: &mut dyn Journal, reason: Doubt) -> Result<(), StartError> {
    let birth = identity::draw_birth()?;
    tracing::warn!(%birth, %reason, "a new birth, and other revisions: peers may know more of this member than its disk does");
    let first = replica.next_number();
    let effects = replica.handle(Now::default(), Input::Doubt(birth));
    let mut records = effects.records.into_vec();
    let (noted, head) = replica.close_group();
    records.extend(noted);
    journal.append(&Group { first, records, head: head.encode() })?;
    Ok(())
}

/// Reads the replica of the journal; founds it, or gives it a new birth, where that is due. Its records are on disk on
/// return.
fn open_replica(journal: &mut dyn Journal, options: &Options) -> Result<Replica, StartError> {
    let loader = Loader::of_engine(options.engine, journal.last_head().as_ref());
    let mut replica = read(journal, &options.place, options.identity, loader)?;
    let is_new = journal.last_head().is_none();
    if is_new && let Some(genesis) = &options.genesis {
        let (replica, effects) = Replica::found(options.identity, genesis);
        let records = effects.records.into_vec();
        journal.append(&Group { first: 1, records, head: replica.head().encode() })?;
        return Ok(replica);
    }
    let own = replica.identity().replica;
    let has_peers = replica.members().any(|member| !member.removed && member.id != own);
    if is_new {
        journal.head(replica.head().encode())?;
    } else if has_peers && let Some(reason) = options.doubt.or(journal.doubt()) {
        doubt(&mut replica, journal, reason)?;
    }
    Ok(replica)
}

/// Runs that in a thread that ends with it. The allocator takes memory for the thread that asks, and what others free of that
/// waits for it to ask again. So a thread that loads a store and then idles would hold all that is written over later.
fn in_a_thread_of_its_own<T: Send>(work: impl FnOnce() -> T + Send) -> std::io::Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("loader".into()).stack_size(LOADER_STACK);
        let ended = thread.spawn_scoped(scope, work)?.join();
        Ok(ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

/// Loads the journal and starts the node's two threads.
///
/// # Errors
/// When the journal is damaged or unreadable, or threads or randomness can't be had.
pub fn start(mut journal: Box<dyn Journal>, options: Options) -> Result<Handle, StartError> {
    let started = Instant::now();
    let replica = in_a_thread_of_its_own(|| open_replica(&mut *journal, &options)).map_err(StartError::Thread)??;
    let admission = Admission::default();
    admission.note_alarms(&replica);
    let engine = Arc::new(Engine {
        queue: Queue::default(),
        pipe: Pipe::default(),
        hub: Hub::new(replica.revision()),
        admission,
        hashes: Mutex::new(Hashes::default()),
        peering: Peering::new(&replica),
        met_foreign: AtomicBool::new(false),
        durable: AtomicI64::new(replica.revision().get()),
        durable_number: latest::Sender::new(replica.next_number()),
        published_groups: AtomicU64::new(0),
        trims_waiting: AtomicUsize::new(0),
        holds: Holds::default(),
        backups: Arc::new(Semaphore::new(BACKUPS_MAX)),
        writable: AtomicBool::new(true),
        stopped_because: Mutex::new(None),
        paused: AtomicBool::new(false),
        appending_since: AppendingSince::default(),
        identity: replica.identity(),
        keeps_leases: options.keeps_leases,
        quota: options.quota,
        progress_interval: options.progress_interval.max(PROGRESS_INTERVAL_MIN),
        slow_apply: options.slow_apply,
        started,
        metrics: options.metrics,
        replica: RwLock::new(replica),
        threads: Mutex::default(),
        runtime: tokio::runtime::Handle::try_current().ok(),
    });
    let storage = StorageThread::new(Arc::clone(&engine), journal);
    let committer = Committer::new(Arc::clone(&engine), options.sweep);
    // No message is ever sent: the channel closes when both threads have dropped their ends.
    let (alive, ended) = mpsc::sync_channel::<()>(0);
    let also_alive = alive.clone();
    let handles = vec![spawn("committer", alive, || committer.run())?, spawn("storage", also_alive, || storage.run())?];
    *engine.threads.lock() = Threads { handles, ended: Some(ended) };
    Ok(Handle { engine })
}

/// Starts a thread that holds `alive` until it ends.
fn spawn(
    name: &str,
    alive: mpsc::SyncSender<()>,
    run: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, StartError> {
    let run = move || {
        let _alive = alive;
        run();
    };
    std::thread::Builder::new().name(name.to_owned()).spawn(run).map_err(StartError::Thread)
}
