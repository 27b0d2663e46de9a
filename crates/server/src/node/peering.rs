//! What the node has for peers: what is on disk and may be sent, who the members are, and a way for sessions to hand on
//! what came.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use eddy_crdt::{Change, ChangeKind, Entry, Input, Member, Notice, Now, Replica, VersionVector};
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot, watch as latest};

use super::queue::Job;
use super::{Handle, NodeError};

/// Notices that wait to be looked at; more are counted only.
const NOTICES_MAX: usize = 1024;

/// What a peer's entries cost in the queue beside their keys and values, bytes.
const ENTRY_OVERHEAD: usize = 256;

/// About what an entry costs in the queue, bytes.
fn size(entry: &Entry) -> usize {
    let change = |change: &Change| match &change.kind {
        ChangeKind::Put { value, .. } => change.key.len() + value.len(),
        ChangeKind::Delete | ChangeKind::Expire => change.key.len(),
    };
    ENTRY_OVERHEAD + entry.changes.iter().map(change).sum::<usize>()
}

/// What is on disk, as far as peers are concerned.
#[derive(Clone, Debug, Default)]
pub struct Durable {
    /// What was applied.
    pub vector: Arc<VersionVector>,
    /// Up to which of the replica's own entries it is marked that peers may have been sent them.
    pub offered: u64,
    /// The members, in order of id.
    pub members: Arc<Vec<Member>>,
}

/// See the module; part of what the node's threads share.
pub(crate) struct Peering {
    durable: latest::Sender<Durable>,
    /// What was handed to the storage thread last.
    handed_on: Mutex<Durable>,
    /// Sessions whose peers take entries now.
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

    /// Whether there is anyone to send to.
    pub(crate) fn is_offering(&self) -> bool {
        self.takers.load(Ordering::Acquire) > 0
    }

    /// What will be on disk with the group that is being made.
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

    /// It is on disk now.
    pub(crate) fn publish(&self, state: Durable) {
        self.durable.send_replace(state);
    }

    /// Hands notices on. Never waits: what is not looked at in time is lost, and only the log is poorer for it.
    pub(crate) fn tell(&self, notices: Vec<Notice>) {
        for notice in notices {
            if let Err(mpsc::error::TrySendError::Full(notice)) = self.notices.try_send(notice) {
                tracing::debug!(?notice, "a notice was dropped");
            }
        }
    }
}

/// Counts one session that takes entries, for as long as it lives.
#[derive(Debug)]
pub(crate) struct Taker(Handle);

impl Drop for Taker {
    fn drop(&mut self) {
        self.0.shared.peering.takers.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Handle {
    /// What is on disk, now and whenever that changes.
    pub(crate) fn durable(&self) -> latest::Receiver<Durable> {
        self.shared.peering.durable.subscribe()
    }

    /// The members as they are on disk, in order of id.
    pub fn members(&self) -> Arc<Vec<Member>> {
        Arc::clone(&self.shared.peering.durable.borrow().members)
    }

    /// What happens that an operator should hear of. There is one receiver; `None` when it was taken.
    pub(crate) fn notices(&self) -> Option<mpsc::Receiver<Notice>> {
        self.shared.peering.receiver.lock().take()
    }

    /// Looks at the replica, whose newest changes may not be on disk yet. `look` must be short: writes wait for it.
    pub(crate) fn look<T>(&self, look: impl FnOnce(&Replica) -> T) -> T {
        look(&self.shared.replica.read())
    }

    /// The clocks.
    pub(crate) fn now(&self) -> Now {
        self.shared.now()
    }

    /// From now on every group is marked as offered with its own flush, as long as any session takes entries. What was
    /// applied before is not: the input that does that is answered where there is any.
    pub(crate) fn begin_taking(&self) -> (Taker, Option<Input>) {
        self.shared.peering.takers.fetch_add(1, Ordering::AcqRel);
        // What is applied from here on is marked by the committer.
        let offer = self.look(|replica| {
            let own = replica.vector().get(replica.identity().origin());
            (replica.offered() < own).then(|| Input::Offer { upto: replica.vector().clone() })
        });
        (Taker(self.clone()), offer)
    }

    /// Has a session's input applied, in one group with whatever else waits, or in several if it is much; clients' commands go
    /// first. Returns when all of it is applied, which is before it is durable (acknowledgements: when they are noted, a
    /// little before that). True when the replica refused something of it.
    ///
    /// # Errors
    /// When the queue is full, the disk is, or writes have stopped: not all was applied.
    pub(crate) async fn hand_on(&self, input: Input) -> Result<bool, NodeError> {
        let shared = &self.shared;
        if !shared.is_writable() {
            return Err(shared.write_error());
        }
        let bytes = match &input {
            Input::Entries { entries, .. } => entries.iter().map(size).sum(),
            _ => ENTRY_OVERHEAD,
        };
        let (applied, told) = oneshot::channel();
        shared.queue.push(Job::Peer { input, applied }, bytes)?;
        told.await.unwrap_or_else(|_| Err(shared.write_error()))
    }
}
