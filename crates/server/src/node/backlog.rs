//! Inputs of peers' sessions that the committer has not applied yet.
//!
//! No client waits for them, so they give way to clients' commands. Acknowledgements wait until something else is applied.
//! Entries wait for the next group when there are more than one group has time for; each may cost a merge.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::vec;

use eddy_crdt::{Ack, Birth, Entry, Input, ReplicaId, VersionVector};
use tokio::sync::oneshot;

use super::error::NodeError;

/// Entries of a peer that are applied between two looks at the clock.
const SLICE: usize = 8;

/// How long acknowledgements of members wait for another input to share a flush with, milliseconds. A flush for each
/// would cost more than the entry it acknowledges, and every member acknowledges every entry.
const ACKS_WAIT_MS: u64 = 250;

/// Acknowledgements of more messages than this do not wait.
const ACKS_WAITING_MAX: usize = 256;

/// How old an input may be before it is late. A replica that falls behind takes fewer commands from then on: what it fell
/// behind by would have to be caught up with, and costs more then.
const LATE: Duration = Duration::from_millis(100);

/// Acknowledgements of several messages, applied as one, so that the floor is computed once.
pub(super) struct WaitingAcks {
    own: VersionVector,
    acks: Vec<Ack>,
    /// How many messages they came in.
    inputs: usize,
    /// When the first arrived, milliseconds of the monotonic clock.
    since_ms: u64,
}

impl WaitingAcks {
    pub(super) fn since(since_ms: u64) -> Self {
        Self { own: VersionVector::default(), acks: Vec::new(), inputs: 0, since_ms }
    }

    pub(super) fn add(&mut self, own: &VersionVector, acks: Vec<Ack>) {
        self.own.merge(own);
        self.acks.extend(acks);
        self.inputs += 1;
    }

    /// When they must be applied, milliseconds of the monotonic clock.
    pub(super) fn due_ms(&self) -> u64 {
        self.since_ms.saturating_add(ACKS_WAIT_MS)
    }

    /// Whether there are too many to wait.
    pub(super) fn is_full(&self) -> bool {
        self.inputs >= ACKS_WAITING_MAX
    }

    pub(super) fn into_input(self) -> Input {
        Input::Acks { own: self.own, acks: self.acks }
    }
}

/// The waiter of an input that is applied, and whether the replica refused something of it.
pub(super) type Told = (oneshot::Sender<Result<bool, NodeError>>, bool);

/// An input of a session, as far as it is not applied.
pub(super) struct Handed {
    rest: Rest,
    since: Instant,
    told: oneshot::Sender<Result<bool, NodeError>>,
    refused: bool,
}

enum Rest {
    Whole(Option<Input>),
    Entries { from: ReplicaId, births: Arc<[Birth]>, entries: vec::IntoIter<Entry> },
}

impl Handed {
    pub(super) fn new(input: Input, since: Instant, told: oneshot::Sender<Result<bool, NodeError>>) -> Self {
        let rest = match input {
            Input::Entries { from, births, entries, together: None } => {
                Rest::Entries { from, births, entries: entries.into_iter() }
            }
            input => Rest::Whole(Some(input)),
        };
        Self { rest, since, told, refused: false }
    }

    /// Takes what can be applied between two looks at the clock; `None` when nothing is left.
    pub(super) fn slice(&mut self) -> Option<Input> {
        match &mut self.rest {
            Rest::Whole(input) => input.take(),
            Rest::Entries { from, births, entries } => {
                let slice: Vec<Entry> = entries.take(SLICE).collect();
                let (from, births) = (*from, Arc::clone(births));
                (!slice.is_empty()).then_some(Input::Entries { from, births, entries: slice, together: None })
            }
        }
    }

    /// Whether it came so long ago that clients wait for it.
    pub(super) fn is_late(&self) -> bool {
        self.since.elapsed() >= LATE
    }

    /// Notes that something of it was refused.
    pub(super) fn note_refusal(&mut self) {
        self.refused = true;
    }

    pub(super) fn told(self) -> Told {
        (self.told, self.refused)
    }
}

/// Rejects all queued inputs and reports the error to each waiter.
pub(super) fn refuse_all(backlog: &mut VecDeque<Handed>, error: impl Fn() -> NodeError) {
    for handed in backlog.drain(..) {
        if handed.told.send(Err(error())).is_err() {
            tracing::trace!("a session ended before its input was applied");
        }
    }
}
