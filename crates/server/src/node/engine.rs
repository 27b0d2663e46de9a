//! What the node's threads and all its handles share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use eddy_crdt::{Identity, Now, Replica, Revision};
use parking_lot::{Mutex, RwLock};
use tokio::sync::{Semaphore, watch as latest};

use super::admission::Admission;
use super::error::NodeError;
use super::hashes::Hashes;
use super::holds::Holds;
use super::hub::Hub;
use super::peering::Peering;
use super::pipe::Pipe;
use super::queue::Queue;
use crate::metrics::Metrics;
use crate::storage::StorageError;

/// How long an append may take before health checks say that the disk does not answer. Slow cards pause for a second
/// or two.
const STALLED_AFTER: Duration = Duration::from_secs(5);

/// The node's threads, and a channel that closes when they have ended.
#[derive(Default)]
pub(super) struct Threads {
    pub(super) handles: Vec<JoinHandle<()>>,
    pub(super) ended: Option<mpsc::Receiver<()>>,
}

/// Since when an append has been running, if one is. Health checks read it without a lock.
#[derive(Debug, Default)]
pub(super) struct AppendingSince(AtomicU64);

impl AppendingSince {
    /// Milliseconds plus one, so that 0 can stand for `None` in the atomic.
    fn set(&self, since: Option<Duration>) {
        self.0.store(since.map_or(0, |since| since.as_millis() as u64 + 1), Ordering::Relaxed);
    }

    fn get(&self) -> Option<Duration> {
        self.0.load(Ordering::Relaxed).checked_sub(1).map(Duration::from_millis)
    }
}

/// See the module.
pub(crate) struct Engine {
    pub(super) replica: RwLock<Replica>,
    pub(super) queue: Queue,
    pub(super) pipe: Pipe,
    pub(super) hub: Hub,
    pub(super) admission: Admission,
    pub(super) hashes: Mutex<Hashes>,
    pub(super) peering: Peering,
    /// Whether a client has asked for a revision of another replica.
    pub(super) met_foreign: AtomicBool,
    /// The durable revision.
    pub(super) durable: AtomicI64,
    /// The first journal number that is not durable.
    pub(super) durable_number: latest::Sender<u64>,
    /// Number of the last group whose effects were published.
    pub(super) published_groups: AtomicU64,
    /// How many sweeps told of records that are not all trimmed.
    pub(super) trims_waiting: AtomicUsize,
    /// What may not be swept yet.
    pub(super) holds: Holds,
    /// Backups that may still begin.
    pub(super) backups: Arc<Semaphore>,
    pub(super) writable: AtomicBool,
    pub(super) stopped_because: Mutex<Option<Arc<str>>>,
    /// Whether the disk is full.
    pub(super) paused: AtomicBool,
    /// Counted from `started`.
    pub(super) appending_since: AppendingSince,
    pub(super) identity: Identity,
    /// Whether no lease runs out here.
    pub(super) keeps_leases: bool,
    pub(super) quota: Option<u64>,
    pub(super) progress_interval: Duration,
    /// Applying a request for longer than this is logged.
    pub(super) slow_apply: Duration,
    pub(super) started: Instant,
    pub(super) metrics: Arc<Metrics>,
    pub(super) threads: Mutex<Threads>,
    /// The runtime in which clients wait, if the node was started from within one.
    pub(super) runtime: Option<tokio::runtime::Handle>,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("identity", &self.identity).finish_non_exhaustive()
    }
}

impl Engine {
    pub(super) fn now(&self) -> Now {
        let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let wall_ms = wall.as_millis() as u64;
        #[cfg(debug_assertions)]
        let wall_ms = wall_ms.saturating_add_signed(super::faults::clock_off_ms());
        Now { wall_ms, mono_ms: self.started.elapsed().as_millis() as u64 }
    }

    /// When the replica has to be told that time has passed, milliseconds of the monotonic clock.
    pub(super) fn next_tick_ms(&self, replica: &Replica) -> Option<u64> {
        replica.next_tick_ms().filter(|_| !self.keeps_leases)
    }

    pub(super) fn durable_revision(&self) -> Revision {
        Revision::new(self.durable.load(Ordering::Acquire))
    }

    pub(super) fn is_writable(&self) -> bool {
        self.writable.load(Ordering::Acquire)
    }

    /// Takes no more writes. Of several reasons the first stands.
    pub(super) fn stop_writes(&self, reason: &str) {
        let mut because = self.stopped_because.lock();
        if because.is_none() {
            tracing::error!(reason, "no more writes until a restart; reads go on");
            *because = Some(reason.into());
            self.metrics.writes_stopped();
        }
        drop(because);
        self.writable.store(false, Ordering::Release);
        // Tasks that wait for a flush learn that none will come.
        self.durable_number.send_modify(|_| {});
        self.queue.poke();
    }

    /// Logs that a client asked for a revision of another replica: it reads two histories. Logged once.
    pub(super) fn met_foreign(&self, at: Revision) {
        if !self.met_foreign.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                revision = at.get(),
                "a client asked for a revision of another replica, and is answered as if it were compacted: each client \
                 should keep to one replica"
            );
        }
    }

    pub(super) fn is_paused(&self) -> bool {
        self.paused.load(Ordering::Acquire)
    }

    /// Takes no more writes until there is space again.
    pub(super) fn pause_writes(&self, error: &StorageError) {
        tracing::error!(%error, "writes are refused until there is space; reads go on");
        self.paused.store(true, Ordering::Release);
        self.queue.poke();
    }

    pub(super) fn resume_writes(&self) {
        if self.paused.swap(false, Ordering::AcqRel) {
            tracing::info!("there is space again: writes are taken");
            self.queue.poke();
        }
    }

    pub(super) fn begin_append(&self) {
        self.appending_since.set(Some(self.started.elapsed()));
    }

    pub(super) fn end_append(&self) {
        self.appending_since.set(None);
    }

    /// How long the disk has been silent, if that is too long.
    pub(super) fn stalled(&self) -> Option<Duration> {
        let silent = self.started.elapsed().saturating_sub(self.appending_since.get()?);
        (silent >= STALLED_AFTER).then_some(silent)
    }

    pub(super) fn write_error(&self) -> NodeError {
        match &*self.stopped_because.lock() {
            Some(reason) => NodeError::WritesStopped(Arc::clone(reason)),
            None => NodeError::Stopped,
        }
    }
}
