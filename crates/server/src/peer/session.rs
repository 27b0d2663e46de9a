//! One stream with one peer: what comes is given to the replica's protocol, and what that wants sent is sent.
//!
//! Reading stops while an input waits to be applied, and nothing new is made to be sent while the last batch waits for
//! the network; so a fast peer is held back by this replica, and a slow one costs only its own stream.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use eddy_crdt::sync::{Message, Reason, Session, SessionEvent, SessionTally, SyncError, Turn};
use eddy_crdt::{Input, Place, ReplicaId, VersionVector};
use eddy_proto::peer::Frame;
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch as latest};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tonic::Streaming;

use super::board::Seat;
use super::{Halt, Peers};
use crate::logging;
use crate::node::peering::{Durable, Taker};
use crate::node::{Handle, NodeError};

/// How long a peer may take to say who it is.
const GREETING_TIMEOUT: Duration = Duration::from_secs(10);

/// About how many bytes of entries one look at the replica takes; bounds how long writes wait for it.
const POLL_BYTES: usize = 256 << 10;

/// About how much one chunk of a snapshot carries, bytes.
const SNAPSHOT_CHUNK_BYTES: usize = 1 << 20;

/// While so many answers wait for the network, nothing more is read. Far above what a peer that reads can cause.
const ANSWERS_MAX: usize = 4096;

/// How soon to look whether there is something to acknowledge, or to forward, where there is nothing to send.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// How long the last words may take to get across.
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(5);

/// Both directions of a stream.
pub(crate) struct Link {
    pub(crate) inbound: Streaming<Frame>,
    pub(crate) outbound: mpsc::Sender<Bytes>,
}

/// Why a session ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum End {
    /// The process stops, the peer was removed, or another session took its place.
    #[error("stopped")]
    Stopped,
    /// The peer closed the stream, or the network did.
    #[error("the connection was lost: {0}")]
    Lost(String),
    /// The peer closed the stream in order.
    #[error("the peer closed the connection")]
    Closed,
    /// It did not say who it is.
    #[error("the peer does not greet")]
    Silent,
    /// The protocol ended it.
    #[error(transparent)]
    Protocol(#[from] SyncError),
    /// This replica takes nothing now.
    #[error("this replica: {0}")]
    Node(#[from] NodeError),
}

/// A session's protocol state, which the admin API looks at too.
pub(crate) type SharedSession = Arc<Mutex<Session>>;

type Applying = Pin<Box<dyn Future<Output = Result<bool, NodeError>> + Send>>;

struct Talk<'a> {
    peers: &'a Arc<Peers>,
    session: SharedSession,
    seat: Option<Seat>,
    outbox: VecDeque<Bytes>,
    inputs: VecDeque<Input>,
    /// That the peer takes entries, while it does.
    taking: Option<Taker>,
    /// Places behind which the peer wants a chunk of a snapshot, once what came before is applied.
    chunks: VecDeque<Option<Place>>,
    /// That the peer reads a snapshot, once it does.
    reading: Option<Reading>,
    /// What was counted already.
    tally: SessionTally,
    /// When the peer must have greeted.
    greeting_deadline: Instant,
    /// The last look at what there is to send.
    last_look: Instant,
    /// When to look again.
    next_look: Instant,
    stop: CancellationToken,
}

/// Talks until the stream ends.
pub(crate) async fn talk(
    peers: &Arc<Peers>,
    link: Link,
    wanted: Option<ReplicaId>,
    stop: CancellationToken,
) -> (Option<ReplicaId>, End) {
    let Link { mut inbound, outbound } = link;
    let durable = peers.node.durable();
    let (session, hello) = {
        let vector = Arc::clone(&durable.borrow().vector);
        peers.node.look(|replica| Session::start(&peers.exchange, replica, &vector, wanted))
    };
    let started = Instant::now();
    let greeting_deadline = started + GREETING_TIMEOUT;
    let mut talk = Talk {
        peers,
        session: Arc::new(Mutex::new(session)),
        seat: None,
        outbox: VecDeque::from([hello.encode()]),
        inputs: VecDeque::new(),
        taking: None,
        chunks: VecDeque::new(),
        reading: None,
        tally: SessionTally::default(),
        greeting_deadline,
        last_look: started.checked_sub(peers.sync_interval).unwrap_or(started),
        next_look: greeting_deadline,
        stop,
    };
    let Err(end) = talk.run(&mut inbound, &outbound, durable).await;
    if let Some(reading) = talk.reading.take() {
        reading.end().await;
    }
    if let End::Protocol(error) = &end
        && let Some(refusal) = error.refusal()
    {
        farewell(peers, &refusal, inbound, outbound).await;
    }
    if let End::Protocol(SyncError::Refused { reason: Reason::RemovedMember, .. }) = &end {
        peers.halts(Halt::Removed);
    }
    let peer = talk.session.lock().peer();
    if let Some(seat) = &talk.seat {
        let vector = Arc::clone(&peers.node.durable().borrow().vector);
        let report = peers.node.look(|replica| talk.session.lock().report(replica, &vector));
        peers.board.stand_up(seat, report);
    }
    (peer, end)
}

/// Tells the other side why the session ends. A stream that is dropped takes what is on its way with it, so the other side
/// is to close it.
async fn farewell(peers: &Peers, refusal: &Message, mut inbound: Streaming<Frame>, outbound: mpsc::Sender<Bytes>) {
    let told = async {
        if outbound.send(refusal.encode()).await.is_ok() {
            drop(outbound);
            while let Ok(Some(_)) = inbound.message().await {}
        }
    };
    tokio::select! {
        _too_late = timeout(FAREWELL_TIMEOUT, told) => {}
        () = peers.stop.cancelled() => {}
    }
}

impl End {
    /// Whether the peer sent what none may send.
    pub(super) fn is_fault_of_peer(&self) -> bool {
        matches!(self, Self::Protocol(SyncError::Garbage(_) | SyncError::Unexpected(_) | SyncError::Fork(_)))
    }
}

impl Talk<'_> {
    /// Reads, applies and sends in turn until there is a reason to end.
    async fn run(
        &mut self,
        inbound: &mut Streaming<Frame>,
        outbound: &mpsc::Sender<Bytes>,
        mut durable: latest::Receiver<Durable>,
    ) -> Result<Infallible, End> {
        let mut applying: Option<Applying> = None;
        let stop = self.stop.clone();
        loop {
            if applying.is_none()
                && let Some(input) = self.inputs.pop_front()
            {
                let node = self.peers.node.clone();
                applying = Some(Box::pin(async move { node.hand_on(input).await }));
            }
            if applying.is_none() {
                self.answer_chunk(&durable);
            }
            let reads = applying.is_none() && self.inputs.is_empty() && self.outbox.len() < ANSWERS_MAX;
            tokio::select! {
                () = stop.cancelled() => return Err(End::Stopped),
                permit = outbound.reserve(), if !self.outbox.is_empty() => {
                    let permit = permit.map_err(|_| End::Closed)?;
                    if let Some(message) = self.outbox.pop_front() {
                        self.sent(&message);
                        permit.send(message);
                    }
                    if self.outbox.is_empty() {
                        // What could not be sent so far.
                        self.look_soon(&durable);
                    }
                }
                frame = inbound.message(), if reads => {
                    let frame = frame.map_err(|status| End::Lost(reason(&status)))?.ok_or(End::Closed)?;
                    let vector = Arc::clone(&durable.borrow().vector);
                    self.receive(frame.message, &vector)?;
                    self.look_soon(&durable);
                }
                applied = async { match applying.as_mut() { Some(a) => a.await, None => std::future::pending().await } } => {
                    applying = None;
                    self.look_soon(&durable);
                    if applied? {
                        self.ask_again();
                    }
                }
                changed = durable.changed() => {
                    changed.map_err(|_| End::Stopped)?;
                    self.look_soon(&durable);
                }
                () = sleep_until(self.next_look), if self.outbox.is_empty() => self.look(&mut durable)?,
            }
        }
    }

    /// Answers the oldest wish for a chunk of a snapshot.
    fn answer_chunk(&mut self, durable: &latest::Receiver<Durable>) {
        let Some(after) = self.chunks.pop_front() else { return };
        let vector = Arc::clone(&durable.borrow().vector);
        let chunk =
            self.peers.node.look(|replica| replica.snapshot_chunk(after.as_ref(), &vector, SNAPSHOT_CHUNK_BYTES));
        self.outbox.push_back(Message::SnapshotChunk(chunk.encode()).encode());
    }

    /// The replica refused something of an input: drops what came after it, and asks the peer for everything again.
    fn ask_again(&mut self) {
        self.inputs.retain(|input| matches!(input, Input::Offer { .. }));
        let node = &self.peers.node;
        let again = node.look(|replica| self.session.lock().refused(replica, node.now()));
        self.outbox.extend(again.map(|message| message.encode()));
    }

    /// Something happened: the next look is due as soon as one may follow the last.
    fn look_soon(&mut self, durable: &latest::Receiver<Durable>) {
        self.next_look = self.next_look.min(self.last_look + self.patience(durable));
    }

    /// Looks at what there is to send, and sets the time of the next look.
    fn look(&mut self, durable: &mut latest::Receiver<Durable>) -> Result<(), End> {
        if self.seat.is_none() && Instant::now() > self.greeting_deadline {
            return Err(End::Silent);
        }
        self.last_look = Instant::now();
        let on_disk = durable.borrow_and_update().clone();
        let bytes = self.poll(&on_disk)?;
        self.next_look = if bytes >= POLL_BYTES {
            // More is waiting than one look takes.
            self.last_look
        } else {
            let earliest = self.last_look + self.peers.sync_interval;
            self.due().map_or(self.greeting_deadline, |due| due.max(earliest))
        };
        Ok(())
    }

    fn receive(&mut self, bytes: Bytes, durable: &VersionVector) -> Result<(), End> {
        let length = bytes.len();
        let message = Message::decode(bytes).map_err(SyncError::Garbage)?;
        let now = self.peers.node.now();
        let turn = self.peers.node.look(|replica| self.session.lock().receive(replica, durable, now, message))?;
        if self.seat.is_none() {
            let peer = self.session.lock().peer();
            if let Some(peer) = peer {
                self.seat = Some(self.peers.board.sit_down(peer, &self.session, self.stop.clone()));
            }
        }
        if let Some(seat) = &self.seat {
            self.peers.board.heard(seat, length);
        }
        self.take(turn);
        self.count();
        Ok(())
    }

    /// Asks what there is to do; tells about how many bytes there are to send.
    fn poll(&mut self, durable: &Durable) -> Result<usize, End> {
        let now = self.peers.node.now();
        let turn = self.peers.node.look(|replica| {
            let mut session = self.session.lock();
            session.set_offered(durable.offered);
            session.poll(replica, &durable.vector, now, POLL_BYTES)
        })?;
        self.take(turn);
        Ok(self.outbox.iter().map(Bytes::len).sum())
    }

    /// How long after one look at what there is to send the next is due.
    fn patience(&self, durable: &latest::Receiver<Durable>) -> Duration {
        let (own, on_disk) = (self.peers.node.identity().origin(), durable.borrow());
        let is_urgent = self.session.lock().is_urgent(own, on_disk.offered, &on_disk.vector);
        if is_urgent { self.peers.sync_interval } else { self.peers.sync_interval.max(LOOK_AGAIN) }
    }

    /// When the session wants to be asked again although nothing happens.
    fn due(&self) -> Option<Instant> {
        let due_ms = self.session.lock().next_ms()?;
        Some(Instant::now() + Duration::from_millis(due_ms.saturating_sub(self.peers.node.now().mono_ms)))
    }

    fn take(&mut self, turn: Turn) {
        self.inputs.extend(turn.inputs);
        self.offer();
        self.outbox.extend(turn.messages.iter().map(Message::encode));
        for event in turn.events {
            match event {
                SessionEvent::SnapshotWanted { after } => {
                    self.reading.get_or_insert_with(|| Reading::begin(self.peers));
                    self.chunks.push_back(after);
                }
                event => self.peers.event(event),
            }
        }
    }

    fn count(&mut self) {
        let tally = self.session.lock().tally();
        if let Some(seat) = &self.seat {
            self.peers.board.counted(seat, &self.tally, &tally);
            self.tally = tally;
        }
    }

    /// Has entries marked as offered exactly while the peer takes any: before the first may be sent, what is on disk has
    /// to be marked; and while the peer does not acknowledge what it was sent, more is not promised to it.
    fn offer(&mut self) {
        let takes = self.session.lock().takes_entries();
        if takes && self.taking.is_none() {
            let (taker, offer) = self.peers.node.begin_taking();
            self.taking = Some(taker);
            self.inputs.extend(offer);
        } else if !takes {
            self.taking = None;
        }
    }

    fn sent(&self, message: &Bytes) {
        if let Some(seat) = &self.seat {
            self.peers.board.sent(seat, message.len());
        }
    }
}

/// That a peer reads a snapshot: nothing is settled until the last of them has ended.
struct Reading(Option<Arc<Peers>>);

impl Reading {
    fn begin(peers: &Arc<Peers>) -> Self {
        peers.readers.fetch_add(1, Ordering::AcqRel);
        Self(Some(Arc::clone(peers)))
    }

    /// The node, when this was the last.
    fn leave(&mut self) -> Option<Handle> {
        let peers = self.0.take()?;
        (peers.readers.fetch_sub(1, Ordering::AcqRel) == 1).then(|| peers.node.clone())
    }

    /// The stream is over: the peer has read all, or will begin again.
    async fn end(mut self) {
        if let Some(node) = self.leave()
            && let Err(error) = node.hand_on(Input::Release).await
        {
            tracing::debug!(%error, "settling goes on in a minute");
        }
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.leave();
    }
}

/// What a broken stream says of itself, without gRPC's wrapping where there is a cause.
fn reason(status: &tonic::Status) -> String {
    match std::error::Error::source(status) {
        Some(source) => logging::chain(source),
        None => status.message().to_owned(),
    }
}
