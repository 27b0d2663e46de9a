//! Wires between the replicas of a world. Time stands still unless a test moves it, and every message passes the codec.

use std::collections::VecDeque;

use bytes::Bytes;
use eddy_crdt::Input;
use eddy_crdt::sync::{Message, PeerStatus, Session, SessionEffects, SessionEvent, SyncError};

use super::build::put;
use super::world::World;

/// What one step takes, milliseconds.
pub const STEP_MS: u64 = 10;

/// One side of a wire.
pub struct End {
    pub node: usize,
    pub session: Session,
    /// What is on its way to this side.
    pub queue: VecDeque<Bytes>,
    pub events: Vec<SessionEvent>,
    /// Why the session ended.
    pub error: Option<SyncError>,
    /// How much its replica had handled when this side was polled last.
    pub polled: Option<u64>,
    /// Bytes that this side sent.
    pub sent_bytes: usize,
}

/// A stream between two replicas.
pub struct Wire {
    pub ends: [End; 2],
}

/// What happens to the messages that are on their way to one side.
pub type Mangle = Box<dyn FnMut(&mut VecDeque<Bytes>)>;

impl World {
    fn start(&self, node: usize) -> (End, Bytes) {
        let n = &self.nodes[node];
        let (session, hello) = Session::start(&n.exchange, &n.replica, &n.durable, None);
        let (hello, queue) = (hello.encode(), VecDeque::new());
        let sent_bytes = hello.len();
        (End { node, session, queue, events: vec![], error: None, polled: None, sent_bytes }, hello)
    }

    /// Opens a stream; both sides greet.
    pub fn connect(&mut self, a: usize, b: usize) -> usize {
        let ((mut a, hello_a), (mut b, hello_b)) = (self.start(a), self.start(b));
        a.queue.push_back(hello_b);
        b.queue.push_back(hello_a);
        self.wires.push(Wire { ends: [a, b] });
        self.wires.len() - 1
    }

    /// Breaks all streams; what was on its way is lost.
    pub fn cut(&mut self) {
        self.wires.clear();
    }

    /// Breaks the stream between two; both notice.
    pub fn part(&mut self, a: usize, b: usize) {
        let joins = |wire: &Wire| wire.ends.iter().all(|end| end.node == a || end.node == b);
        let (parted, stay): (Vec<_>, Vec<_>) = std::mem::take(&mut self.wires).into_iter().partition(joins);
        self.wires = stay;
        for end in parted.into_iter().flat_map(|wire| wire.ends) {
            if let Some(stop) = end.session.end() {
                self.handle(end.node, stop);
            }
        }
    }

    pub fn put(&mut self, node: usize, key: &str, value: impl AsRef<[u8]>) {
        let effects = self.handle(node, Input::Client(put(key, value)));
        assert!(effects.reply.is_some_and(|reply| reply.is_ok()));
    }

    /// Delivers what is on its way, then lets every session do what it has to.
    pub fn step(&mut self) {
        self.ms += STEP_MS;
        for at in 0..self.wires.len() {
            for side in 0..2 {
                self.deliver(at, side);
            }
        }
        for at in 0..self.wires.len() {
            for side in 0..2 {
                self.poll(at, side);
            }
        }
    }

    fn deliver(&mut self, at: usize, side: usize) {
        let mut queue = std::mem::take(&mut self.wires[at].ends[side].queue);
        if let Some(mangle) = &mut self.mangle {
            mangle(&mut queue);
        }
        for bytes in queue {
            let end = &mut self.wires[at].ends[side];
            if end.error.is_some() {
                return;
            }
            end.polled = None;
            let node = &self.nodes[end.node];
            let now = node.now(self.ms);
            let received = Message::decode(bytes)
                .map_err(SyncError::from)
                .and_then(|message| end.session.receive(&node.replica, &node.durable, now, message));
            self.take(at, side, received);
        }
    }

    fn poll(&mut self, at: usize, side: usize) {
        let end = &mut self.wires[at].ends[side];
        let node = &self.nodes[end.node];
        let due = end.session.next_ms().is_some_and(|ms| ms <= self.ms);
        if end.error.is_none() && (due || end.polled != Some(node.handled)) {
            end.polled = Some(node.handled);
            let polled = end.session.poll(&node.replica, &node.durable, node.now(self.ms), 1 << 20);
            self.take(at, side, polled);
        }
    }

    fn take(&mut self, at: usize, side: usize, turn: Result<SessionEffects, SyncError>) {
        let node = self.wires[at].ends[side].node;
        let messages = match turn {
            Ok(turn) => {
                for input in turn.inputs {
                    self.handle(node, input);
                }
                self.wires[at].ends[side].events.extend(turn.events);
                turn.messages
            }
            Err(error) => {
                let refusal = error.refusal();
                self.wires[at].ends[side].error = Some(error);
                refusal.into_iter().collect()
            }
        };
        for message in messages {
            self.send(at, side, &message);
        }
    }

    /// Sends a message from that side.
    pub fn send(&mut self, at: usize, side: usize, message: &Message) {
        let bytes = message.encode();
        self.wires[at].ends[side].sent_bytes += bytes.len();
        self.wires[at].ends[1 - side].queue.push_back(bytes);
    }

    /// Steps for that long.
    pub fn pass(&mut self, ms: u64) {
        for _ in 0..ms / STEP_MS {
            self.step();
        }
    }

    pub fn converged(&self) -> bool {
        let first = &self.nodes[0].replica;
        self.nodes.iter().all(|n| n.replica.vector() == first.vector() && n.replica.state_hash() == first.state_hash())
    }

    /// Steps until all have the same; fails when that takes longer than a minute.
    pub fn converge(&mut self) {
        for _ in 0..60_000 / STEP_MS {
            if self.converged() {
                return;
            }
            self.step();
        }
        let vectors: Vec<_> = self.nodes.iter().map(|n| n.replica.vector()).collect();
        let errors: Vec<_> = self.wires.iter().flat_map(|wire| wire.ends.iter().map(|end| &end.error)).collect();
        panic!("no convergence: {errors:?} {vectors:?}");
    }

    pub fn report(&self, at: usize, side: usize) -> PeerStatus {
        let end = &self.wires[at].ends[side];
        let node = &self.nodes[end.node];
        end.session.report(&node.replica, &node.durable)
    }

    pub fn events(&self, at: usize, side: usize) -> &[SessionEvent] {
        &self.wires[at].ends[side].events
    }

    pub fn error(&self, at: usize, side: usize) -> Option<&SyncError> {
        self.wires[at].ends[side].error.as_ref()
    }
}
