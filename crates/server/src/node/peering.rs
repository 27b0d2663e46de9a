//! What peers may be told: what is on disk and may be sent to them, the members, and notices for operators.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use eddy_crdt::{Member, Notice, Replica, Users, VersionVector};
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
    /// The users and roles.
    pub users: Arc<Users>,
}

/// See the module; part of what the node's threads share.
pub(crate) struct Peering {
    pub(super) durable: latest::Sender<Durable>,
    /// Whether calls need a user. It is in `durable`, too, which takes a lock.
    needs_user: AtomicBool,
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
            users: Arc::clone(replica.users()),
        };
        let (notices, receiver) = mpsc::channel(NOTICES_MAX);
        Self {
            needs_user: AtomicBool::new(durable.users.enabled),
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
        last.users = Arc::clone(replica.users());
        Some(last.clone())
    }

    /// Whether the members or the users are others than those that were published last.
    pub(crate) fn changes_members(&self, state: &Durable) -> bool {
        let last = self.durable.borrow();
        !Arc::ptr_eq(&last.members, &state.members) || !Arc::ptr_eq(&last.users, &state.users)
    }

    /// The users and roles that are on disk, if calls need a user.
    pub(crate) fn users_if_enabled(&self) -> Option<Arc<Users>> {
        let enabled = self.needs_user.load(Ordering::Acquire);
        enabled.then(|| Arc::clone(&self.durable.borrow().users)).filter(|users| users.enabled)
    }

    /// The state is on disk now.
    pub(crate) fn publish(&self, state: Durable) {
        let enabled = state.users.enabled;
        self.durable.send_replace(state);
        self.needs_user.store(enabled, Ordering::Release);
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
