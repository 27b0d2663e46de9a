//! The node's calls for peers' sessions: what is on disk, a look at the replica, and a way to have inputs applied.

use std::sync::Arc;
use std::time::{Duration, Instant};

use eddy_crdt::{Change, ChangeKind, Entry, Input, Member, Notice, Now, Replica};
use tokio::sync::{mpsc, oneshot, watch as latest};

use super::error::NodeError;
use super::handle::Handle;
use super::peering::Durable;
use super::queue::Job;

/// How long to wait before an input is offered again to a queue that was full.
const RETRY_AFTER: Duration = Duration::from_millis(20);

/// What an entry of a peer costs in the queue beside its keys and values, bytes.
const ENTRY_OVERHEAD: usize = 256;

/// About what an input costs in memory, bytes.
pub(crate) fn size_of(input: &Input) -> usize {
    match input {
        Input::Entries { entries, .. } => entries.iter().map(size).sum(),
        _ => ENTRY_OVERHEAD,
    }
}

/// The same of an entry.
fn size(entry: &Entry) -> usize {
    let change = |change: &Change| match &change.kind {
        ChangeKind::Put { value, .. } => change.key.len() + value.len(),
        ChangeKind::Delete | ChangeKind::Expire => change.key.len(),
    };
    ENTRY_OVERHEAD + entry.changes.iter().map(change).sum::<usize>()
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

    /// Has a session's input applied, behind clients' commands, in one group or in several if it is long. Waits while the
    /// queue is full. Returns when all of it is applied, which is before it is durable; acknowledgements are only noted
    /// then. Returns whether the replica refused something of it.
    ///
    /// # Errors
    /// When the disk is full or writes have stopped. Not all of the input was applied then.
    pub(crate) async fn hand_on(&self, input: Input) -> Result<bool, NodeError> {
        self.hand_on_since(input, Instant::now()).await
    }

    /// The same of an input that came at that moment. Clients wait longer for one that came long ago.
    ///
    /// # Errors
    /// As [`Self::hand_on`].
    pub(crate) async fn hand_on_since(&self, input: Input, since: Instant) -> Result<bool, NodeError> {
        let engine = &self.engine;
        if !engine.is_writable() {
            return Err(engine.write_error());
        }
        let bytes = size_of(&input);
        let (applied, told) = oneshot::channel();
        let mut job = Job::Peer { input, since, applied };
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
