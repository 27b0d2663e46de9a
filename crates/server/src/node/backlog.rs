//! What peers' sessions have handed on and the committer has not applied yet.
//!
//! None of it has a client waiting for it, so all of it may wait for those who have: acknowledgements for company, entries
//! for the next group when there are more of them (or dearer ones: each may be a merge) than a group has time for.

use std::collections::VecDeque;
use std::sync::Arc;
use std::vec;

use eddy_crdt::{Birth, Entry, Input, Origin, ReplicaId, VersionVector};
use tokio::sync::oneshot;

use super::NodeError;

/// Entries of a peer that are applied between two looks at the clock.
const SLICE: usize = 8;

/// How long acknowledgements of members wait for something else to be done with, milliseconds. Nobody waits for them, and
/// a flush for each would cost more than the entry that it is for: a member hears of every entry from all others.
const ACKS_WAIT_MS: u64 = 250;

/// But no more of them than this.
const ACKS_WAITING_MAX: usize = 256;

/// Acknowledgements of several messages, which are applied as one: the floor is looked for once.
pub(super) struct WaitingAcks {
    own: VersionVector,
    acks: Vec<(Origin, VersionVector)>,
    /// Of how many messages.
    inputs: usize,
    /// Since when the first waits, milliseconds of the monotonic clock.
    since_ms: u64,
}

impl WaitingAcks {
    pub(super) fn since(since_ms: u64) -> Self {
        Self { own: VersionVector::default(), acks: Vec::new(), inputs: 0, since_ms }
    }

    pub(super) fn add(&mut self, own: &VersionVector, acks: Vec<(Origin, VersionVector)>) {
        self.own.merge(own);
        self.acks.extend(acks);
        self.inputs += 1;
    }

    /// When they have waited long enough.
    pub(super) fn due_ms(&self) -> u64 {
        self.since_ms.saturating_add(ACKS_WAIT_MS)
    }

    /// Whether they are too many to wait.
    pub(super) fn is_full(&self) -> bool {
        self.inputs >= ACKS_WAITING_MAX
    }

    pub(super) fn into_input(self) -> Input {
        Input::Acks { own: self.own, acks: self.acks }
    }
}

/// Who is told when it is applied, and whether something of it was refused.
pub(super) type Told = (oneshot::Sender<Result<bool, NodeError>>, bool);

/// An input of a session.
pub(super) struct Handed {
    rest: Rest,
    told: oneshot::Sender<Result<bool, NodeError>>,
    refused: bool,
}

enum Rest {
    Whole(Option<Input>),
    Entries { from: ReplicaId, births: Arc<[Birth]>, entries: vec::IntoIter<Entry> },
}

impl Handed {
    pub(super) fn new(input: Input, told: oneshot::Sender<Result<bool, NodeError>>) -> Self {
        let rest = match input {
            Input::Entries { from, births, entries } => Rest::Entries { from, births, entries: entries.into_iter() },
            input => Rest::Whole(Some(input)),
        };
        Self { rest, told, refused: false }
    }

    /// Takes what can be applied in one go; `None` when nothing is left.
    pub(super) fn slice(&mut self) -> Option<Input> {
        match &mut self.rest {
            Rest::Whole(input) => input.take(),
            Rest::Entries { from, births, entries } => {
                let slice: Vec<Entry> = entries.take(SLICE).collect();
                let (from, births) = (*from, Arc::clone(births));
                (!slice.is_empty()).then_some(Input::Entries { from, births, entries: slice })
            }
        }
    }

    /// Notes that something of it was refused.
    pub(super) fn note_refusal(&mut self) {
        self.refused = true;
    }

    pub(super) fn told(self) -> Told {
        (self.told, self.refused)
    }
}

/// Does none of it; who waits is told why.
pub(super) fn refuse_all(backlog: &mut VecDeque<Handed>, error: impl Fn() -> NodeError) {
    for handed in backlog.drain(..) {
        if handed.told.send(Err(error())).is_err() {
            tracing::trace!("a session ended before its input was applied");
        }
    }
}
