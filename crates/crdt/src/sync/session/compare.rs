//! Whether both states are the same, and if not, which key is the first that differs.
//!
//! States are compared where the vectors are equal. The side with the lower id then cuts its keys into pieces and sends
//! the hash of each; the other side cuts the first piece that differs, and so on until every piece holds one key. Each
//! step looks at the keys of one piece only, and there are as many steps as the logarithm of the number of keys.

use bytes::Bytes;

use crate::replica::Replica;
use crate::sync::message::{Message, PIECES_MAX, Piece, fingerprint};
use crate::sync::session::{Peer, Session, SessionEvent, Turn};
use crate::sync::status::Equality;
use crate::words::clock::Now;
use crate::words::key::{Keyspace, Place};
use crate::words::vector::VersionVector;

#[derive(Debug, Default)]
pub(super) struct Compare {
    equality: Equality,
    /// The vector at which the hash was sent last.
    sent_at: Option<u64>,
    sent_ms: Option<u64>,
    /// Whether the hash is to be told once the interval is over.
    waits: bool,
}

impl Compare {
    /// When the hash is to be told, milliseconds of the monotonic clock.
    pub fn next_ms(&self, interval_ms: u64) -> Option<u64> {
        self.waits.then(|| self.sent_ms.unwrap_or_default().saturating_add(interval_ms))
    }

    pub fn equality(&self) -> &Equality {
        &self.equality
    }
}

/// The keys of a part of the replicated state, in order, with the hash of each.
fn elements<'a>(
    replica: &'a Replica,
    from: Option<&Place>,
    end: Option<&'a Place>,
) -> impl Iterator<Item = (Place, u128)> + use<'a> {
    let from = from.cloned().unwrap_or((Keyspace::Client, Bytes::new()));
    let before_end = move |place: &Place| end.is_none_or(|end| place < end);
    replica.elements(from).take_while(move |(place, _)| before_end(place))
}

/// That part, cut into pieces which begin at keys; and whether none has more than one key.
fn cut(replica: &Replica, from: Option<&Place>, end: Option<&Place>) -> (Vec<Piece>, bool) {
    let count = elements(replica, from, end).count();
    // Before the first key there is a piece of its own, so that a missing key shows.
    let per_piece = count.div_ceil(PIECES_MAX - 1).max(1);
    let mut pieces = vec![];
    let mut hash = 0u128;
    for (n, (place, element)) in elements(replica, from, end).enumerate() {
        if n % per_piece == 0 {
            pieces.push(Piece { end: Some(place), hash });
            hash = 0;
        }
        hash = hash.wrapping_add(element);
    }
    pieces.push(Piece { end: end.cloned(), hash });
    (pieces, per_piece == 1)
}

impl Session {
    /// Tells the hash when both sides have the same on disk.
    pub(super) fn send_hash(
        &mut self,
        peer: &Peer,
        replica: &Replica,
        durable: &VersionVector,
        now: Now,
        turn: &mut Turn,
    ) {
        let (compare, theirs) = (&mut self.compare, self.outgoing.theirs());
        let interval_ms = self.exchange.tuning().hash_interval_ms;
        let due = compare.sent_ms.is_none_or(|at| now.mono_ms >= at.saturating_add(interval_ms));
        // One of the two is enough.
        let ours_to_tell = replica.identity().replica < peer.member;
        compare.waits = false;
        if !ours_to_tell || durable != theirs || replica.vector() != durable {
            return;
        }
        let at = fingerprint(durable);
        if compare.sent_at == Some(at) {
            return;
        }
        if !due {
            compare.waits = true;
            return;
        }
        (compare.sent_at, compare.sent_ms) = (Some(at), Some(now.mono_ms));
        turn.messages.push(Message::Hash { at, hash: Some(replica.state_hash()) });
    }

    pub(super) fn compare_hash(
        &mut self,
        peer: &Peer,
        replica: &Replica,
        now: Now,
        at: u64,
        hash: Option<u128>,
        turn: &mut Turn,
    ) {
        let compare = &mut self.compare;
        if at != fingerprint(replica.vector()) {
            return;
        }
        let asked = compare.sent_at == Some(at);
        let same = hash.map_or(asked, |hash| hash == replica.state_hash());
        if !asked {
            (compare.sent_at, compare.sent_ms) = (Some(at), Some(now.mono_ms));
            let hash = (!same).then(|| replica.state_hash());
            turn.messages.push(Message::Hash { at, hash });
        }
        if same {
            compare.equality = Equality::Equal;
            return;
        }
        if !matches!(compare.equality, Equality::Different(_)) {
            compare.equality = Equality::Different(None);
            turn.events.push(SessionEvent::HashDiffers(peer.member));
        }
        if asked && compare.equality == Equality::Different(None) {
            let (pieces, single) = cut(replica, None, None);
            turn.messages.push(Message::Narrow { at, from: None, pieces, single });
        }
    }

    pub(super) fn narrow(
        &mut self,
        peer: &Peer,
        replica: &Replica,
        from: Option<Place>,
        pieces: &[Piece],
        single: bool,
        turn: &mut Turn,
    ) {
        let mut begin = from;
        for (n, piece) in pieces.iter().enumerate() {
            // Whoever sent ends that go backwards gets no answer.
            if piece.end.is_some() && piece.end < begin {
                return;
            }
            let end = piece.end.as_ref();
            let ours = elements(replica, begin.as_ref(), end).fold(0u128, |sum, (_, hash)| sum.wrapping_add(hash));
            if ours == piece.hash {
                begin.clone_from(&piece.end);
                continue;
            }
            if !single {
                let (pieces, single) = cut(replica, begin.as_ref(), end);
                turn.messages.push(Message::Narrow { at: fingerprint(replica.vector()), from: begin, pieces, single });
                return;
            }
            // The sender has one key here, at the beginning, but nothing in the first piece.
            let theirs = if n > 0 { begin.clone() } else { None };
            let mut own = elements(replica, begin.as_ref(), end);
            let first = match (theirs, own.next()) {
                (Some(theirs), Some((place, hash))) if place == theirs && hash == piece.hash => {
                    own.next().map(|(place, _)| place)
                }
                (theirs, first) => theirs.into_iter().chain(first.map(|(place, _)| place)).min(),
            };
            drop(own);
            if let Some(place) = first {
                turn.messages.push(Message::Differs(place.clone()));
                self.found(peer, place, turn);
            }
            return;
        }
    }

    pub(super) fn found(&mut self, peer: &Peer, place: Place, turn: &mut Turn) {
        self.compare.equality = Equality::Different(Some(place.clone()));
        turn.events.push(SessionEvent::KeyDiffers { member: peer.member, place });
    }
}
