//! What peers may be told: what is on disk and may be sent to them, the members, and notices for operators.

use std::sync::Arc;

use eddy_crdt::{Member, Notice, Replica, VersionVector};
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch as latest};

/// Most notices that wait for their reader; more are dropped.
const NOTICES_MAX: usize = 1024;

/// What is on disk, as far as it concerns peers.
#[derive(Clone, Debug, Default)]
pub struct Durable {
    /// Version vector of the entries that were applied.
    pub vector: Arc<VersionVector>,
    /// Which change of the replica's marks is on disk.
    pub marks: u64,
    /// The members, in order of id.
    pub members: Arc<Vec<Member>>,
}

/// See the module; part of what the node's threads share.
pub(crate) struct Peering {
    pub(super) durable: latest::Sender<Durable>,
    /// The state that the storage thread was given last.
    handed_on: Mutex<Durable>,
    notices: mpsc::Sender<Notice>,
    pub(super) receiver: Mutex<Option<mpsc::Receiver<Notice>>>,
}

impl Peering {
    pub(crate) fn new(replica: &Replica) -> Self {
        let durable = Durable {
            vector: Arc::new(replica.vector().clone()),
            marks: replica.marks().version(),
            members: Arc::new(replica.members().cloned().collect()),
        };
        let (notices, receiver) = mpsc::channel(NOTICES_MAX);
        Self {
            durable: latest::Sender::new(durable.clone()),
            handed_on: Mutex::new(durable),
            notices,
            receiver: Mutex::new(Some(receiver)),
        }
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
        last.marks = replica.marks().version();
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
