//! One session with one peer: from the greeting to the end of the stream.
//!
//! A session is told what arrived, and that time has passed or something became durable. It tells what to send, what to
//! give to the replica, and what the operator should know. It relies on nothing but the checksums of its messages: what
//! is lost, doubled or out of order costs time, never correctness. A broken stream is the end of it; the next session
//! starts from what both sides have on disk.

mod clocks;
mod compare;
mod effects;
mod equality;
mod greeting;
mod incoming;
mod outgoing;
mod peer;
mod receiving;
mod search;
mod sending;

use std::sync::Arc;

use crate::replica::Replica;
use crate::replica::turn::Input;
use crate::store::system::AnnouncedBirth;
use crate::sync::error::SyncError;
use crate::sync::exchange::{CatchUp, Exchange, Link};
use crate::sync::message::{Message, fingerprint};
use crate::sync::status::{PeerStatus, SessionTally, Stage};
use crate::words::clock::Now;
use crate::words::id::ReplicaId;
use crate::words::key::Place;
use crate::words::vector::VersionVector;

use effects::Round;
use peer::Peer;

pub use effects::{SessionEffects, SessionEvent};
pub use peer::Standing;

/// One session with one peer: a state machine beside the [`Replica`], for one stream.
///
/// # Calls, in their order
/// 1. [`Session::start`] gives the session and its greeting, the first message to send.
/// 2. [`Session::receive`] takes each message that arrives.
/// 3. [`Session::poll`] says what else there is to do. Call it after each message; when something became durable; when
///    the replica handled inputs of this session; and when [`Session::next_ms`] is reached. [`Session::is_urgent`]
///    tells cheaply whether it can wait for that time.
/// 4. After an error, send [`SyncError::refusal`] if there is one, and close the stream. Nothing else may be called then.
///
/// All of them are given `durable`, the vector that the replica has on disk. What a session says of this replica is never
/// above it.
///
/// # Effects, and when they may be used
/// Both calls return [`SessionEffects`], to be used at once and in this order. Give `inputs` to [`Replica::handle`],
/// send `messages`, tell `events` to the process. Messages need not wait for the disk: they only speak of what is
/// durable. If the replica refuses entries (a notice says so), call [`Session::refused`] and send what it returns.
///
/// # What it relies on
/// Nothing but the checksums of its messages. A message that is lost, doubled or out of order costs time, never correctness.
/// When the stream breaks, drop the session; the next one starts from what both sides have on disk.
#[derive(Debug)]
pub struct Session {
    exchange: Arc<Exchange>,
    /// Counts the sessions of the replica.
    number: u64,
    /// The member that was called, where this side called.
    wanted: Option<ReplicaId>,
    stage: Stage,
    peer: Option<Arc<Peer>>,
    link: Option<Link>,
    /// While this replica is asking the peer for all that it lacks.
    turn: Option<CatchUp>,
    /// When it is looked again whether the peer can be asked, milliseconds of the monotonic clock.
    asks_ms: Option<u64>,
    search: Option<search::Search>,
    /// What the peer asks for next of a snapshot.
    wish: Option<Option<Place>>,
    /// What was here when it was known under which birth the peer begins with that snapshot.
    announced: Option<VersionVector>,
    /// When that was asked for last, if it was, milliseconds of the monotonic clock.
    asked_ms: Option<u64>,
    outgoing: outgoing::Outgoing,
    incoming: incoming::Incoming,
    compare: equality::StateComparison,
    clocks: clocks::Clocks,
    tally: SessionTally,
    last_contact_ms: Option<u64>,
}

impl Session {
    /// A new session and its first message. `durable` is what this replica has on disk; `wanted` is the member that was
    /// called, if that is known.
    pub fn start(
        exchange: &Arc<Exchange>,
        replica: &Replica,
        durable: &VersionVector,
        wanted: Option<ReplicaId>,
    ) -> (Self, Message) {
        let mut session = Self {
            exchange: Arc::clone(exchange),
            number: exchange.next_session(),
            wanted,
            stage: Stage::Greeting,
            peer: None,
            link: None,
            turn: None,
            asks_ms: None,
            search: None,
            wish: None,
            announced: None,
            asked_ms: None,
            outgoing: outgoing::Outgoing::default(),
            incoming: incoming::Incoming::default(),
            compare: equality::StateComparison::default(),
            clocks: clocks::Clocks::default(),
            tally: SessionTally { sent_messages: 1, ..SessionTally::default() },
            last_contact_ms: None,
        };
        session.outgoing.told(replica.identity().origin(), durable);
        (session, Message::Hello(Box::new(peer::hello(replica, durable))))
    }

    /// Takes a message. `durable` is what this replica has on disk now.
    ///
    /// # Errors
    /// When the session cannot go on: send [`SyncError::refusal`] and close the stream.
    pub fn receive(
        &mut self,
        replica: &Replica,
        durable: &VersionVector,
        now: Now,
        message: Message,
    ) -> Result<SessionEffects, SyncError> {
        self.tally.received_messages += 1;
        self.last_contact_ms = Some(now.mono_ms);
        let mut round = Round { replica, durable, now, effects: SessionEffects::default() };
        match message {
            Message::Refuse { reason, text } => return Err(SyncError::Refused { reason, text }),
            Message::Hello(hello) if self.peer.is_none() => self.greet(&mut round, *hello)?,
            // Doubled on the way.
            Message::Hello(_) => {}
            message => {
                let Some(peer) = self.peer.clone() else {
                    return Err(SyncError::Unexpected(message.name()));
                };
                peer::check_member(replica, durable, peer.member)?;
                self.receive_from(&mut round, &peer, message)?;
            }
        }
        self.tally.sent_messages += round.effects.messages.len() as u64;
        Ok(round.effects)
    }

    fn receive_from(&mut self, round: &mut Round<'_>, peer: &Peer, message: Message) -> Result<(), SyncError> {
        let (replica, _durable, now) = (round.replica, round.durable, round.now);
        match message {
            Message::Entries { epoch, number, entries, marks, part } => {
                self.take_entries(round, peer, (epoch, number, part), marks, entries)?;
            }
            Message::Acks(acks) => self.take_acks(round, peer, acks),
            Message::Again { epoch, have, whole, floor } => {
                if self.stage == Stage::Open && !replica.is_taken_by(&have, &floor) {
                    // This replica has entries that do not depend on what all members have. The peer will never take them.
                    // So this replica begins anew from the peer, and writes again what they said.
                    round.effects.events.push(SessionEvent::SnapshotNeeded { member: peer.member });
                    self.enter(Stage::LostTail);
                    return Ok(());
                }
                self.outgoing.again(epoch, have, whole)?;
            }
            Message::ChainsWanted { origin, seqs } => {
                if origin == peer.origin() && self.stage == Stage::Open {
                    // Only a replica that has lost something asks for its own hashes.
                    round.effects.events.push(SessionEvent::PeerLostTail(peer.member));
                    self.enter(Stage::PeerLostTail);
                }
                round.effects.messages.push(peer::chains(replica, origin, &seqs));
            }
            Message::Chains(chains) => self.search_on(round, peer, &chains),
            Message::Hash { at, hash } => self.compare_hash(round, peer, at, hash),
            Message::Narrow { at, from, pieces, single } => {
                if at == fingerprint(replica.vector()) {
                    self.narrow(round, peer, from, &pieces, single);
                }
            }
            Message::Differs(place) => self.found(round, peer, place),
            Message::TooFarBehind { begins } => {
                let origin = replica.identity().origin();
                let listens = matches!(self.stage, Stage::Open | Stage::Snapshot | Stage::PeerLostTail);
                if begins.get(origin) > replica.vector().get(origin) && listens {
                    self.begin_search(round, peer, begins.get(origin), &[]);
                } else if !replica.vector().covers(&begins) && listens {
                    round.effects.events.push(SessionEvent::SnapshotNeeded { member: peer.member });
                    self.enter(Stage::Snapshot);
                }
            }
            Message::SnapshotWanted { after } => {
                round.effects.inputs.push(Input::Hold);
                if self.announced.is_none() {
                    self.announce(round, peer);
                }
                self.wish = Some(after);
            }
            Message::SnapshotChunk(chunk) => round.effects.events.push(SessionEvent::SnapshotChunk(chunk)),
            Message::Ping { number, .. } => round.effects.messages.push(Message::Pong { number, wall_ms: now.wall_ms }),
            Message::Pong { number, wall_ms } => {
                let tolerance_ms = self.exchange.tuning().clock_tolerance_ms;
                round.effects.events.extend(self.clocks.pong(peer.member, tolerance_ms, now, number, wall_ms));
            }
            Message::Hello(_) | Message::Refuse { .. } => {}
        }
        Ok(())
    }

    /// What there is to do now. Call it after a message, and when something became durable. Call it when the replica
    /// handled entries or acknowledgements, and when [`Self::next_ms`] is there. Sends entries up to about `max_bytes`.
    /// It sends only what is durable, and only once the replica's mark that it streams ([`Input::Stream`]) is, too.
    ///
    /// # Errors
    /// When the peer is no member any more.
    pub fn poll(
        &mut self,
        replica: &Replica,
        durable: &VersionVector,
        now: Now,
        max_bytes: usize,
    ) -> Result<SessionEffects, SyncError> {
        let mut round = Round { replica, durable, now, effects: SessionEffects::default() };
        let Some(peer) = self.peer.clone() else { return Ok(round.effects) };
        peer::check_member(replica, durable, peer.member)?;
        let tuning = *self.exchange.tuning();
        round.effects.messages.extend(self.clocks.ping(tuning.ping_interval_ms, now));
        self.give(&mut round, &peer);
        if self.stage == Stage::Snapshot {
            self.open_after_all(&mut round, &peer);
        }
        if matches!(self.stage, Stage::Snapshot | Stage::PeerLostTail) {
            // Both sides may only think that the other is behind.
            self.send_acks(&mut round, &peer);
        }
        if self.stage == Stage::Open {
            self.take_later(&mut round, &peer);
            self.take_unit(&mut round, &peer)?;
            self.take_parked(&mut round, &peer)?;
            self.ask_for_unit(&mut round, &peer);
            self.send_entries(&mut round, &peer, max_bytes);
            self.send_acks(&mut round, &peer);
            self.send_hash(&mut round, &peer);
        }
        self.tally.sent_messages += round.effects.messages.len() as u64;
        Ok(round.effects)
    }

    /// Asks the replica to note under which birth the peer begins.
    fn announce(&mut self, round: &mut Round<'_>, peer: &Peer) {
        let now = round.now;
        self.asked_ms = Some(now.mono_ms);
        round.effects.inputs.push(Input::Begins { member: peer.member, birth: peer.birth });
        // A snapshot gives it all that is here, at several moments.
        round.effects.inputs.push(Input::Stream { member: peer.member, session: self.number });
        (self.outgoing.streams, self.outgoing.streams_now) = (true, false);
        self.outgoing.gives_snapshot = true;
    }

    /// Gives what is wished for once the peer's birth is announced on disk. All that was applied before is in the
    /// snapshot then. A replica that counts an acknowledgement of what comes later knows of the birth.
    fn give(&mut self, round: &mut Round<'_>, peer: &Peer) {
        let (replica, durable, now) = (round.replica, round.durable, round.now);
        if self.wish.is_none() {
            return;
        }
        let is_next = |birth| matches!(birth, AnnouncedBirth::One(birth) if birth.is_drawn_as(peer.birth));
        if self.announced.is_none() && replica.birth_of(peer.member).is_some_and(is_next) {
            self.announced = Some(replica.vector().clone());
        }
        let patience_ms = self.exchange.tuning().patience_ms;
        if self.announced.is_none()
            && self.asked_ms.is_none_or(|asked| now.mono_ms >= asked.saturating_add(patience_ms))
        {
            // A late wish of an earlier run of the peer has announced the earlier birth over this one.
            self.announce(round, peer);
        }
        if self.announced.as_ref().is_some_and(|upto| durable.covers(upto))
            && let Some(after) = self.wish.take()
        {
            round.effects.events.push(SessionEvent::SnapshotWanted { after });
        }
    }

    /// When there may be something to do although nothing happens, milliseconds of the monotonic clock.
    pub fn next_ms(&self) -> Option<u64> {
        self.peer.as_ref()?;
        let (tuning, ping) = (self.exchange.tuning(), self.clocks.next_ms(self.exchange.tuning().ping_interval_ms));
        if self.stage != Stage::Open {
            return Some(ping);
        }
        let asks_ms = (self.incoming.epoch == 0).then(|| self.asks_ms.or(self.last_contact_ms)).flatten();
        let due = [
            asks_ms,
            self.outgoing.next_ms(tuning, self.incoming.ack_interval_ms(&self.exchange)),
            self.incoming.next_ms(tuning.patience_ms),
            self.compare.next_ms(tuning.hash_interval_ms),
        ];
        due.into_iter().flatten().chain([ping]).min()
    }

    /// To be called when the replica refused entries of this session: everything is asked for again. Nothing is asked
    /// of a removed member, since nothing would be taken; it hears of its removal once that is on disk.
    pub fn refused(&mut self, replica: &Replica, now: Now) -> Option<Message> {
        let peer = self.peer.as_ref()?.member;
        self.incoming.forget();
        (!replica.membership.members.is_removed(peer)).then(|| self.ask_again(replica, now, false))
    }

    /// Asks for a chunk of a snapshot, behind `after`; from the beginning when there is nothing yet.
    pub fn request_snapshot(&mut self, after: Option<Place>) -> Message {
        self.tally.sent_messages += 1;
        Message::SnapshotWanted { after }
    }

    /// The peer, once it said which member it is.
    pub fn peer(&self) -> Option<ReplicaId> {
        self.peer.as_ref().map(|peer| peer.member)
    }

    /// How far the session is.
    pub fn stage(&self) -> Stage {
        self.stage
    }

    /// What is known of the peer. `durable` is what this replica has on disk.
    pub fn report(&self, replica: &Replica, durable: &VersionVector) -> PeerStatus {
        let vector = self.outgoing.theirs().clone();
        PeerStatus {
            member: self.peer(),
            birth: self.peer.as_ref().map(|peer| peer.birth),
            stage: self.stage,
            revision: self.peer.as_ref().map(|peer| peer.revision),
            entries_behind: replica.count_for(&vector, durable),
            bytes_behind: replica.bytes_for(&vector, durable),
            entries_ahead: vector.iter().map(|dot| dot.seq.saturating_sub(replica.vector().get(dot.origin))).sum(),
            in_flight_bytes: self.outgoing.in_flight_bytes(),
            kept_bytes: self.incoming.recent.bytes,
            equality: self.compare.equality().clone(),
            round_trip_ms: self.clocks.round_trip_ms(),
            clock_ahead_ms: self.clocks.ahead_ms(),
            last_contact_ms: self.last_contact_ms,
            links: self.outgoing.links().to_vec(),
            tally: self.tally,
            vector,
        }
    }

    fn enter(&mut self, stage: Stage) {
        self.stage = stage;
        self.turn = None;
        self.link = match (stage, &self.peer) {
            (Stage::Open, Some(peer)) => Some(Link::new(&self.exchange, peer.member)),
            _ => None,
        };
    }
}
