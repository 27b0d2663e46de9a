//! Replaced values that the thread which owns the journal reads between its groups.

use std::time::{Duration, Instant};

use bytes::Bytes;
use eddy_crdt::{PastPlace, PastValues, Refusal, values_of};
use tokio::sync::oneshot;

use super::error::NodeError;
use crate::storage::{Journal, StorageError};

/// How long records are read between two groups: writes wait meanwhile.
const SLICE: Duration = Duration::from_millis(1);

/// What was read, or why it was not.
pub(crate) type Recalled = Result<PastValues, NodeError>;

/// Places that the storage thread reads, in the journal's order.
pub(crate) struct Reading {
    places: Vec<PastPlace>,
    /// How many were read.
    done: usize,
    values: PastValues,
    reply: oneshot::Sender<Recalled>,
}

impl Reading {
    pub(crate) fn new(places: Vec<PastPlace>) -> (Self, oneshot::Receiver<Recalled>) {
        let (reply, recalled) = oneshot::channel();
        (Self { places, done: 0, values: PastValues::default(), reply }, recalled)
    }

    /// Reads a slice, and answers behind the last one. `None` when it has ended.
    pub(crate) fn go_on(mut self, journal: &mut dyn Journal) -> Option<Self> {
        match self.slice(journal) {
            Ok(false) if !self.reply.is_closed() => return Some(self),
            Ok(_) => self.end(),
            Err(error) => answer(self.reply, Err(error)),
        }
        None
    }

    /// Returns whether all is read.
    fn slice(&mut self, journal: &mut dyn Journal) -> Result<bool, NodeError> {
        let since = Instant::now();
        while let Some(rest) = self.places.get(self.done..).filter(|rest| !rest.is_empty()) {
            let number = rest[0].number;
            let some = &rest[..rest.partition_point(|place| place.number <= number)];
            let record = journal.read(number).map_err(|error: StorageError| NodeError::Storage(error.to_string()))?;
            // What a compaction dropped meanwhile.
            let record = record.ok_or(NodeError::Refused(Refusal::Compacted))?;
            for (place, value) in some.iter().zip(found(record, some)?) {
                self.values.give(*place, value);
            }
            self.done += some.len();
            if since.elapsed() >= SLICE {
                return Ok(self.done == self.places.len());
            }
        }
        Ok(true)
    }

    fn end(self) {
        answer(self.reply, Ok(self.values));
    }
}

fn found(record: Bytes, places: &[PastPlace]) -> Result<Vec<Bytes>, NodeError> {
    let values = values_of(record, places).map_err(|error| NodeError::Storage(error.to_string()))?;
    values.into_iter().map(|value| value.ok_or(NodeError::Refused(Refusal::Compacted))).collect()
}

fn answer(reply: oneshot::Sender<Recalled>, recalled: Recalled) {
    if reply.send(recalled).is_err() {
        tracing::trace!("a reader of the past has gone");
    }
}
