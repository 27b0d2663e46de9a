//! What is known of whether both states are the same, and hashes of parts of a state.

use bytes::Bytes;

use crate::replica::Replica;
use crate::sync::message::{PIECES_MAX, Piece};
use crate::sync::status::Equality;
use crate::words::key::{Keyspace, Place};

#[derive(Debug, Default)]
pub(super) struct StateComparison {
    pub(super) equality: Equality,
    /// The vector at which the hash was sent last.
    pub(super) sent_at: Option<u64>,
    pub(super) sent_ms: Option<u64>,
    /// Whether the hash is to be told once the interval is over.
    pub(super) waits: bool,
}

impl StateComparison {
    /// When the hash is to be told, milliseconds of the monotonic clock.
    pub(super) fn next_ms(&self, interval_ms: u64) -> Option<u64> {
        self.waits.then(|| self.sent_ms.unwrap_or_default().saturating_add(interval_ms))
    }

    pub(super) fn equality(&self) -> &Equality {
        &self.equality
    }
}

/// The keys of a part of the replicated state, in order, with the hash of each.
pub(super) fn elements<'a>(
    replica: &'a Replica,
    from: Option<&Place>,
    end: Option<&'a Place>,
) -> impl Iterator<Item = (Place, u128)> + use<'a> {
    let from = from.cloned().unwrap_or((Keyspace::Client, Bytes::new()));
    let before_end = move |place: &Place| end.is_none_or(|end| place < end);
    replica.elements(from).take_while(move |(place, _)| before_end(place))
}

/// That part, cut into pieces which begin at keys; and whether none has more than one key.
pub(super) fn cut(replica: &Replica, from: Option<&Place>, end: Option<&Place>) -> (Vec<Piece>, bool) {
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
