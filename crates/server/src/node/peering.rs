//! What the node offers to peers' sessions: what is on disk and may be sent, the members, and a way to have inputs applied.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use eddy_crdt::{Change, ChangeKind, Entry, Input, Member, Notice, Now, Replica, VersionVector};
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot, watch as latest};

use super::queue::Job;
use super::{Handle, NodeError};

/// Most notices that wait for their reader; more are dropped.
const NOTICES_MAX: usize = 1024;

/// How long to wait before an input is offered again to a queue that was full.
const RETRY_AFTER: Duration = Duration::from_millis(20);

/// What an entry of a peer costs in the queue beside its keys and values, bytes.
const ENTRY_OVERHEAD: usize = 256;

/// About what an entry costs in the queue, bytes.
fn size(entry: &Entry) -> usize {
    let change = |change: &Change| match &change.kind {
        ChangeKind::Put { value, .. } => change.key.len() + value.len(),
        ChangeKind::Delete | ChangeKind::Expire => change.key.len(),
    };
    ENTRY_OVERHEAD + entry.changes.iter().map(change).sum::<usize>()
}

/// What is on disk, as far as it concerns peers.
#[derive(Clone, Debug, Default)]
pub struct Durable {
    /// Version vector of the entries that were applied.
    pub vector: Arc<VersionVector>,
    /// Peers may have been sent the replica's own entries up to this number; the mark is on disk.
    pub offered: u64,
    /// The members, in order of id.
    pub members: Arc<Vec<Member>>,
}

/// See the module; part of what the node's threads share.
pub(crate) struct Peering {
    durable: latest::Sender<Durable>,
    /// The state that the storage thread was given last.
    handed_on: Mutex<Durable>,
    /// How many sessions have a peer that takes entries now.
    takers: AtomicUsize,
    notices: mpsc::Sender<Notice>,
    receiver: Mutex<Option<mpsc::Receiver<Notice>>>,
}

impl Peering {
    pub(crate) fn new(replica: &Replica) -> Self {
        let durable = Durable {
            vector: Arc::new(replica.vector().clone()),
            offered: replica.offered(),
            members: Arc::new(replica.members().cloned().collect()),
        };
        let (notices, receiver) = mpsc::channel(NOTICES_MAX);
        Self {
            durable: latest::Sender::new(durable.clone()),
            handed_on: Mutex::new(durable),
            takers: AtomicUsize::new(0),
            notices,
            receiver: Mutex::new(Some(receiver)),
        }
    }

    /// Whether any peer takes entries.
    pub(crate) fn is_offering(&self) -> bool {
        self.takers.load(Ordering::Acquire) > 0
    }

    /// The state that will be on disk with the present group; `None` when it did not change.
    pub(crate) fn note(&self, replica: &Replica, changed: bool) -> Option<Durable> {
        if !changed {
            return None;
        }
        let mut last = self.handed_on.lock();
        if *last.vector != *replica.vector() {
            last.vector = Arc::new(replica.vector().clone());
        }
        last.offered = replica.offered();
        if !replica.members().eq(last.members.iter()) {
            last.members = Arc::new(replica.members().cloned().collect());
        }
        Some(last.clone())
    }

    /// Whether the members are others than those that were published last.
    pub(crate) fn changes_members(&self, state: &Durable) -> bool {
        !Arc::ptr_eq(&self.durable.borrow().members, &state.members)
    }

    /// The state is on disk now.
    pub(crate) fn publish(&self, state: Durable) {
        self.durable.send_replace(state);
    }

    /// Hands notices on without waiting. A notice that finds the channel full is lost; only the log misses it.
    pub(crate) fn tell(&self, notices: Vec<Notice>) {
        for notice in notices {
            if let Err(mpsc::error::TrySendError::Full(notice)) = self.notices.try_send(notice) {
                tracing::debug!(?notice, "a notice was dropped");
            }
        }
    }
}

/// Counts one session whose peer takes entries, until it is dropped.
#[derive(Debug)]
pub(crate) struct Taker(Handle);

impl Drop for Taker {
    fn drop(&mut self) {
        self.0.engine.peering.takers.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Handle {
    /// What is on disk, now and whenever that changes.
    pub(crate) fn durable(&self) -> latest::Receiver<Durable> {
        self.engine.peering.durable.subscribe()
    }

    /// The members as they are on disk, in order of id.
    pub fn members(&self) -> Arc<Vec<Member>> {
        Arc::clone(&self.engine.peering.durable.borrow().members)
    }

    /// Notices for operators. There is one receiver; `None` when it was taken.
    pub(crate) fn notices(&self) -> Option<mpsc::Receiver<Notice>> {
        self.engine.peering.receiver.lock().take()
    }

    /// Reads the replica, whose newest changes may not be on disk yet. `look` must be short: writes wait for it.
    pub(crate) fn look<T>(&self, look: impl FnOnce(&Replica) -> T) -> T {
        look(&self.engine.replica.read())
    }

    /// The present time by both clocks.
    pub(crate) fn now(&self) -> Now {
        self.engine.now()
    }

    /// Has every group marked as offered with its own flush, until the returned `Taker` is dropped. Entries applied
    /// before are not marked by that; where there are such, the returned input marks them.
    pub(crate) fn begin_taking(&self) -> (Taker, Option<Input>) {
        self.engine.peering.takers.fetch_add(1, Ordering::AcqRel);
        // The committer marks what is applied from here on.
        let offer = self.look(|replica| {
            let own = replica.vector().get(replica.identity().origin());
            (replica.offered() < own).then(|| Input::Offer { upto: replica.vector().clone() })
        });
        (Taker(self.clone()), offer)
    }

    /// Has a session's input applied, behind clients' commands, in one group or in several if it is long. Waits while the
    /// queue is full. Returns when all of it is applied, which is before it is durable; acknowledgements are only noted
    /// then. Returns whether the replica refused something of it.
    ///
    /// # Errors
    /// When the disk is full or writes have stopped. Not all of the input was applied then.
    pub(crate) async fn hand_on(&self, input: Input) -> Result<bool, NodeError> {
        let engine = &self.engine;
        if !engine.is_writable() {
            return Err(engine.write_error());
        }
        let bytes = match &input {
            Input::Entries { entries, .. } => entries.iter().map(size).sum(),
            _ => ENTRY_OVERHEAD,
        };
        let (applied, told) = oneshot::channel();
        let mut job = Job::Peer { input, applied };
        while let Err((error, back)) = engine.queue.push(job, bytes) {
            if error != NodeError::TooManyRequests {
                return Err(error);
            }
            job = back;
            tokio::time::sleep(RETRY_AFTER).await;
        }
        told.await.unwrap_or_else(|_| Err(engine.write_error()))
    }
}
