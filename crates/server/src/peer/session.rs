//! One stream with one peer: gives received messages to the replica's protocol, and sends the messages that it asks for.
//!
//! Reading stops while much waits to be applied. No new messages are made while the last batch waits for the network.
//! So a peer that is too fast waits for this replica, and a slow peer costs only its own stream.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use eddy_crdt::sync::{Message, Reason, Session, SessionEffects, SessionEvent, SessionTally, SyncError};
use eddy_crdt::{Input, Place, ReplicaId, VersionVector};
use eddy_proto::peer::Frame;
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch as latest};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tonic::Streaming;

use super::board::{Seat, SharedSession};
use super::end::End;
use super::inbox::{Inbox, Waiting};
use super::link::{self, Link};
use super::peers::{Halt, Peers};
use crate::node::peering::Durable;
use crate::node::{Handle, NodeError};

/// How long a peer may take to greet.
const GREETING_TIMEOUT: Duration = Duration::from_secs(10);

/// About how many bytes of entries one look at the replica collects. Bounds how long writes wait for it.
const POLL_BYTES: usize = 256 << 10;

/// About how many bytes one chunk of a snapshot carries.
const SNAPSHOT_CHUNK_BYTES: usize = 1 << 20;

/// While this many messages wait for the network, no more are read. A peer that reads never causes this many.
const ANSWERS_MAX: usize = 4096;

/// No more is read while this much waits for the replica, bytes with deltas resolved. A peer has no more than that on its way
/// unacknowledged.
const AHEAD_BYTES_MAX: usize = 4 << 20;

/// How soon the session looks for something to acknowledge or to forward, when there is nothing urgent to send.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

type Applying = Pin<Box<dyn Future<Output = Result<bool, NodeError>> + Send>>;

impl Peers {
    /// Serves a stream that a peer opened.
    pub(crate) fn accept(self: &Arc<Self>, link: Link, remote: String) {
        let peers = Arc::clone(self);
        self.tasks.spawn(async move {
            let stop = peers.stop.child_token();
            let (peer, end) = talk(&peers, link, None, stop).await;
            match (peer, &end) {
                (_, End::Stopped) => {}
                (Some(peer), end) if peers.is_member(peer) => peers.ended(peer, end),
                (_, end) => peers.stranger(&remote, &end.to_string()),
            }
        });
    }
}

struct Talk<'a> {
    peers: &'a Arc<Peers>,
    session: SharedSession,
    seat: Option<Seat>,
    outbox: VecDeque<Bytes>,
    /// What the replica is to be given next.
    inbox: Inbox,
    /// How much that is together with what it is applying, bytes.
    ahead: usize,
    /// Places behind which the peer wants a chunk of a snapshot. They are answered once earlier inputs are applied.
    chunks: VecDeque<Option<Place>>,
    /// `Some` once the peer reads a snapshot.
    reading: Option<Reading>,
    /// The last ping's number, and when it was made.
    pinged: Option<(u32, Instant)>,
    /// The counts that are in the metrics already.
    tally: SessionTally,
    /// When the peer must have greeted.
    greeting_deadline: Instant,
    /// The last look at what there is to send.
    last_look: Instant,
    /// When to look again.
    next_look: Instant,
    stop: CancellationToken,
}

/// Runs a session until its stream ends. Returns the peer, if it greeted, and why the session ended.
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
        inbox: Inbox::default(),
        ahead: 0,
        chunks: VecDeque::new(),
        reading: None,
        pinged: None,
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
        link::farewell(&peers.stop, &refusal, Link { inbound, outbound }).await;
    }
    if let End::Protocol(SyncError::Refused { reason: Reason::RemovedMember, .. }) = &end {
        peers.halts(Halt::Removed);
    }
    let stop = talk.session.lock().end();
    if let Some(stop) = stop
        && let Err(error) = peers.node.hand_on(stop).await
    {
        tracing::debug!(%error, "it is not noted that nothing is streamed any more");
    }
    let peer = talk.session.lock().peer();
    if let Some(seat) = &talk.seat {
        let vector = Arc::clone(&peers.node.durable().borrow().vector);
        let status = peers.node.look(|replica| talk.session.lock().report(replica, &vector));
        peers.board.stand_up(seat, status);
    }
    (peer, end)
}

impl Talk<'_> {
    /// Reads, applies and sends until there is a reason to end.
    async fn run(
        &mut self,
        inbound: &mut Streaming<Frame>,
        outbound: &mpsc::Sender<Bytes>,
        mut durable: latest::Receiver<Durable>,
    ) -> Result<Infallible, End> {
        let mut applying: Option<(Applying, usize)> = None;
        let stop = self.stop.clone();
        loop {
            if applying.is_none()
                && let Some(Waiting { input, bytes, since }) = self.inbox.pop()
            {
                let node = self.peers.node.clone();
                applying = Some((Box::pin(async move { node.hand_on_since(input, since).await }), bytes));
            }
            if applying.is_none() {
                self.answer_chunk(&durable);
            }
            // It reads on while the replica is busy: the peer's acknowledgements keep this replica's own entries going.
            let reads = self.ahead < AHEAD_BYTES_MAX && self.outbox.len() < ANSWERS_MAX;
            tokio::select! {
                () = stop.cancelled() => return Err(End::Stopped),
                permit = outbound.reserve(), if !self.outbox.is_empty() => {
                    let permit = permit.map_err(|_| End::Closed)?;
                    if let Some(message) = self.outbox.pop_front() {
                        self.sent(&message);
                        permit.send(message);
                    }
                    if self.outbox.is_empty() {
                        // Messages that could not be made while the outbox was full.
                        self.look_soon(&durable);
                    }
                }
                frame = link::next(inbound), if reads => {
                    let (frames, end) = link::with_those_behind(frame?, inbound);
                    let vector = Arc::clone(&durable.borrow().vector);
                    self.receive(frames, &vector)?;
                    end.map_or(Ok(()), Err)?;
                    self.look_soon(&durable);
                }
                applied = async { match applying.as_mut() { Some((a, _)) => a.await, None => std::future::pending().await } } => {
                    self.ahead -= applying.take().map_or(0, |(_, bytes)| bytes);
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

    /// Answers the oldest request for a chunk of a snapshot.
    fn answer_chunk(&mut self, durable: &latest::Receiver<Durable>) {
        let Some(after) = self.chunks.pop_front() else { return };
        let vector = Arc::clone(&durable.borrow().vector);
        let chunk =
            self.peers.node.look(|replica| replica.snapshot_chunk(after.as_ref(), &vector, SNAPSHOT_CHUNK_BYTES));
        self.outbox.push_back(Message::SnapshotChunk(chunk.encode()).encode());
    }

    /// After the replica refused something of an input: drops the inputs behind it, and asks the peer to send again.
    fn ask_again(&mut self) {
        self.ahead = self.inbox.keep_marks();
        let node = &self.peers.node;
        let again = node.look(|replica| self.session.lock().refused(replica, node.now()));
        self.outbox.extend(again.map(|message| message.encode()));
    }

    /// Has the next look come as soon as one may follow the last.
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
        self.next_look = if bytes >= POLL_BYTES || self.session.lock().prepares() {
            // There is more to send than one look collects, or more to prepare.
            self.last_look
        } else {
            let earliest = self.last_look + self.peers.sync_interval;
            self.due().map_or(self.greeting_deadline, |due| due.max(earliest))
        };
        Ok(())
    }

    /// Takes messages in one look at the replica: where that changes all the time, each look waits for it.
    fn receive(&mut self, frames: Vec<Bytes>, durable: &VersionVector) -> Result<(), End> {
        let (count, bytes) = (frames.len(), frames.iter().map(Bytes::len).sum());
        let messages: Vec<_> = frames.into_iter().map(Message::decode).collect();
        messages.iter().flatten().for_each(|message| self.measure(message));
        let now = self.peers.node.now();
        let mut turns = Vec::with_capacity(count);
        let received = self.peers.node.look(|replica| {
            let mut session = self.session.lock();
            for message in messages {
                turns.push(session.receive(replica, durable, now, message.map_err(SyncError::Garbage)?)?);
            }
            Ok::<_, SyncError>(())
        });
        if self.seat.is_none() {
            let peer = self.session.lock().peer();
            if let Some(peer) = peer {
                self.seat = Some(self.peers.board.sit_down(peer, &self.session, self.stop.clone()));
            }
        }
        if let Some(seat) = &self.seat {
            self.peers.board.heard(seat, count, bytes);
        }
        turns.into_iter().for_each(|turn| self.take(turn));
        self.count();
        received.map_err(End::Protocol)
    }

    /// Asks the protocol for messages. Returns about how many bytes there are to send.
    fn poll(&mut self, durable: &Durable) -> Result<usize, End> {
        let now = self.peers.node.now();
        let turn = self.peers.node.look(|replica| {
            let mut session = self.session.lock();
            session.set_marks_on_disk(durable.marks);
            session.poll(replica, &durable.vector, now, POLL_BYTES)
        })?;
        self.take(turn);
        Ok(self.outbox.iter().map(Bytes::len).sum())
    }

    /// How long after one look the next is due.
    fn patience(&self, durable: &latest::Receiver<Durable>) -> Duration {
        let (own, on_disk) = (self.peers.node.identity().origin(), durable.borrow());
        let is_urgent = self.session.lock().is_urgent(own, &on_disk.vector);
        if is_urgent { self.peers.sync_interval } else { self.peers.sync_interval.max(LOOK_AGAIN) }
    }

    /// When the protocol wants to be asked again although nothing happens.
    fn due(&self) -> Option<Instant> {
        let due_ms = self.session.lock().next_ms()?;
        Some(Instant::now() + Duration::from_millis(due_ms.saturating_sub(self.peers.node.now().mono_ms)))
    }

    /// Measures the round trip that ends with this message, if one does.
    fn measure(&mut self, message: &Message) {
        let Message::Pong { number, .. } = message else { return };
        let round_trip = self.pinged.take_if(|(pinged, _)| pinged == number).map(|(_, since)| since.elapsed());
        if let (Some(round_trip), Some(peer)) = (round_trip, self.session.lock().peer()) {
            let histogram = self.peers.metrics.peer_round_trip.with_label_values(&[&peer.to_string()]);
            histogram.observe(round_trip.as_secs_f64());
        }
    }

    fn take(&mut self, turn: SessionEffects) {
        for input in turn.inputs {
            self.ahead += self.inbox.push(input);
        }
        let pings = turn.messages.iter().filter_map(|message| match message {
            Message::Ping { number, .. } => Some(*number),
            _ => None,
        });
        self.pinged = pings.last().map(|number| (number, Instant::now())).or(self.pinged);
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

    fn sent(&self, message: &Bytes) {
        if let Some(seat) = &self.seat {
            seat.sent(message.len());
        }
    }
}

/// Counts a peer that reads a snapshot. Nothing is settled until the last such peer has ended.
struct Reading(Option<Arc<Peers>>);

impl Reading {
    fn begin(peers: &Arc<Peers>) -> Self {
        peers.readers.fetch_add(1, Ordering::AcqRel);
        Self(Some(Arc::clone(peers)))
    }

    /// Stops counting; returns the node if this was the last such peer.
    fn leave(&mut self) -> Option<Handle> {
        let peers = self.0.take()?;
        (peers.readers.fetch_sub(1, Ordering::AcqRel) == 1).then(|| peers.node.clone())
    }

    /// Ends the reading with the stream: the peer has read all, or will begin again.
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
