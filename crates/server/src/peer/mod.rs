//! Peers: one stream to each, kept up, and what is said on it handed to the replica's own protocol.
//!
//! ```text
//! dial  -> link -> session task -> committer queue       what came is applied as client writes are
//!   service ^          ^---------- durable vector        what is on disk is sent, in batches
//! ```
//!
//! The member with the smaller id dials. Everything here is bounded, and nothing waits for a peer but its own task: a
//! slow peer gets less often what it lacks, and costs nobody else anything.

mod board;
mod dial;
mod events;
mod fetch;
pub mod join;
mod lines;
mod probe;
mod service;
mod session;
mod status;

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

use eddy_crdt::sync::{Exchange, Tuning};
use eddy_crdt::{Input, ReplicaId};
use eddy_proto::peer::{MeetRequest, MeetResponse};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::board::Board;
pub use self::dial::Dialer;
pub(crate) use self::dial::{PING_INTERVAL, PING_TIMEOUT};
pub(crate) use self::events::Troubles;
pub use self::service::{Caller, Station, routes};
use self::session::{End, Link};
use crate::metrics::Metrics;
use crate::node::Handle;

/// The longest frame, bytes: the longest message of the protocol, which is a single huge transaction.
pub(crate) const FRAME_BYTES_MAX: usize = eddy_crdt::sync::ENTRY_MAX + (1 << 20);

/// Frames that wait for the network in one direction of a stream.
const FRAMES_WAITING: usize = 4;

/// A session that lasted so long was a good one: the next attempt after it comes soon.
const LASTED: Duration = Duration::from_secs(5);

/// How often at most the replica is told what it has on disk itself.
const ACKNOWLEDGE_EVERY: Duration = Duration::from_millis(100);

/// How often settling is tried although nothing new is on disk, while there is something to settle.
const SETTLE_EVERY: Duration = Duration::from_secs(5);

/// Why this replica cannot go on as it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Halt {
    /// It was removed from the cluster.
    Removed,
    /// It lost a part of what it had told its peers, or lacks what they have all forgotten: it must start anew from
    /// what they have.
    StartAnew(String),
}

/// What is wanted of the peers.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The longest that an entry waits to be batched with others before it is sent.
    pub sync_interval: Duration,
}

/// All peers of a node; see the module.
pub struct Peers {
    node: Handle,
    dialer: Dialer,
    exchange: Arc<Exchange>,
    board: Board,
    metrics: Arc<Metrics>,
    sync_interval: Duration,
    troubles: Mutex<Troubles>,
    /// Peers that read a snapshot.
    readers: AtomicUsize,
    halt: tokio::sync::watch::Sender<Option<Halt>>,
    stop: CancellationToken,
    tasks: TaskTracker,
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
        Arc::new(Peers {
            board: Board::new(node.identity().replica, metrics.clone()),
            node,
            dialer,
            exchange: Exchange::new(Tuning::default()),
            metrics,
            sync_interval: options.sync_interval,
            troubles: Mutex::default(),
            readers: AtomicUsize::new(0),
            halt: tokio::sync::watch::Sender::new(None),
            stop,
            tasks,
        })
    }

    /// Why this replica cannot go on as it is, once that is so.
    pub fn halt(&self) -> tokio::sync::watch::Receiver<Option<Halt>> {
        self.halt.subscribe()
    }

    /// Tells the replica what it has on disk itself: settling waits for that as for what others have. Sessions tell it
    /// with everything that peers acknowledge; this is for what became durable after their last word, and for what could
    /// not be settled while a peer read a snapshot.
    async fn acknowledge_own(self: Arc<Self>) {
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

    /// Takes a stream that a peer opened.
    pub(crate) fn accept(self: &Arc<Self>, link: Link, remote: String) {
        let peers = Arc::clone(self);
        self.tasks.spawn(async move {
            let stop = peers.stop.child_token();
            let (peer, end) = session::talk(&peers, link, None, stop).await;
            match (peer, &end) {
                (_, End::Stopped) => {}
                (Some(peer), end) if peers.is_member(peer) => peers.ended(peer, end),
                (_, end) => peers.stranger(&remote, &end.to_string()),
            }
        });
    }

    /// Whether that is a member, as far as is on disk here.
    fn is_member(&self, id: ReplicaId) -> bool {
        self.node.members().iter().any(|member| member.id == id && !member.removed)
    }

    /// A session with a member ended: logs why, once for each reason until there is a connection again. What no peer may
    /// send is told once for good, however often the peer comes back and sends it.
    fn ended(&self, peer: ReplicaId, end: &End) {
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

    /// Logs why there is no connection, once for each reason.
    fn trouble(&self, peer: ReplicaId, reason: &str) {
        if self.board.trouble(peer, reason) {
            tracing::warn!(peer = %peer, name = self.name_of(peer), reason, "no connection to the peer; trying on");
        }
    }

    /// What a member is called; where it is reached, as long as it has no name.
    fn name_of(&self, peer: ReplicaId) -> String {
        let members = self.node.members();
        let member = members.iter().find(|member| member.id == peer);
        let named = member.map(|member| match member.name.as_str() {
            "" => member.peer_urls.join(","),
            name => name.to_owned(),
        });
        named.filter(|name| !name.is_empty()).unwrap_or_else(|| "unknown".to_owned())
    }

    /// Logs that someone was refused who is no peer, once for each address and reason.
    fn stranger(&self, remote: &str, reason: &str) {
        self.metrics.peer_strangers.inc();
        let host = remote.rsplit_once(':').map_or(remote, |(host, _)| host);
        if self.troubles.lock().is_news(format!("{host} {reason}")) {
            tracing::warn!("remote-addr" = remote, reason, "refused a connection to the peer port");
        }
    }

    /// The replica cannot go on; the first reason stands.
    fn halts(&self, why: Halt) {
        self.halt.send_if_modified(|halted| {
            let first = halted.is_none();
            if first {
                *halted = Some(why);
            }
            first
        });
    }

    /// Tells one that starts who we are and what we know of it.
    pub(crate) fn meet(&self, request: &MeetRequest) -> MeetResponse {
        let identity = self.node.identity();
        let members = self.node.members();
        let asker = join::find_asker(&members, request);
        self.node.look(|replica| MeetResponse {
            cluster_id: identity.cluster.get(),
            member_id: identity.replica.get(),
            starting: false,
            members: members.iter().filter(|member| !member.removed).map(join::to_wire).collect(),
            knows_asker: asker.is_some_and(|asker| replica.vector().iter().any(|dot| dot.origin.replica == asker)),
            has_settled: replica.floor().iter().any(|dot| dot.origin.replica.get() != 0),
            removed_asker: asker.is_some_and(|id| members.iter().any(|member| member.id == id && member.removed)),
        })
    }
}
