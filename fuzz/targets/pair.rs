//! Two members and the stream between them, on simulated disks and a clock that the input moves.
//!
//! Side 0 is the one under attack: what is on its way to it may be altered. What both do must stay within what a journal
//! can hold: [`Pair::come_back`] starts both again.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use eddy_crdt::sync::{Exchange, Message, Session, SessionEffects, SessionEvent, SyncError, Tuning};
use eddy_crdt::{
    Birth, ClusterId, Founder, Genesis, Identity, Input, Installer, Loader, Notice, Now, Replica, ReplicaId,
    SnapshotChunk, VersionVector,
};

/// About how long a chunk of a snapshot is, bytes: several for the few keys here.
const CHUNK_BYTES: usize = 300;

/// How much one poll may send, bytes.
const POLL_BYTES: usize = 1 << 20;

/// What a side that begins anew reads.
struct Fetching {
    /// What its session looks at meanwhile.
    empty: Replica,
    installer: Installer,
}

/// One member.
pub struct Side {
    pub replica: Replica,
    pub session: Option<Session>,
    /// What is on its way to it.
    pub inbox: VecDeque<Bytes>,
    durable: VersionVector,
    exchange: Arc<Exchange>,
    pub records: BTreeMap<u64, Bytes>,
    fetching: Option<Box<Fetching>>,
    births: u64,
}

/// Both, and the time, milliseconds.
pub struct Pair {
    pub sides: [Side; 2],
    pub ms: u64,
}

fn id(side: usize) -> ReplicaId {
    ReplicaId::new(side as u64 + 1)
}

fn identity(side: usize, birth: u64) -> Identity {
    Identity { cluster: ClusterId::new(0xc1), replica: id(side), birth: Birth::new(birth), ordinal: 0 }
}

impl Side {
    fn new(side: usize, members: usize) -> Self {
        let founder = |n| Founder { id: id(n), name: format!("n{n}"), peer_urls: vec![format!("http://n{n}:2380")] };
        let genesis = Genesis { founders: (0..members).map(founder).collect(), ..Genesis::default() };
        let (replica, effects) = Replica::found(identity(side, 1), &genesis);
        Self {
            durable: replica.vector().clone(),
            replica,
            session: None,
            inbox: VecDeque::new(),
            exchange: Exchange::new(Tuning::default()),
            records: (1..).zip(effects.records).collect(),
            fetching: None,
            births: 1,
        }
    }

    /// The replica that its session looks at.
    fn seat(&self) -> &Replica {
        self.fetching.as_ref().map_or(&self.replica, |fetching| &fetching.empty)
    }

    fn durable(&self) -> VersionVector {
        if self.fetching.is_some() { VersionVector::default() } else { self.durable.clone() }
    }
}

impl Pair {
    /// A cluster of that many members, of which two are there, connected.
    pub fn new(members: usize) -> Self {
        let mut pair = Self { sides: [Side::new(0, members), Side::new(1, members)], ms: 1 };
        pair.connect();
        pair
    }

    fn now(&self) -> Now {
        Now { wall_ms: 1_800_000_000_000 + self.ms, mono_ms: self.ms }
    }

    /// A new stream; what was on its way over the old one is lost.
    pub fn connect(&mut self) {
        for side in 0..2 {
            self.sides[side].inbox.clear();
            if self.sides[side].fetching.is_some() {
                // A snapshot is read over one stream.
                self.begin_anew(side);
            }
        }
        for side in 0..2 {
            let me = &self.sides[side];
            let (session, hello) = Session::start(&me.exchange, me.seat(), &me.durable(), None);
            self.sides[side].session = Some(session);
            self.sides[1 - side].inbox.push_back(hello.encode());
        }
    }

    /// The side reads what the other has, instead of what it has itself.
    pub fn begin_anew(&mut self, side: usize) {
        if self.sides[1 - side].fetching.is_some() {
            return;
        }
        let me = &mut self.sides[side];
        me.births += 1;
        me.exchange = Exchange::new(Tuning::default());
        let empty = Replica::new(identity(side, me.births));
        me.fetching = Some(Box::new(Fetching { empty, installer: Installer::new() }));
        me.session = None;
    }

    /// Gives the replica of that side an input. What it journals is on disk at once. Tells whether entries were refused.
    pub fn handle(&mut self, side: usize, input: Input) -> bool {
        let (now, me) = (self.now(), &mut self.sides[side]);
        if me.fetching.is_some() {
            return false;
        }
        let first = me.replica.next_number();
        let effects = me.replica.handle(now, input);
        me.records.extend((first..).zip(effects.records));
        me.durable = me.replica.vector().clone();
        effects.notices.iter().any(Notice::is_refusal)
    }

    /// Delivers what is on its way to both sides, and lets both do what they have to.
    pub fn step(&mut self, ms: u64) {
        self.ms += ms;
        for side in 0..2 {
            for bytes in std::mem::take(&mut self.sides[side].inbox) {
                self.deliver(side, bytes);
            }
        }
        for side in 0..2 {
            if self.sides[side].replica.next_tick_ms().is_some_and(|due| due <= self.ms) {
                self.handle(side, Input::Tick);
            }
            let (now, me) = (self.now(), &mut self.sides[side]);
            let durable = me.durable();
            let Some(mut session) = me.session.take() else { continue };
            let turn = session.poll(me.seat(), &durable, now, POLL_BYTES);
            me.session = Some(session);
            self.take(side, turn);
        }
    }

    /// A message arrives.
    pub fn deliver(&mut self, side: usize, bytes: Bytes) {
        let (now, me) = (self.now(), &mut self.sides[side]);
        let durable = me.durable();
        let Some(mut session) = me.session.take() else { return };
        let turn = Message::decode(bytes)
            .map_err(SyncError::from)
            .and_then(|message| session.receive(me.seat(), &durable, now, message));
        me.session = Some(session);
        self.take(side, turn);
    }

    fn take(&mut self, side: usize, turn: Result<SessionEffects, SyncError>) {
        let turn = match turn {
            Ok(turn) => turn,
            Err(error) => {
                self.sides[side].session = None;
                self.sides[1 - side].inbox.extend(error.refusal().map(|refusal| refusal.encode()));
                return;
            }
        };
        let mut refused = false;
        for input in turn.inputs {
            refused |= self.handle(side, input);
        }
        let (now, me) = (self.now(), &mut self.sides[side]);
        let again = me.session.as_mut().filter(|_| refused).and_then(|session| session.refused(&me.replica, now));
        let messages: Vec<Bytes> = again.iter().chain(&turn.messages).map(Message::encode).collect();
        self.sides[1 - side].inbox.extend(messages);
        for event in turn.events {
            self.follow(side, event);
        }
    }

    fn follow(&mut self, side: usize, event: SessionEvent) {
        let me = &mut self.sides[side];
        match event {
            SessionEvent::Met { .. } if me.fetching.is_some() => self.ask_chunk(side, None),
            SessionEvent::SnapshotWanted { after } if me.fetching.is_none() => {
                let chunk = me.replica.snapshot_chunk(after.as_ref(), &me.durable, CHUNK_BYTES).encode();
                self.sides[1 - side].inbox.push_back(Message::SnapshotChunk(chunk).encode());
            }
            SessionEvent::SnapshotChunk(chunk) => self.take_chunk(side, &chunk),
            SessionEvent::LostTail { .. } | SessionEvent::SnapshotNeeded { .. } if me.fetching.is_none() => {
                self.begin_anew(side);
            }
            _ => {}
        }
    }

    fn ask_chunk(&mut self, side: usize, after: Option<eddy_crdt::Place>) {
        let Some(session) = &mut self.sides[side].session else { return };
        let wish = session.request_snapshot(after).encode();
        self.sides[1 - side].inbox.push_back(wish);
    }

    /// Installs a snapshot when it is whole. A damaged one is read again over the next stream.
    fn take_chunk(&mut self, side: usize, chunk: &Bytes) {
        let (now, me) = (self.now(), &mut self.sides[side]);
        let Some(fetching) = &mut me.fetching else { return };
        let taken = SnapshotChunk::decode(chunk).map_err(From::from).and_then(|chunk| fetching.installer.chunk(chunk));
        match taken {
            Ok(Some(after)) => self.ask_chunk(side, Some(after)),
            Ok(None) => {
                let installer = std::mem::take(&mut fetching.installer);
                let Ok(installed) = installer.finish(now, fetching.empty.identity(), Some(&me.replica)) else {
                    me.session = None;
                    return;
                };
                (me.replica, me.fetching, me.session) = (installed.replica, None, None);
                me.records = (1..).zip(installed.records).collect();
                me.durable = me.replica.vector().clone();
            }
            Err(_) => me.session = None,
        }
    }

    /// Whether both have the same.
    pub fn converged(&self) -> bool {
        let [a, b] = &self.sides;
        let fetches = a.fetching.is_some() || b.fetching.is_some();
        !fetches && a.replica.vector() == b.replica.vector() && a.replica.state_hash() == b.replica.state_hash()
    }

    /// Whether a stream stands.
    pub fn is_connected(&self) -> bool {
        self.sides.iter().all(|side| side.session.is_some())
    }

    /// Each replica is the same when it is started again from its journal.
    pub fn come_back(&self) {
        for side in &self.sides {
            let head = side.replica.head().encode();
            let mut loader = Loader::new(Some(&head)).expect("a head");
            for (number, record) in &side.records {
                loader.record(*number, record.clone()).expect("a record that was journaled");
            }
            let mut again = |number| side.records.get(&number).cloned();
            let restored = loader.finish(self.now(), side.replica.identity(), &mut again).expect("the journal");
            assert_eq!(restored.state_hash(), side.replica.state_hash());
            assert_eq!(restored.vector(), side.replica.vector());
            assert_eq!(restored.revision(), side.replica.revision());
        }
    }
}
