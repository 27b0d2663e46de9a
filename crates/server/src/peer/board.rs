//! What is known of each peer, for the admin API, for metrics, and so that each trouble is logged once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use eddy_crdt::sync::{PeerStatus, Session, SessionTally};
use eddy_crdt::{Birth, ReplicaId};
use parking_lot::Mutex;
use prometheus::IntCounter;
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;

/// How many different reasons are remembered of one peer. More are not logged until it was connected again.
const REASONS_MAX: usize = 16;

/// A session's protocol state, which the admin API reads too.
pub(crate) type SharedSession = Arc<Mutex<Session>>;

/// A running session, told by its number from the one that may take its place.
#[derive(Clone, Debug)]
pub(crate) struct Seat {
    peer: ReplicaId,
    /// The peer's id as the label of its metrics.
    label: Arc<str>,
    traffic: Traffic,
    number: u64,
    session: SharedSession,
    /// Ends the session.
    stop: CancellationToken,
}

impl Seat {
    /// Counts a message of this many bytes to the peer.
    pub(crate) fn sent(&self, bytes: usize) {
        self.traffic.sent_bytes.inc_by(bytes as u64);
        self.traffic.sent_messages.inc();
    }
}

/// The counters of what goes between this replica and one peer. To find one by its labels costs more than to count.
#[derive(Clone, Debug)]
struct Traffic {
    received_bytes: IntCounter,
    received_messages: IntCounter,
    new_entries: IntCounter,
    doubled_entries: IntCounter,
    sent_bytes: IntCounter,
    sent_messages: IntCounter,
}

impl Traffic {
    fn with(label: &str, metrics: &Metrics) -> Self {
        let messages = |direction| metrics.peer_messages.with_label_values(&[label, direction]);
        let entries = |kind| metrics.peer_received_entries.with_label_values(&[label, kind]);
        Self {
            received_bytes: metrics.peer_received_bytes.with_label_values(&[label]),
            received_messages: messages("received"),
            new_entries: entries("new"),
            doubled_entries: entries("doubled"),
            sent_bytes: metrics.peer_sent_bytes.with_label_values(&[label]),
            sent_messages: messages("sent"),
        }
    }
}

/// What is known of one peer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known {
    /// The running session.
    seat: Option<Seat>,
    /// The status of the peer when its last session ended.
    pub(crate) last_status: Option<PeerStatus>,
    /// When a message of the peer last arrived.
    pub(crate) last_contact: Option<Instant>,
    /// The first key in which the peer's state differs from ours.
    pub(crate) difference: Option<Bytes>,
    /// How far ahead of our clock an entry of this member was dated, milliseconds, if one was too far ahead.
    pub(crate) dated_ahead_ms: Option<u64>,
    /// The birth under which the peer greeted last.
    birth: Option<Birth>,
    /// How many entries it sent under that birth that do not depend on the floor.
    pub(crate) below_floor: u64,
    /// Why there is no connection.
    pub(crate) error: Option<String>,
    /// Reasons that were logged since the peer was last connected.
    logged: BTreeSet<String>,
}

impl Known {
    /// Whether a session runs.
    pub(crate) fn is_connected(&self) -> bool {
        self.seat.is_some()
    }

    /// The running session.
    pub(crate) fn session(&self) -> Option<&SharedSession> {
        self.seat.as_ref().map(|seat| &seat.session)
    }
}

/// See the module.
pub(crate) struct Board {
    own: String,
    state: Mutex<State>,
    metrics: Arc<Metrics>,
}

#[derive(Debug, Default)]
struct State {
    peers: BTreeMap<ReplicaId, Known>,
    seats: u64,
}

impl Board {
    pub(crate) fn new(own: ReplicaId, metrics: Arc<Metrics>) -> Self {
        Self { own: own.to_string(), state: Mutex::default(), metrics }
    }

    /// Gives the peer's seat to a new session, and ends the session that had it. The older connection is most likely dead.
    pub(crate) fn sit_down(&self, peer: ReplicaId, session: &SharedSession, stop: CancellationToken) -> Seat {
        let mut state = self.state.lock();
        state.seats += 1;
        let label: Arc<str> = peer.to_string().into();
        let traffic = Traffic::with(&label, &self.metrics);
        let seat = Seat { peer, label, traffic, number: state.seats, session: Arc::clone(session), stop };
        let known = state.peers.entry(peer).or_default();
        if let Some(before) = known.seat.replace(seat.clone()) {
            before.stop.cancel();
        }
        known.error = None;
        known.logged.clear();
        known.last_contact = Some(Instant::now());
        self.metrics.peer_connected.with_label_values(&[&*seat.label]).set(1);
        self.metrics.active_peers.with_label_values(&[self.own.as_str(), &*seat.label]).set(1);
        seat
    }

    /// Gives the seat back. Returns false when another session has it already.
    pub(crate) fn stand_up(&self, seat: &Seat, status: PeerStatus) -> bool {
        let mut state = self.state.lock();
        let Some(known) = state.peers.get_mut(&seat.peer) else { return false };
        if known.seat.as_ref().is_none_or(|taken| taken.number != seat.number) {
            return false;
        }
        known.seat = None;
        known.last_status = Some(status);
        self.metrics.peer_connected.with_label_values(&[&*seat.label]).set(0);
        self.metrics.active_peers.with_label_values(&[self.own.as_str(), &*seat.label]).set(0);
        self.metrics.disconnected_peers.with_label_values(&[self.own.as_str(), &*seat.label]).inc();
        true
    }

    /// Counts messages of the peer that have this many bytes together.
    pub(crate) fn heard(&self, seat: &Seat, messages: usize, bytes: usize) {
        if let Some(known) = self.state.lock().peers.get_mut(&seat.peer) {
            known.last_contact = Some(Instant::now());
        }
        seat.traffic.received_bytes.inc_by(bytes as u64);
        seat.traffic.received_messages.inc_by(messages as u64);
    }

    /// Counts received entries, new and known, and requests to send again, by how far the tally grew.
    pub(crate) fn counted(&self, seat: &Seat, before: &SessionTally, after: &SessionTally) {
        seat.traffic.new_entries.inc_by(after.received_entries - before.received_entries);
        seat.traffic.doubled_entries.inc_by(after.duplicates - before.duplicates);
        if after.again > before.again {
            self.metrics.peer_requests_again.with_label_values(&[&*seat.label]).inc_by(after.again - before.again);
        }
    }

    /// Notes the first key in which the peer's state differs from ours.
    pub(crate) fn differs(&self, peer: ReplicaId, key: Bytes) {
        self.state.lock().peers.entry(peer).or_default().difference = Some(key);
    }

    /// Notes that an entry of that member was dated too far ahead of our clock.
    pub(crate) fn dated_ahead(&self, member: ReplicaId, ahead_ms: u64) {
        self.state.lock().peers.entry(member).or_default().dated_ahead_ms = Some(ahead_ms);
    }

    /// Notes under which birth the peer greeted. One that has begun anew has left behind what was refused.
    pub(crate) fn met(&self, peer: ReplicaId, birth: Birth) {
        let mut state = self.state.lock();
        let known = state.peers.entry(peer).or_default();
        if known.birth.replace(birth) != Some(birth) {
            known.below_floor = 0;
        }
    }

    /// Counts an entry of the peer that does not depend on the floor.
    pub(crate) fn below_floor(&self, peer: ReplicaId) {
        self.state.lock().peers.entry(peer).or_default().below_floor += 1;
    }

    /// Notes why there is no connection. Returns whether that is to be logged.
    pub(crate) fn trouble(&self, peer: ReplicaId, reason: &str) -> bool {
        self.metrics.peer_sent_failures.with_label_values(&[&peer.to_string()]).inc();
        let mut state = self.state.lock();
        let known = state.peers.entry(peer).or_default();
        known.error = Some(reason.to_owned());
        known.logged.len() < REASONS_MAX && known.logged.insert(reason.to_owned())
    }

    /// Forgets a peer that is no member any more.
    pub(crate) fn forget(&self, peer: ReplicaId) {
        self.state.lock().peers.remove(&peer);
        self.metrics.forget_peer(&peer.to_string());
    }

    /// Whether a session with the peer runs.
    pub(crate) fn is_connected(&self, peer: ReplicaId) -> bool {
        self.state.lock().peers.get(&peer).is_some_and(Known::is_connected)
    }

    /// All that is known now.
    pub(crate) fn snapshot(&self) -> BTreeMap<ReplicaId, Known> {
        self.state.lock().peers.clone()
    }
}

#[cfg(test)]
mod tests {
    use eddy_crdt::sync::{Exchange, Tuning};
    use eddy_crdt::{ClusterId, Identity, Replica, VersionVector};

    use super::*;

    fn board() -> Board {
        Board::new(ReplicaId::new(1), Arc::new(Metrics::new(false).unwrap()))
    }

    fn replica() -> Replica {
        let (cluster, replica, birth) = (ClusterId::new(1), ReplicaId::new(1), Birth::new(1));
        Replica::new(Identity { cluster, replica, birth, ordinal: 0 })
    }

    fn session() -> SharedSession {
        let exchange = Exchange::new(Tuning::default());
        Arc::new(Mutex::new(Session::start(&exchange, &replica(), &VersionVector::default(), None).0))
    }

    fn status(seat: &Seat) -> PeerStatus {
        seat.session.lock().report(&replica(), &VersionVector::default())
    }

    #[test]
    fn a_new_session_ends_the_one_before_and_keeps_its_seat() {
        let (board, peer) = (board(), ReplicaId::new(7));
        let old = board.sit_down(peer, &session(), CancellationToken::new());
        let new = board.sit_down(peer, &session(), CancellationToken::new());
        assert!(old.stop.is_cancelled() && !new.stop.is_cancelled());
        assert!(!board.stand_up(&old, status(&old)));
        assert!(board.is_connected(peer));
        assert!(board.stand_up(&new, status(&new)));
        assert!(!board.is_connected(peer));
    }

    #[test]
    fn what_was_refused_of_a_peer_is_forgotten_once_it_has_begun_anew() {
        let (board, peer) = (board(), ReplicaId::new(7));
        let refused = |board: &Board| board.snapshot()[&peer].below_floor;
        board.met(peer, Birth::new(1));
        board.below_floor(peer);
        board.met(peer, Birth::new(1));
        assert_eq!(refused(&board), 1);
        board.met(peer, Birth::new(2));
        assert_eq!(refused(&board), 0);
    }

    #[test]
    fn a_reason_is_news_once_until_the_peer_was_connected_again() {
        let (board, peer) = (board(), ReplicaId::new(7));
        assert!(board.trouble(peer, "refused"));
        assert!(!board.trouble(peer, "refused"));
        assert!(board.trouble(peer, "timed out"));
        assert!(!board.trouble(peer, "refused"));
        let seat = board.sit_down(peer, &session(), CancellationToken::new());
        assert!(board.stand_up(&seat, status(&seat)));
        assert!(board.trouble(peer, "refused"));
    }
}
