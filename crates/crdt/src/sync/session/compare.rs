//! Whether both states are the same, and if not, which key is the first that differs.
//!
//! States are compared where the vectors are equal. The side with the lower id then cuts its keys into pieces and sends
//! the hash of each. The other side cuts the first piece that differs. This goes on until every piece holds one key.
//! Each step looks at the keys of one piece only, and there are as many steps as the logarithm of the number of keys.

use crate::sync::message::{Message, Piece, fingerprint};
use crate::sync::session::Session;
use crate::sync::session::effects::{Round, SessionEvent};
use crate::sync::session::equality::{cut, elements};
use crate::sync::session::peer::Peer;
use crate::sync::status::Equality;
use crate::words::key::Place;

impl Session {
    /// Tells the hash when both sides have the same on disk.
    pub(super) fn send_hash(&mut self, round: &mut Round<'_>, peer: &Peer) {
        let (replica, durable, now) = (round.replica, round.durable, round.now);
        let (compare, theirs) = (&mut self.compare, self.outgoing.theirs());
        let interval_ms = self.exchange.tuning().hash_interval_ms;
        let due = compare.sent_ms.is_none_or(|at| now.mono_ms >= at.saturating_add(interval_ms));
        // One of the two is enough.
        let ours_to_tell = replica.identity().replica < peer.member;
        compare.waits = false;
        // One side may name births that the other has forgotten: the same entries all the same.
        let is_same = durable == theirs || (durable.covers(theirs) && theirs.covers(durable));
        if !ours_to_tell || !is_same || replica.vector() != durable {
            return;
        }
        let at = fingerprint(durable);
        // A peer that has not forgotten those births yet does not answer. It is told again.
        if compare.sent_at == Some(at) && compare.equality != Equality::Unknown {
            return;
        }
        if !due {
            compare.waits = true;
            return;
        }
        (compare.sent_at, compare.sent_ms) = (Some(at), Some(now.mono_ms));
        round.effects.messages.push(Message::Hash { at, hash: Some(replica.state_hash()) });
    }

    pub(super) fn compare_hash(&mut self, round: &mut Round<'_>, peer: &Peer, at: u64, hash: Option<u128>) {
        let (replica, now) = (round.replica, round.now);
        let compare = &mut self.compare;
        if at != fingerprint(replica.vector()) {
            return;
        }
        let asked = compare.sent_at == Some(at);
        let same = hash.map_or(asked, |hash| hash == replica.state_hash());
        if !asked {
            (compare.sent_at, compare.sent_ms) = (Some(at), Some(now.mono_ms));
            let hash = (!same).then(|| replica.state_hash());
            round.effects.messages.push(Message::Hash { at, hash });
        }
        if same {
            compare.equality = Equality::Equal;
            return;
        }
        if !matches!(compare.equality, Equality::Different(_)) {
            compare.equality = Equality::Different(None);
            round.effects.events.push(SessionEvent::HashDiffers(peer.member));
        }
        if asked && compare.equality == Equality::Different(None) {
            let (pieces, single) = cut(replica, None, None);
            round.effects.messages.push(Message::Narrow { at, from: None, pieces, single });
        }
    }

    pub(super) fn narrow(
        &mut self,
        round: &mut Round<'_>,
        peer: &Peer,
        from: Option<Place>,
        pieces: &[Piece],
        single: bool,
    ) {
        let replica = round.replica;
        let mut begin = from;
        for (n, piece) in pieces.iter().enumerate() {
            // Ends that go backwards get no answer.
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
                round.effects.messages.push(Message::Narrow {
                    at: fingerprint(replica.vector()),
                    from: begin,
                    pieces,
                    single,
                });
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
                round.effects.messages.push(Message::Differs(place.clone()));
                self.found(round, peer, place);
            }
            return;
        }
    }

    pub(super) fn found(&mut self, round: &mut Round<'_>, peer: &Peer, place: Place) {
        self.compare.equality = Equality::Different(Some(place.clone()));
        round.effects.events.push(SessionEvent::KeyDiffers { member: peer.member, place });
    }
}
