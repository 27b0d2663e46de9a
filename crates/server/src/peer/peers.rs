//! All peers of a node: what their sessions and the tasks beside them share.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

use eddy_crdt::sync::{Exchange, Tuning};
use eddy_crdt::{Input, ReplicaId};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::board::Board;
use super::dial::Dialer;
use super::end::End;
use super::losses::{LossLog, show_rules};
use super::strays::Counted;
use super::troubles::Troubles;
use crate::metrics::Metrics;
use crate::node::Handle;

/// How often the replica is told at most what it has on disk.
const ACKNOWLEDGE_EVERY: Duration = Duration::from_millis(100);

/// How often settling is tried, while there are unsettled keys, although nothing new is on disk.
const SETTLE_EVERY: Duration = Duration::from_secs(5);

/// Why this replica must stop.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Halt {
    /// It was removed from the cluster.
    Removed,
    /// It lost entries that it had told its peers, or it lacks entries that all peers have dropped. It must start anew
    /// from a peer's snapshot.
    StartAnew {
        /// The peer that has what is wanted.
        giver: ReplicaId,
        /// In words.
        why: String,
    },
}

/// Settings of the peers.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How long an entry waits at most to be batched with others before it is sent.
    pub sync_interval: Duration,
}

/// All peers of a node; see the module.
pub struct Peers {
    pub(super) node: Handle,
    pub(super) dialer: Dialer,
    pub(super) exchange: Arc<Exchange>,
    pub(super) board: Board,
    pub(super) metrics: Arc<Metrics>,
    pub(super) sync_interval: Duration,
    pub(super) troubles: Mutex<Troubles>,
    pub(super) losses: Mutex<LossLog>,
    pub(super) counted: Counted,
    /// How many peers read a snapshot.
    pub(super) readers: AtomicUsize,
    halt: tokio::sync::watch::Sender<Option<Halt>>,
    pub(super) stop: CancellationToken,
    pub(super) tasks: TaskTracker,
}

impl Peers {
    /// Peers of `node`; nothing is dialled before [`Peers::run`].
    pub(crate) fn new(
        node: Handle,
        dialer: Dialer,
        options: Options,
        metrics: Arc<Metrics>,
        stop: CancellationToken,
        tasks: TaskTracker,
    ) -> Arc<Peers> {
        show_rules(&metrics);
        Arc::new(Peers {
            board: Board::new(node.identity().replica, metrics.clone()),
            node,
            dialer,
            exchange: Exchange::new(Tuning::default()),
            metrics,
            sync_interval: options.sync_interval,
            troubles: Mutex::default(),
            losses: Mutex::default(),
            counted: Counted::default(),
            readers: AtomicUsize::new(0),
            halt: tokio::sync::watch::Sender::new(None),
            stop,
            tasks,
        })
    }

    /// Why this replica must stop, once it must.
    pub fn halt(&self) -> tokio::sync::watch::Receiver<Option<Halt>> {
        self.halt.subscribe()
    }

    /// Tells the replica what it has on disk, for which settling waits as for acknowledgements of peers. Sessions tell it
    /// with each acknowledgement. This task tells what became durable after the last of them, and retries what could not
    /// be settled while a peer read a snapshot.
    pub(super) async fn acknowledge_own(self: Arc<Self>) {
        let mut durable = self.node.durable();
        let own = self.node.identity().replica;
        let mut looked = Instant::now();
        loop {
            let vector = Arc::clone(&durable.borrow_and_update().vector);
            let (unsettled, stale) = self.node.look(|replica| {
                let stale = replica.ack_of(own).is_none_or(|ack| !ack.covers(&vector));
                (replica.windows_len() > 0, stale)
            });
            if unsettled && (stale || looked.elapsed() >= SETTLE_EVERY) {
                looked = Instant::now();
                if let Err(error) = self.node.hand_on(Input::Acks { own: (*vector).clone(), acks: vec![] }).await {
                    tracing::debug!(%error, "could not note what is on disk");
                }
            }
            let woken = async {
                tokio::time::sleep(ACKNOWLEDGE_EVERY).await;
                if unsettled {
                    return tokio::time::timeout(SETTLE_EVERY, durable.changed()).await.unwrap_or(Ok(()));
                }
                durable.changed().await
            };
            tokio::select! {
                woken = woken => if woken.is_err() { return },
                () = self.stop.cancelled() => return,
            }
        }
    }

    /// Whether that replica is a member, as far as is on disk here.
    pub(super) fn is_member(&self, id: ReplicaId) -> bool {
        self.node.members().iter().any(|member| member.id == id && !member.removed)
    }

    /// Logs why a session with a member ended, once for each reason until there is a connection again. A violation of the
    /// protocol is logged once for good, however often the peer repeats it.
    pub(super) fn ended(&self, peer: ReplicaId, end: &End) {
        let reason = end.to_string();
        if !end.is_fault_of_peer() {
            return self.trouble(peer, &reason);
        }
        self.metrics.peer_received_failures.with_label_values(&[&peer.to_string()]).inc();
        self.board.trouble(peer, &reason);
        if self.troubles.lock().is_news(format!("fault {peer} {reason}")) {
            tracing::error!(peer = %peer, name = self.name_of(peer), reason, "closed the connection to the peer");
        }
    }

    /// Logs why there is no connection, once for each reason until there is one.
    pub(super) fn trouble(&self, peer: ReplicaId, reason: &str) {
        if self.board.trouble(peer, reason) {
            tracing::warn!(peer = %peer, name = self.name_of(peer), reason, "no connection to the peer; trying on");
        }
    }

    /// The name of a member, or its URLs as long as it has no name.
    pub(super) fn name_of(&self, peer: ReplicaId) -> String {
        let members = self.node.members();
        let member = members.iter().find(|member| member.id == peer);
        let named = member.map(|member| match member.name.as_str() {
            "" => member.peer_urls.join(","),
            name => name.to_owned(),
        });
        named.filter(|name| !name.is_empty()).unwrap_or_else(|| "unknown".to_owned())
    }

    /// Logs that a connection of no peer was refused, once for each address and reason.
    pub(super) fn stranger(&self, remote: &str, reason: &str) {
        self.metrics.peer_strangers.inc();
        let host = remote.rsplit_once(':').map_or(remote, |(host, _)| host);
        if self.troubles.lock().is_news(format!("{host} {reason}")) {
            tracing::warn!("remote-addr" = remote, reason, "refused a connection to the peer port");
        }
    }

    /// Has the process stop. Of several reasons the first stands.
    pub(super) fn halts(&self, why: Halt) {
        self.halt.send_if_modified(|halted| {
            let first = halted.is_none();
            if first {
                *halted = Some(why);
            }
            first
        });
    }
}
